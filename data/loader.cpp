// SPDX-License-Identifier: Apache-2.0
#include "data/loader.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

namespace xylem {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

struct Loader::Impl {
  std::shared_ptr<const Dataset> dataset;
  LoaderOptions options;
  Sampler sampler;

  // A batch in host memory, read by one thread.
  struct Staged {
    Tensor input, label;
    std::vector<int64_t> ids;
    std::exception_ptr error;
  };
  // A batch on its way to, or on, the GPU.
  struct Slot {
    int64_t step = -1;
    Tensor host_input, host_label, input, label;
    std::vector<int64_t> ids;
    std::exception_ptr error;
    Event copied, asked;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::map<int64_t, Staged> ready;  // by step
  int64_t position = 0;             // what next() returns
  int64_t claimed = 0;              // the next step a thread will read
  uint64_t generation = 0;          // raised by set_position(): work of older generations is thrown away
  bool stopping = false;
  double stalled = 0;
  std::vector<std::thread> threads;

  Stream copy_stream;
  std::vector<Slot> slots;

  Impl(std::shared_ptr<const Dataset> d, const LoaderOptions& o)
      : dataset(std::move(d)), options(o), sampler(dataset->size(), o.sampler) {
    options.prefetch = std::max(1, options.prefetch);
    if (options.device.is_cuda()) {
      copy_stream = Stream::create(options.device);
      slots.resize(size_t(options.prefetch) + 1);
    }
    for (int i = 0; i < options.threads; ++i) threads.emplace_back([this] { work(); });
  }

  ~Impl() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    for (auto& t : threads) t.join();
    if (options.device.is_cuda()) copy_stream.synchronize();
  }

  bool tokens() const { return dataset->spec().task == RecordSpec::Task::language_modelling; }

