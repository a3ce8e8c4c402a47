// SPDX-License-Identifier: Apache-2.0
#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "core/util/check.h"

namespace xylem {
namespace {

SamplerOptions suited(SamplerOptions options, const RecordSpec& spec) {
  if (options.block == 0) options.block = spec.block, options.window = spec.window;
  return options;
}

// Stored values as floats; on this thread alone.
void to_floats(const void* source, DType dtype, int64_t n, float* out) {
  visit_any(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* in = static_cast<const T*>(source);
    for (int64_t i = 0; i < n; ++i) out[i] = float(in[i]);
    if constexpr (std::is_same_v<T, uint8_t>)
      for (int64_t i = 0; i < n; ++i) out[i] *= 1 / 255.0f;
  });
}

}  // namespace

// Note [The ring]: batches are read into a ring of slots, in parts so that all threads work on the batch that is needed
// first. A slot goes empty -> filling -> (all parts done) ready -> empty. On a GPU it stays busy, after ready, until
// its copy out of pinned memory has finished. Threads claim parts in order and only touch host memory; the caller's
// thread makes every device call.
struct Loader::Impl {
  struct Slot {
    int64_t step = -1;  // -1: empty
    int parts_left = 0;
    std::vector<int64_t> ids;
    Tensor input, target;  // host memory
    std::exception_ptr error;
    Tensor device_input, device_target;  // set once the copy has been queued
    Event allocated, copied;
    bool done = false;  // handed out; waits for `copied`
  };

  std::shared_ptr<const Dataset> dataset;
  LoaderOptions options;
  Sampler sampler;
  Shape input_shape, target_shape;  // of a batch, as read
  DType input_dtype, target_dtype;
  bool tokens, masks, gpu, images, has_target;
  int parts;

  mutable std::mutex mutex;
  std::condition_variable work_changed, batch_changed;
  std::vector<Slot> ring;
  int64_t position = 0;             // what next() returns
  int64_t claim = 0;                // the step whose part is claimed next
  int claim_part = 0, working = 0;  // parts being read
  bool stopping = false, paused = false;
  double stalled = 0;
  std::vector<std::thread> threads;
  Stream copy_stream;

  Impl(std::shared_ptr<const Dataset> d, const LoaderOptions& o)
      : dataset(std::move(d)), options(o), sampler(dataset->size(), suited(o.sampler, dataset->spec())) {
    const RecordSpec& spec = dataset->spec();
    int64_t batch = options.sampler.batch;
    tokens = spec.task == RecordSpec::Task::language_modelling;
    masks = spec.task == RecordSpec::Task::segmentation;
    has_target = !tokens;
    images = spec.input.rank() == 3 && (spec.input_dtype == u8 || spec.input_dtype == f32);
    gpu = options.device.is_cuda();
    const AugmentOptions& a = options.augment;
    XY_CHECK(images || (a.crop_padding == 0 && !a.flip && a.mean.empty() && a.stddev.empty()),
             "loader: only images, [C, H, W] of u8 or f32, can be augmented; these samples are ", spec.input, " of ",
             spec.input_dtype);
    input_shape = spec.input, target_shape = spec.target;
    input_shape.insert(0, batch), target_shape.insert(0, batch);
    input_dtype = tokens ? i32 : f32;
    target_dtype = masks ? i32 : spec.target_dtype;
    options.prefetch = std::max(1, options.prefetch);
    parts = int(std::clamp<int64_t>(batch, 1, std::max(1, options.threads)));
    ring.resize(size_t(options.prefetch) + (gpu ? 2 : 0));
    if (gpu) {
      copy_stream = Stream::create(options.device);
      for (Slot& slot : ring) {
        slot.input = empty_pinned(input_shape, input_dtype);
        if (has_target) slot.target = empty_pinned(target_shape, target_dtype);
      }
    }
    for (int i = 0; i < options.threads; ++i) threads.emplace_back([this] { work(); });
  }

