// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

#include "core/device/cuda.h"
#include "distributed/topology/detect.h"
#include "distributed/topology/measure.h"

namespace xylem {
namespace {

constexpr size_t kBytes = size_t(64) << 20;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct FreeDevice {
  void operator()(void* p) const { cudaFree(p); }
};
struct FreePinned {
  void operator()(void* p) const { cudaFreeHost(p); }
};
using DeviceBuffer = std::unique_ptr<void, FreeDevice>;
using PinnedBuffer = std::unique_ptr<void, FreePinned>;

DeviceBuffer device_buffer() {
  void* p = nullptr;
  XY_CUDA(cudaMalloc(&p, kBytes));
  return DeviceBuffer(p);
}
PinnedBuffer pinned_buffer() {
  void* p = nullptr;
  XY_CUDA(cudaHostAlloc(&p, kBytes, cudaHostAllocPortable));
  return PinnedBuffer(p);
}

struct OneStream {
  cudaStream_t stream = nullptr;
  OneStream() { XY_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  ~OneStream() { cudaStreamDestroy(stream); }
};

class CurrentDevice {  // restores the one before
 public:
  CurrentDevice() { cudaGetDevice(&device_); }
  ~CurrentDevice() { cudaSetDevice(device_); }

 private:
  int device_ = 0;
};

void fill(void* bytes, uint64_t seed) {
  auto* words = static_cast<uint64_t*>(bytes);
  for (size_t i = 0; i < kBytes / 8; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    words[i] = seed;
  }
}

// The link speeds up with the load: copies for a quarter of a second, the link is read while they are under way.
void measure_host_copy(int device, GpuDevice& g, void* pinned) {
  XY_CUDA(cudaSetDevice(device));
  DeviceBuffer buffer = device_buffer();
  OneStream s;
  double warm = seconds() + 0.1;
  while (seconds() < warm) {
    XY_CUDA(cudaMemcpyAsync(buffer.get(), pinned, kBytes, cudaMemcpyHostToDevice, s.stream));
    XY_CUDA(cudaStreamSynchronize(s.stream));
  }
  double begin = seconds(), bytes = 0;
  std::optional<PcieLink> link;
  while (seconds() < begin + 0.25) {
    for (int i = 0; i < 8; ++i)
      XY_CUDA(cudaMemcpyAsync(buffer.get(), pinned, kBytes, cudaMemcpyHostToDevice, s.stream));
    if (g.pci)
      if (auto now = nvml_current_pcie(*g.pci)) link = now;
    XY_CUDA(cudaStreamSynchronize(s.stream));
    bytes += 8.0 * kBytes;
  }
  g.host_copy_gbps = bytes / (seconds() - begin) / 1e9;
  if (!link) return;
  if (link->generation > 0) g.pcie.generation = link->generation;
  if (link->width > 0) g.pcie.width = link->width;
  g.pcie_judged = link->generation > 0;
}

void measure_pair(int from, int to, DevicePair& pair, void* pattern, void* back, uint64_t seed) {
  int can = 0;
  XY_CUDA(cudaDeviceCanAccessPeer(&can, to, from));
  if (pair.peer == PeerAccess::unknown || !can) pair.peer = can ? PeerAccess::ok : PeerAccess::not_supported;
  XY_CUDA(cudaSetDevice(to));
  if (can && cudaDeviceEnablePeerAccess(from, 0) != cudaSuccess) cudaGetLastError();  // enabled already
  DeviceBuffer target = device_buffer();
  XY_CUDA(cudaMemset(target.get(), 0, kBytes));
  XY_CUDA(cudaSetDevice(from));
  if (can && cudaDeviceEnablePeerAccess(to, 0) != cudaSuccess) cudaGetLastError();
  DeviceBuffer source = device_buffer();
  OneStream s;
  fill(pattern, seed);
  XY_CUDA(cudaMemcpy(source.get(), pattern, kBytes, cudaMemcpyHostToDevice));
  XY_CUDA(cudaMemcpyPeerAsync(target.get(), to, source.get(), from, kBytes, s.stream));
  XY_CUDA(cudaStreamSynchronize(s.stream));
  constexpr int kCopies = 10;
  double begin = seconds();
  for (int i = 0; i < kCopies; ++i)
    XY_CUDA(cudaMemcpyPeerAsync(target.get(), to, source.get(), from, kBytes, s.stream));
  XY_CUDA(cudaStreamSynchronize(s.stream));
  double gbps = kCopies * double(kBytes) / (seconds() - begin) / 1e9;
  XY_CUDA(cudaMemcpy(back, target.get(), kBytes, cudaMemcpyDeviceToHost));
  pair.copies_right = std::memcmp(pattern, back, kBytes) == 0;
  if (can) pair.measured_gbps = gbps;  // else it went through the host, and says nothing about the path
}

}  // namespace

void measure(Topology& t) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    count = 0;
  }
  XY_CHECK(count > 0, "no GPU to measure: the CUDA driver sees none");
  CurrentDevice keep;
  std::vector<int> device_of(t.gpus.size(), -1);  // GPUs are joined by PCI address: CUDA numbers them its own way
  for (int d = 0; d < count; ++d) {
    char text[32] = "";
    XY_CUDA(cudaDeviceGetPCIBusId(text, sizeof text, d));
    auto pci = PciAddress::parse(text);
    for (size_t i = 0; i < t.gpus.size(); ++i)
      if (pci && t.gpus[i].pci == pci) device_of[i] = d;
  }
  std::vector<LinkErrors> before;
  for (const GpuDevice& g : t.gpus) before.push_back(g.pci ? nvml_link_errors(*g.pci) : LinkErrors{});
  PinnedBuffer pattern = pinned_buffer(), back = pinned_buffer();
  fill(pattern.get(), 1);
  for (size_t i = 0; i < t.gpus.size(); ++i)
    if (device_of[i] >= 0) measure_host_copy(device_of[i], t.gpus[i], pattern.get());
  for (size_t i = 0; i < t.gpus.size(); ++i)
    for (size_t j = 0; j < t.gpus.size(); ++j)
      if (i != j && device_of[i] >= 0 && device_of[j] >= 0)
        measure_pair(device_of[i], device_of[j], t.pairs[i][j], pattern.get(), back.get(), i * 1000 + j + 1);
  auto growth = [](const std::optional<uint64_t>& from, const std::optional<uint64_t>& to) -> std::optional<uint64_t> {
    if (!from || !to) return std::nullopt;
    return *to > *from ? *to - *from : 0;
  };
  for (size_t i = 0; i < t.gpus.size(); ++i) {
    if (device_of[i] < 0) continue;
    GpuDevice& g = t.gpus[i];
    LinkErrors after = nvml_link_errors(*g.pci);
    g.nvlink_errors_load = growth(before[i].nvlink, after.nvlink);
    g.pcie_replays_load = growth(before[i].pcie, after.pcie);
    if (after.nvlink) g.nvlink_errors = after.nvlink;
    if (after.pcie) g.pcie_replays = after.pcie;
  }
}

}  // namespace xylem