  Staged read(int64_t step) const {
    Staged s;
    int64_t at = -1;
    try {
      const RecordSpec& spec = dataset->spec();
      s.ids = sampler.ids(step);
      Shape shape = spec.input;
      shape.insert(0, int64_t(s.ids.size()));
      s.input = empty(shape, tokens() ? i32 : f32);
      if (!tokens()) s.label = empty({int64_t(s.ids.size())}, i64);
      int64_t per_sample = spec.input.numel();
      bool plain = spec.input.rank() != 3 || !(spec.input_dtype == u8 || spec.input_dtype == f32);
      Tensor raw = empty(spec.input, spec.input_dtype), row = tokens() ? Tensor() : s.input.reshape({-1, per_sample});
      for (size_t i = 0; i < s.ids.size(); ++i) {
        at = s.ids[i];
        if (tokens()) {
          dataset->read(at, s.input.data<int32_t>() + int64_t(i) * per_sample, nullptr);
          continue;
        }
        dataset->read(at, raw.raw(), s.label.data<int64_t>() + i);
        if (plain)
          row[int64_t(i)].copy_(raw.reshape({-1}));
        else
          augment_image(raw.raw(), spec.input_dtype, spec.input, options.augment, options.sampler.seed,
                        sampler.epoch_of(step), at, s.input.data<float>() + int64_t(i) * per_sample);
      }
    } catch (const std::exception& e) {
      s.error = std::make_exception_ptr(Error(detail::concat("loading sample ", at, " of step ", step, ": ", e.what()),
                                              "", std::source_location::current()));
    }
    return s;
  }

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stopping || claimed < position + options.prefetch; });
      if (stopping) return;
      int64_t step = claimed++;
      uint64_t mine = generation;
      lock.unlock();
      Staged s = read(step);
      lock.lock();
      if (mine == generation) ready[step] = std::move(s);
      changed.notify_all();
    }
  }

  // The staged batch of `step`; waits for it if `wait`.
  std::optional<Staged> take(int64_t step, bool wait) {
    if (threads.empty()) return read(step);
    std::unique_lock lock(mutex);
    if (wait) {
      double begin = now();
      changed.wait(lock, [&] { return ready.contains(step); });
      stalled += now() - begin;
    }
    auto it = ready.find(step);
    if (it == ready.end()) return {};
    Staged s = std::move(it->second);
    ready.erase(it);
    return s;
  }

  Batch cut(const Tensor& input, const Tensor& label, std::vector<int64_t> ids) const {
    if (!tokens()) return {input, label, std::move(ids)};
    int64_t n = input.size(1) - 1;
    return {input.slice(1, 0, n), input.slice(1, 1, n + 1), std::move(ids)};
  }

  void advance() {
    {
      std::lock_guard lock(mutex);
      ++position;
    }
    changed.notify_all();
  }

  Batch next_on_cpu() {
    Staged s = *take(position, true);
    if (s.error) std::rethrow_exception(s.error);
    advance();
    return cut(s.input, s.label, std::move(s.ids));
  }

  // Starts copying the batch of `step` to the GPU; false if it is not read yet and `wait` is off.
  bool upload(int64_t step, bool wait) {
    auto staged = take(step, wait);
    if (!staged) return false;
    Slot& slot = slots[size_t(step) % slots.size()];
    slot.step = step;
    slot.ids = std::move(staged->ids);
    slot.error = staged->error;
    if (slot.error) return true;
    if (!slot.input.defined()) {
      slot.host_input = empty_pinned(staged->input.shape(), staged->input.dtype());
      slot.input = empty(staged->input.shape(), staged->input.dtype(), options.device);
      if (staged->label.defined()) {
        slot.host_label = empty_pinned(staged->label.shape(), i64);
        slot.label = empty(staged->label.shape(), i64, options.device);
      }
    }
    slot.copied.synchronize();  // the pinned memory is free again
    slot.host_input.copy_(staged->input);
    if (staged->label.defined()) slot.host_label.copy_(staged->label);
    StreamScope scope(copy_stream);
    slots[size_t(step + 1) % slots.size()].asked.wait(copy_stream);
    slot.input.copy_(slot.host_input, true);
    if (staged->label.defined()) slot.label.copy_(slot.host_label, true);
    slot.copied.record(copy_stream);
    return true;
  }

  // Note [Reuse of GPU batches]: the slot of step k last held batch k - slots. Everything queued with that batch came
  // before the call for batch k - slots + 1, whose moment `asked` of the following slot marks. So the copy of batch k
  // waits for that event alone and overlaps with the steps in between.
  Batch next_on_gpu() {
    Slot& slot = slots[size_t(position) % slots.size()];
    Stream compute = current_stream(options.device);
    slot.asked.record(compute);
    if (slot.step != position) upload(position, true);
    if (slot.error) std::rethrow_exception(slot.error);
    slot.copied.wait(compute);
    Batch batch = cut(slot.input, slot.label, slot.ids);
    advance();
    if (slots[size_t(position) % slots.size()].step != position) upload(position, false);
    return batch;
  }

  void restart(int64_t step) {
    {
      std::lock_guard lock(mutex);
      position = claimed = step;
      ++generation;
      ready.clear();
    }
    for (Slot& slot : slots) {
      slot.step = -1;
      slot.asked.record(current_stream(options.device));
    }
    changed.notify_all();
  }
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
    : impl_(std::make_unique<Impl>(std::move(dataset), options)) {}
Loader::~Loader() = default;

Batch Loader::next() { return impl_->options.device.is_cuda() ? impl_->next_on_gpu() : impl_->next_on_cpu(); }
int64_t Loader::position() const { return impl_->position; }

void Loader::set_position(int64_t step) {
  XY_CHECK(step >= 0, "loader: position ", step, " is negative");
  impl_->restart(step);
}

const Sampler& Loader::sampler() const { return impl_->sampler; }
const Dataset& Loader::dataset() const { return *impl_->dataset; }
double Loader::stall_seconds() const { return impl_->stalled; }

}  // namespace xylem