  ~Impl() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    work_changed.notify_all();
    for (auto& t : threads) t.join();
    copy_stream.synchronize();
  }

  Slot& slot_of(int64_t step) { return ring[size_t(step % int64_t(ring.size()))]; }

  void read_part(Slot& slot, int part) const {
    const RecordSpec& spec = dataset->spec();
    int64_t batch = int64_t(slot.ids.size()), per_sample = spec.input.numel(), at = -1;
    size_t target_bytes = size_t(spec.target.numel()) * size_of(target_dtype);
    std::vector<char> raw(tokens ? 0 : size_t(per_sample) * size_of(spec.input_dtype));
    std::vector<uint8_t> mask(masks ? size_t(spec.target.numel()) : 0);
    try {
      for (int64_t i = batch * part / parts, end = batch * (part + 1) / parts; i < end; ++i) {
        at = slot.ids[size_t(i)];
        if (tokens) {
          dataset->read(at, slot.input.data<int32_t>() + i * per_sample, nullptr);
          continue;
        }
        float* input = slot.input.data<float>() + i * per_sample;
        char* target = static_cast<char*>(slot.target.raw()) + size_t(i) * target_bytes;
        int64_t epoch = sampler.epoch_of(slot.step);
        dataset->read(at, raw.data(), masks ? reinterpret_cast<char*>(mask.data()) : target);
        if (images)
          augment_image(raw.data(), spec.input_dtype, spec.input, options.augment, options.sampler.seed, epoch, at,
                        input);
        else
          to_floats(raw.data(), spec.input_dtype, per_sample, input);
        if (masks)
          augment_mask(mask.data(), spec.target, spec.classes, options.augment, options.sampler.seed, epoch, at,
                       reinterpret_cast<int32_t*>(target));
      }
    } catch (const std::exception& e) {
      auto* ours = dynamic_cast<const Error*>(&e);
      auto error = std::make_exception_ptr(
          Error(detail::concat("loading sample ", at, " of step ", slot.step, ": ", ours ? ours->message() : e.what()),
                "", ours ? ours->where() : std::source_location::current()));
      std::lock_guard lock(mutex);
      slot.error = error;
    }
  }

  // Under the lock: makes `step` the content of its empty slot.
  void open(Slot& slot, int64_t step) {
    slot.step = step, slot.parts_left = parts, slot.error = nullptr, slot.ids = sampler.ids(step);
    if (gpu) return;
    slot.input = empty(input_shape, input_dtype);
    if (has_target) slot.target = empty(target_shape, target_dtype);
  }

  bool can_claim() {
    return !paused && claim < position + options.prefetch && (claim_part > 0 || slot_of(claim).step < 0);
  }

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      work_changed.wait(lock, [&] { return stopping || can_claim(); });
      if (stopping) return;
      Slot& slot = slot_of(claim);
      if (claim_part == 0) open(slot, claim);
      int part = claim_part++;
      if (claim_part == parts) ++claim, claim_part = 0;
      ++working;
      lock.unlock();
      read_part(slot, part);
      lock.lock();
      --working;
      if (--slot.parts_left == 0 || paused) batch_changed.notify_all();
    }
  }

  bool ready(const Slot& slot, int64_t step) const { return slot.step == step && slot.parts_left == 0; }

  // The slot that holds the batch of `step`, read in full.
  Slot& wait_for(int64_t step) {
    Slot& slot = slot_of(step);
    if (threads.empty()) {
      auto begin = std::chrono::steady_clock::now();
      if (!ready(slot, step)) {
        open(slot, step);
        for (int part = 0; part < parts; ++part, --slot.parts_left) read_part(slot, part);
      }
      stalled += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      return slot;
    }
    std::unique_lock lock(mutex);
    if (ready(slot, step)) return slot;
    auto begin = std::chrono::steady_clock::now();
    batch_changed.wait(lock, [&] { return ready(slot, step); });
    stalled += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return slot;
  }

  void release(Slot& slot) {
    {
      std::lock_guard lock(mutex);
      slot.step = -1, slot.done = false;
    }
    work_changed.notify_all();
  }

  void advance() {
    {
      std::lock_guard lock(mutex);
      ++position;
    }
    work_changed.notify_all();
  }

  Batch cut(const Tensor& input, const Tensor& target, std::vector<int64_t> ids) const {
    if (!tokens) return {input, target, std::move(ids)};
    int64_t n = input.size(1) - 1;
    return {input.slice(1, 0, n), input.slice(1, 1, n + 1), std::move(ids)};
  }

  Batch next_on_cpu() {
    Slot& slot = wait_for(position);
    if (slot.error) std::rethrow_exception(slot.error);
    Batch batch = cut(std::exchange(slot.input, {}), std::exchange(slot.target, {}), std::move(slot.ids));
    release(slot);
    advance();
    return batch;
  }

  // Queues the copy to the GPU. The device memory may have been freed by work that the compute stream has yet to do, so
  // the copy waits for what that stream has been given so far.
  void upload(Slot& slot) {
    Stream compute = current_stream(options.device);
    slot.device_input = empty(input_shape, input_dtype, options.device);
    if (has_target) slot.device_target = empty(target_shape, target_dtype, options.device);
    slot.allocated.record(compute);
    slot.allocated.wait(copy_stream);
    StreamScope scope(copy_stream);
    slot.device_input.copy_(slot.input, true);
    if (has_target) slot.device_target.copy_(slot.target, true);
    slot.copied.record(copy_stream);
  }

  // The copy of batch k + 1 is queued by the call for batch k, if it has been read by then, and so overlaps with step
  // k.
  Batch next_on_gpu() {
    for (Slot& slot : ring)
      if (slot.done && slot.copied.done()) release(slot);
    Slot& wanted = slot_of(position);
    if (wanted.done) {  // its last copy is still under way
      wanted.copied.synchronize();
      release(wanted);
    }
    Slot& slot = wait_for(position);
    if (slot.error) std::rethrow_exception(slot.error);
    if (!slot.device_input.defined()) upload(slot);
    Slot& following = slot_of(position + 1);
    bool read_ahead = false;
    {
      std::lock_guard lock(mutex);
      read_ahead = &following != &slot && ready(following, position + 1) && !following.error;
    }
    if (read_ahead && !following.device_input.defined()) upload(following);
    slot.copied.wait(current_stream(options.device));
    Batch batch = cut(std::exchange(slot.device_input, {}), std::exchange(slot.device_target, {}), std::move(slot.ids));
    slot.done = true;
    advance();
    return batch;
  }

  void restart(int64_t step) {
    {
      std::unique_lock lock(mutex);
      paused = true;
      batch_changed.wait(lock, [&] { return working == 0; });
      copy_stream.synchronize();
      for (Slot& slot : ring) slot.step = -1, slot.done = false, slot.device_input = slot.device_target = {};
      position = claim = step, claim_part = 0;
      paused = false;
    }
    work_changed.notify_all();
  }
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
    : impl_(std::make_unique<Impl>(std::move(dataset), options)) {}
Loader::~Loader() = default;

Batch Loader::next() { return impl_->gpu ? impl_->next_on_gpu() : impl_->next_on_cpu(); }
int64_t Loader::position() const { return impl_->position; }

void Loader::set_position(int64_t step) {
  XY_CHECK(step >= 0, "loader: position ", step, " is negative");
  impl_->restart(step);
}

const Sampler& Loader::sampler() const { return impl_->sampler; }
const Dataset& Loader::dataset() const { return *impl_->dataset; }
double Loader::stall_seconds() const { return impl_->stalled; }

}  // namespace xylem
