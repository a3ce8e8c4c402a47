// SPDX-License-Identifier: Apache-2.0
// The parameters of ZeRO 3, of which a rank keeps only its part.
//
// Note [Window]: a bucket's tensors have a storage whose memory comes and goes. Whatever reads a parameter first, in
// forward, backward or evaluation, finds it away and gathers it: no layer knows of this, and tied weights need no care.
// A bucket is released after an operation, never during one, when a few others have been read since. Which bucket
// follows which two is remembered, and the next ones are gathered ahead; as all ranks run the same operations, all
// gather in the same order.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/autograd/autograd.h"
#include "distributed/group/group.h"
#include "distributed/parallel/shard.h"

namespace xylem {

class ParameterWindow {
 public:
  explicit ParameterWindow(const Group& group);
  // A bucket of the compact buffer `shards`; returns its tensor. Buckets are numbered in the order of these calls.
  Tensor add(const FlatBucket& bucket, const Tensor& shards);
  // Forgets all gathered values.
  void drop();
  // Takes this rank's part of values that were written into the tensors (loaded weights) into the shards. Also done
  // when a changed bucket is released.
  void keep();
  int64_t gathers() const { return gathers_; }

 private:
  struct Bucket {
    Tensor tensor, shard;  // the whole, memory that comes and goes; this rank's part
    Tensor memory;         // being gathered, or attached
    Work work;
    bool attached = false;
    uint32_t version = 0;  // when its memory came
  };
  void start(int i);
  void bring(int i);
  void release(int i);
  void trim();
  void keep(Bucket& b);

  Group group_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::deque<int> attached_;                   // oldest first
  std::map<std::pair<int, int>, int> follow_;  // after these two comes
  int before_ = -1, last_ = -1;
  int64_t gathers_ = 0;
  std::shared_ptr<char> alive_ = std::make_shared<char>();
  AfterOp after_op_;
};

}  // namespace xylem
