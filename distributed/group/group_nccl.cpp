// SPDX-License-Identifier: Apache-2.0
// GPU tensors over NCCL. All collectives of a process go to one stream of high priority, in the order of the calls and
// behind the work that the current stream holds at that time; wait() puts the current stream behind the collective. The
// host waits for nothing, so that a step with its collectives can be captured in a CUDA graph.
#include <nccl.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <thread>

#include "core/device/cuda.h"
#include "core/device/graph.h"
#include "distributed/group/backend.h"
#include "distributed/group/control.h"
#include "distributed/plan/tuner.h"
#include "distributed/record/recorder.h"
#include "distributed/world/launcher.h"

namespace xylem {
namespace cuda {
void store_progress(int32_t* word, int32_t value, Stream stream);  // progress.cu
}  // namespace cuda

namespace {

void check_nccl(ncclResult_t status, const char* call, std::source_location where = std::source_location::current()) {
  if (status == ncclSuccess) return;
  const char* more = ncclGetLastError(nullptr);
  detail::fail(
      detail::concat("NCCL: ", ncclGetErrorString(status), " in ", call, more && *more ? ": " : "", more ? more : ""),
      where, "set NCCL_DEBUG=INFO to see what NCCL does");
}
#define XY_NCCL(call) check_nccl((call), #call)

// ---- communicators
// ---------------------------------------------------------------------------------------------------

struct Communicator {
  std::string name;
  ncclComm_t handle = nullptr;
};
// Kept until the process ends: destroying one is collective, and ranks drop their groups when they like.
struct Registry {
  std::mutex mutex;
  std::deque<Communicator> list;
  bool aborted = false;
};
Registry& registry() {
  static Registry& r = *new Registry;
  return r;
}

Stream communication_stream(Device device) {
  static std::mutex mutex;
  static std::map<int, Stream> streams;
  std::lock_guard lock(mutex);
  auto found = streams.find(device.index);
  if (found == streams.end()) found = streams.emplace(device.index, Stream::create(device, true)).first;
  return found->second;
}

ncclDataType_t type_of(DType t) {
  switch (t) {
    case DType::f64:
      return ncclFloat64;
    case DType::f32:
      return ncclFloat32;
    case DType::f16:
      return ncclFloat16;
    case DType::bf16:
      return ncclBfloat16;
    case DType::i64:
      return ncclInt64;
    case DType::i32:
      return ncclInt32;
    case DType::i8:
      return ncclInt8;
    default:
      return ncclUint8;
  }
}
ncclRedOp_t operation_of(ReduceOp op, DType t) {
  if (op == ReduceOp::min) return ncclMin;
  if (op == ReduceOp::max || t == boolean) return ncclMax;
  return op == ReduceOp::avg ? ncclAvg : ncclSum;
}

// ---- when collectives ran, for the flight recorder
// -------------------------------------------------------------------

// Polls the events of collectives under way. Their times are counted from the end of the collective before, and
// held within what the polls have seen, so that the clocks of host and GPU do not drift apart.
class Timeline {
 public:
  static Timeline& get() {
    static Timeline& t = *new Timeline;
    return t;
  }
  // `handles`: of the recorder, 0 for none. `progress`: i32 [1] of host memory, in which the GPU counts how many of
  // them have finished between start and end.
  void add(std::vector<uint64_t> handles, Event start, Event end, Tensor progress = {}) {
    std::lock_guard lock(mutex_);
    if (stop_) return;
    if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
    queue_.push_back({std::move(handles), std::move(start), std::move(end), std::move(progress)});
    changed_.notify_one();
  }
  void stop() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct Entry {
    std::vector<uint64_t> handles;
    Event start, end;
    Tensor progress;
    bool started = false;
    size_t finished = 0;  // of handles

    void finish(size_t count, int64_t when) {
      for (; finished < std::min(count, handles.size()); ++finished) recorder::finished(handles[finished], when);
    }
  };
  // Read before the end is asked for: where it has not come, no later replay has touched the count.
  static size_t count_of(const Entry& e) {
    return e.progress.defined() ? size_t(__atomic_load_n(e.progress.data<int32_t>(), __ATOMIC_RELAXED)) : 0;
  }
  void loop() {
    int64_t before = recorder::now_ns();  // the last look
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (stop_) return;
      }
      int64_t now = recorder::now_ns();
      try {
        while (Entry* e = front()) {
          if (!e->started && e->start.done()) {
            int64_t started = time_of(e->start, before, now);
            for (uint64_t h : e->handles) recorder::started(h, started);
            e->started = true;
          }
          if (!e->started) break;
          size_t count = count_of(*e);
          if (!e->end.done()) {
            e->finish(count, now);
            break;
          }
          base_ns_ = time_of(e->end, before, now);
          base_ = e->end;
          e->finish(e->handles.size(), base_ns_);
          std::lock_guard lock(mutex_);
          queue_.pop_front();
        }
      } catch (const std::exception&) {  // the device is lost or the process ends: nobody reads these times
        std::lock_guard lock(mutex_);
        queue_.clear();
        stop_ = true;
        return;
      }
      before = now;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  Entry* front() {
    std::lock_guard lock(mutex_);
    return queue_.empty() ? nullptr : &queue_.front();  // deque: push_back moves no entry
  }
  int64_t time_of(const Event& event, int64_t before, int64_t now) const {
    int64_t t = base_ns_ ? base_ns_ + int64_t(double(event.elapsed_ms(base_)) * 1e6) : now;
    return std::clamp(t, before, now);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  std::deque<Entry> queue_;
  bool stop_ = false;
  Event base_{true};
  int64_t base_ns_ = 0;
};

void check_abort() {
  if (collectives::aborted()) XY_FAIL("the collective was aborted: ", collectives::abort_reason());
}

// The collectives of a CUDA graph, which the recorder sees with every replay. All lie on the communication stream,
// where a kernel behind each counts it.
class GraphRecord final : public ReplayHook {
 public:
  // A collective that this thread captures on `stream`.
  static void add(Record record, Stream stream) {
    std::shared_ptr<ReplayHook>* hook = replay_hook();
    if (hook && !*hook) *hook = std::make_shared<GraphRecord>();
    auto* graph = hook ? static_cast<GraphRecord*>(hook->get()) : nullptr;
    for (uint64_t handle : {record.first, record.second}) {
      if (handle == 0) continue;
      recorder::Collective c = recorder::captured(handle);
      if (graph) graph->collectives_.push_back(std::move(c));
    }
    if (graph) graph->count(graph->collectives_.size(), stream);
  }
  void before(Stream stream) override {
    check_abort();
    handles_ = recorder::replay(collectives_);
    count(0, stream);
    start_ = Event(true);
    start_.record(stream);
  }
  void after(Stream stream) override {
    Event end(true);
    end.record(stream);
    Timeline::get().add(std::move(handles_), start_, end, progress_);
    if (share_gpu()) stream.synchronize();  // kernels of all ranks must find room on the one GPU
  }

