// SPDX-License-Identifier: Apache-2.0
#include "core/device/graph.h"

#include <atomic>

#include "core/device/allocator.h"
#include "core/util/check.h"
#ifdef XY_WITH_CUDA
#include "core/device/cuda.h"
#endif

namespace xylem {

#ifdef XY_WITH_CUDA

struct CudaGraph::Impl {
  Device device;
  uint64_t pool = 0;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  std::shared_ptr<ReplayHook> hook;
};

namespace {

thread_local std::shared_ptr<ReplayHook>* hook_of_capture = nullptr;

struct HookScope {
  explicit HookScope(std::shared_ptr<ReplayHook>& hook) { hook_of_capture = &hook; }
  ~HookScope() { hook_of_capture = nullptr; }
};

// What the captured code allocates, on the device and pinned, is the graph's.
struct PoolScope {
  Allocator& device;
  Allocator& pinned = pinned_allocator();
  PoolScope(Device d, uint64_t pool) : device(allocator(d)) {
    device.begin_pool(pool);
    pinned.begin_pool(pool);
  }
  ~PoolScope() {
    pinned.end_pool();
    device.end_pool();
  }
};

}  // namespace

CudaGraph::CudaGraph() : impl_(std::make_unique<Impl>()) {}
CudaGraph::~CudaGraph() {
  if (impl_->exec) cudaGraphExecDestroy(impl_->exec);
  if (impl_->graph) cudaGraphDestroy(impl_->graph);
  if (!impl_->pool) return;
  pinned_allocator().release_pool(impl_->pool);
  allocator(impl_->device).release_pool(impl_->pool);
}

void CudaGraph::capture(Device device, const std::function<void()>& step) {
  XY_CHECK(device.is_cuda(), "CUDA graphs need a GPU, not ", device);
  XY_CHECK(!captured(), "this CudaGraph already holds a captured step; make another");
  static std::atomic<uint64_t> next_pool{1};
  impl_->device = device;
  impl_->pool = next_pool++;
  cudaStream_t stream = cuda_stream(device);
  XY_CUDA(cudaStreamSynchronize(stream));
  cudaGraph_t graph = nullptr;
  HookScope scope(impl_->hook);
  PoolScope pools(device, impl_->pool);
  try {
    XY_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    step();
    XY_CUDA(cudaStreamEndCapture(stream, &graph));
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    impl_->hook = nullptr;
    throw;
  }
  impl_->graph = graph;
  XY_CUDA(cudaGraphInstantiate(&impl_->exec, graph, 0));
}

void CudaGraph::replay() {
  XY_CHECK(captured(), "replay() before capture()");
  Stream stream = current_stream(impl_->device);
  if (impl_->hook) impl_->hook->before(stream);
  XY_CUDA(cudaGraphLaunch(impl_->exec, stream.handle()));
  if (impl_->hook) impl_->hook->after(stream);
}
bool CudaGraph::captured() const { return impl_->exec != nullptr; }
size_t CudaGraph::node_count() const {
  size_t n = 0;
  if (impl_->graph) XY_CUDA(cudaGraphGetNodes(impl_->graph, nullptr, &n));
  return n;
}

bool capturing(Stream stream) {
  if (!stream.handle()) return false;
  cudaStreamCaptureStatus status;
  XY_CUDA(cudaStreamIsCapturing(stream.handle(), &status));
  return status != cudaStreamCaptureStatusNone;
}
bool capturing(Device device) { return capturing(current_stream(device)); }

std::shared_ptr<ReplayHook>* replay_hook() { return hook_of_capture; }

#else

struct CudaGraph::Impl {};
CudaGraph::CudaGraph() = default;
CudaGraph::~CudaGraph() = default;
void CudaGraph::capture(Device, const std::function<void()>&) {
  XY_FAIL("CUDA graphs need a GPU; this build of Xylem is for the CPU alone");
}
void CudaGraph::replay() { XY_FAIL("CUDA graphs need a GPU; this build of Xylem is for the CPU alone"); }
bool CudaGraph::captured() const { return false; }
size_t CudaGraph::node_count() const { return 0; }
bool capturing(Stream) { return false; }
bool capturing(Device) { return false; }
std::shared_ptr<ReplayHook>* replay_hook() { return nullptr; }

#endif

}  // namespace xylem
