// SPDX-License-Identifier: Apache-2.0
#include "distributed/parallel/window.h"

#include <string>

#include "distributed/record/recorder.h"

namespace xylem {
namespace {

constexpr size_t kKeep = 3;  // buckets that stay: weights and biases of one layer lie in different ones
constexpr int kAhead = 2;

}  // namespace

ParameterWindow::ParameterWindow(const Group& group) : group_(group), after_op_([this] { trim(); }) {}

Tensor ParameterWindow::add(const FlatBucket& bucket, const Tensor& shards) {
  int i = int(buckets_.size());
  FlatPart part = part_of(bucket, group_.rank(), group_.size());
  buckets_.push_back(std::make_unique<Bucket>());
  Bucket& b = *buckets_.back();
  b.shard = shards.narrow(0, part.compact, part.size());
  b.tensor =
      elastic_tensor({bucket.size()}, shards.dtype(), shards.device(), [this, i, alive = std::weak_ptr<char>(alive_)] {
        XY_CHECK(!alive.expired(), "the parameters of ZeRO 3 live as long as their optimizer");
        bring(i);
      });
  return b.tensor;
}

void ParameterWindow::start(int i) {
  Bucket& b = *buckets_[size_t(i)];
  if (b.memory.defined()) return;
  NoGrad guard;
  recorder::Tag tag("parameters " + std::to_string(i));
  b.memory = empty(b.tensor.shape(), b.tensor.dtype(), b.tensor.device());
  b.work = group_.all_gather(b.memory, b.shard);
  ++gathers_;
}

void ParameterWindow::bring(int i) {
  start(i);
  Bucket& b = *buckets_[size_t(i)];
  b.work.wait();
  b.tensor.storage()->attach(b.memory.storage());
  b.attached = true;
  b.version = b.tensor.version();
  attached_.push_back(i);
  if (last_ >= 0) follow_[{before_, last_}] = i;
  before_ = last_, last_ = i;
  for (int ahead = 0, a = before_, c = last_; ahead < kAhead; ++ahead) {
    auto next = follow_.find({a, c});
    if (next == follow_.end()) break;
    start(next->second);
    a = c, c = next->second;
  }
}

void ParameterWindow::release(int i) {
  Bucket& b = *buckets_[size_t(i)];
  b.work.wait();
  if (b.attached) b.tensor.storage()->let_go();
  b.attached = false;
  b.memory = {};
}

void ParameterWindow::trim() {
  for (; attached_.size() > kKeep; attached_.pop_front()) {
    keep(*buckets_[size_t(attached_.front())]);
    release(attached_.front());
  }
}

void ParameterWindow::drop() {
  for (size_t i = 0; i < buckets_.size(); ++i) release(int(i));
  attached_.clear();
  before_ = last_ = -1;
}

void ParameterWindow::keep() {
  for (int i : attached_) keep(*buckets_[size_t(i)]);
}

void ParameterWindow::keep(Bucket& b) {
  if (b.version == b.tensor.version()) return;
  NoGrad guard;
  int64_t n = b.shard.numel();
  b.shard.copy_(b.memory.narrow(0, group_.rank() * n, n));
  b.version = b.tensor.version();
}

}  // namespace xylem