 private:
  void count(size_t finished, Stream stream) {
    cuda::store_progress(progress_.data<int32_t>(), int32_t(finished), stream);
  }
  std::vector<recorder::Collective> collectives_;
  Tensor progress_ = empty_pinned({1}, i32);
  std::vector<uint64_t> handles_;
  Event start_{true};
};

// ---- backend
// ---------------------------------------------------------------------------------------------------------

class NcclWork final : public Work::State {
 public:
  NcclWork(Event end, Device device, bool captured, Tensors tensors)
      : end_(std::move(end)), device_(device), captured_(captured), tensors_(std::move(tensors)) {}
  void wait() override {
    check_abort();
    end_.wait(current_stream(device_));
  }
  bool done() override {
    XY_CHECK(!captured_, "a collective in a CUDA graph has no state to ask for; use wait()");
    return end_.done();
  }

 private:
  Event end_;
  Device device_;
  bool captured_;
  Tensors tensors_;
};

class NcclBackend final : public Backend {
 public:
  NcclBackend(Group::Impl& group, Device device) : rank_(group.rank), size_(group.size()), device_(device) {
    XY_CHECK(!capturing(device), "the group ", group.name,
             " meets its first GPU collective inside a graph capture; run one step before capturing");
    check_abort();
    XY_CUDA(cudaSetDevice(device.index));
    ncclUniqueId id;
    ncclResult_t status = rank_ == 0 ? ncclGetUniqueId(&id) : ncclSuccess;
    std::string bytes(reinterpret_cast<const char*>(&id), rank_ == 0 && status == ncclSuccess ? sizeof id : 0);
    bytes = group.host->broadcast(bytes, 0);
    check_nccl(status, "ncclGetUniqueId");
    XY_CHECK(bytes.size() == sizeof id, "rank 0 of the group ", group.name, " could not start NCCL");
    std::memcpy(&id, bytes.data(), sizeof id);
    Registry& r = registry();
    Communicator* communicator;
    {
      std::lock_guard lock(r.mutex);
      communicator = &r.list.emplace_back();
      communicator->name = group.name;
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    config.commName = communicator->name.c_str();
#endif
    tuner::Creation creation(group.name);  // NCCL asks the plan by this group's name
    XY_NCCL(ncclCommInitRankConfig(&comm_, size_, id, rank_, &config));
    name_ = group.name;
    std::lock_guard lock(r.mutex);
    communicator->handle = comm_;
  }

  std::string algorithm(const Call&) const override { return "nccl"; }

  Work launch(Call call, Record record) override {
    const Tensor& own = call.output.defined() ? call.output : call.input;
    XY_CHECK(own.device() == device_, "the tensor is on ", own.device(), ", but this group's GPU is ", device_);
    check_abort();
    XY_CUDA(cudaSetDevice(device_.index));
    const Stream compute = current_stream(device_), stream = communication_stream(device_);
    const bool captured = capturing(device_);
    Event ready, start(true), end(!captured);
    ready.record(compute);
    ready.wait(stream);
    if (!captured) start.record(stream);
    run(call, stream.handle());
    if (call.kind < Call::all_to_all)
      if (std::string choice = tuner::last_choice(name_); !choice.empty()) recorder::chose(record.first, choice);
    if (captured) GraphRecord::add(record, stream);
    end.record(stream);
    if (!captured) Timeline::get().add({record.first, record.second}, start, end);
    if (share_gpu()) {  // kernels of all ranks must find room on the one GPU
      end.wait(compute);
      if (!captured && ++launched_ % 32 == 0) stream.synchronize();
    }
    return Work(std::make_unique<NcclWork>(end, device_, captured, Tensors{call.output, call.input}));
  }

 private:
  void run(const Call& call, cudaStream_t stream) const {
    void* out = call.output.defined() ? call.output.raw() : nullptr;
    const void* in = call.input.defined() ? call.input.raw() : out;
    const DType dtype = call.output.defined() ? call.output.dtype() : call.input.dtype();
    const ncclDataType_t type = type_of(dtype);
    const ncclRedOp_t op = operation_of(call.op, dtype);
    auto count = [](const Tensor& t) { return static_cast<size_t>(t.numel()); };
    switch (call.kind) {
      case Call::all_reduce:
        XY_NCCL(ncclAllReduce(out, out, count(call.output), type, op, comm_, stream));
        break;
      case Call::reduce:
        XY_NCCL(ncclReduce(out, out, count(call.output), type, op, call.from, comm_, stream));
        break;
      case Call::broadcast:
        XY_NCCL(ncclBroadcast(out, out, count(call.output), type, call.from, comm_, stream));
        break;
      case Call::all_gather:
        XY_NCCL(ncclAllGather(in, out, count(call.input), type, comm_, stream));
        break;
      case Call::reduce_scatter:
        XY_NCCL(ncclReduceScatter(in, out, count(call.output), type, op, comm_, stream));
        break;
      case Call::all_to_all:
        all_to_all(call, static_cast<char*>(out), static_cast<const char*>(in), type, stream);
        break;
      default:
        XY_NCCL(ncclGroupStart());
        if (call.to >= 0 && call.input.numel() > 0)
          XY_NCCL(ncclSend(call.input.raw(), count(call.input), type_of(call.input.dtype()), call.to, comm_, stream));
        if (call.from >= 0 && call.output.numel() > 0)
          XY_NCCL(ncclRecv(out, count(call.output), type, call.from, comm_, stream));
        XY_NCCL(ncclGroupEnd());
    }
  }
  void all_to_all(const Call& call, char* out, const char* in, ncclDataType_t type, cudaStream_t stream) const {
    const size_t size = size_of(call.output.dtype());
    XY_NCCL(ncclGroupStart());
    for (int r = 0; r < size_; ++r) {
      const size_t sent = size_t(call.sent[r]), received = size_t(call.received[r]);
      if (sent > 0) XY_NCCL(ncclSend(in, sent, type, r, comm_, stream));
      if (received > 0) XY_NCCL(ncclRecv(out, received, type, r, comm_, stream));
      in += sent * size;
      out += received * size;
    }
    XY_NCCL(ncclGroupEnd());
  }

  int rank_, size_;
  Device device_;
  ncclComm_t comm_ = nullptr;
  std::string name_;
  uint64_t launched_ = 0;
};

}  // namespace

namespace detail {

std::unique_ptr<Backend> make_nccl(Group::Impl& group, Device device) {
  return std::make_unique<NcclBackend>(group, device);
}

// Each communicator in a thread of its own: an abort frees memory, which waits for the kernels of the others.
void abort_nccl() {
  struct Pending {
    std::mutex mutex;
    std::condition_variable changed;
    int count = 0;
  };
  auto pending = std::make_shared<Pending>();
  {
    Registry& r = registry();
    std::lock_guard lock(r.mutex);
    if (r.aborted) return;
    r.aborted = true;
    for (const Communicator& c : r.list) {
      if (!c.handle) continue;
      {
        std::lock_guard more(pending->mutex);
        ++pending->count;
      }
      std::thread([handle = c.handle, pending] {
        ncclCommAbort(handle);
        std::lock_guard done(pending->mutex);
        --pending->count;
        pending->changed.notify_all();
      }).detach();
    }
  }
  std::unique_lock lock(pending->mutex);
  pending->changed.wait_for(lock, std::chrono::seconds(10), [&] { return pending->count == 0; });
}

std::string nccl_async_error() {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  if (r.aborted) return {};
  for (const Communicator& c : r.list) {
    ncclResult_t status = ncclSuccess;
    if (c.handle && ncclCommGetAsyncError(c.handle, &status) == ncclSuccess && status != ncclSuccess &&
        status != ncclInProgress)
      return concat("NCCL: ", ncclGetErrorString(status), " in the group ", c.name);
  }
  return {};
}

void stop_nccl() { Timeline::get().stop(); }

}  // namespace detail
}  // namespace xylem
