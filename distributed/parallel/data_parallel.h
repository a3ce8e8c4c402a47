// SPDX-License-Identifier: Apache-2.0
// Data parallel training: every rank computes the gradients of its share of the batch, and all apply their average.
// Gradients are reduced bucket by bucket while the backward pass still runs. ZeRO (Rajbhandari et al., SC 2020) keeps
// on each rank only its part of the optimizer state (stage 1), of the gradients too (2), and of the parameters (3).
// Optimizers drive this class: see models/optim/flat.h and docs/distributed.md.
//
// This folder: what replicas of a model share out (data_parallel, shard, and window for the parameters of stage 3),
// what they compute together (sync_batch_norm), and whether they are still equal (verify).
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "distributed/group/group.h"
#include "distributed/parallel/shard.h"

namespace xylem {

struct ParallelOptions {
  Group group = {};          // the ranks that share the work; of one: nothing is communicated
  int zero = 0;              // 0: every rank holds everything
  DType reduce_dtype = f32;  // bf16: f32 gradients are rounded for the journey, which halves it
  double bucket_mb = 25;     // parameters in a bucket
  double first_bucket_mb = 1;
  bool find_unused = false;  // parameters that a step did not use count as zero; otherwise they are an error
};

// Bytes that a rank keeps from step to step.
struct ParallelMemory {
  int64_t params = 0, grads = 0, masters = 0;
};

struct BufferOptions {
  bool f32_grads = true, f32_masters = true;  // of 16-bit parameters
};

class DataParallel {
 public:
  // Collective. `groups` come with their slots, whose parameters hold values; the rest is filled in here, and the
  // parameters become views into the buffers. All ranks start from the values of rank 0, of `state` (running
  // statistics) too. Throws, naming the first difference, if the ranks' parameters do not agree.
  DataParallel(std::vector<FlatGroup> groups, Tensors state, const ParallelOptions& options,
               const BufferOptions& buffers = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;

  const std::vector<FlatGroup>& groups() const;
  const Group& group() const;
  int zero() const;  // 0 for a group of one
  ParallelMemory memory() const;

  // Backward passes in the scope are followed by communication, or not: of several whose gradients accumulate only the
  // last one is.
  class [[nodiscard]] Sync {
   public:
    Sync(bool& flag, bool value) : flag_(flag), before_(std::exchange(flag, value)) {}
    ~Sync() { flag_ = before_; }
    Sync(const Sync&) = delete;

   private:
    bool& flag_;
    bool before_;
  };
  Sync sync_when(bool last);

  // A new step: gradients are overwritten.
  void zero_grad();
  // The gradients are the average over all ranks from here on; with ZeRO those that this rank owns. Returns the names
  // of the parameters that the step did not use; they count as zero.
  std::vector<std::string> finish();
  // This rank's gradients, disjoint from those of other ranks and together all, in the same pieces at every stage;
  // those of frozen parameters left out.
  Tensors owned_grads() const;
  // Where what this rank updates lies, of the parameters that `wanted` names.
  std::vector<FlatRange> ranges(const SlotFilter& wanted) const;

  // After this rank has changed the parameters it owns: everyone gets them. With ZeRO 3, when they are next used.
  void publish();
  // With ZeRO 3, before a CUDA graph that trains is captured or replayed: what was gathered does not outlive it.
  void forget();
  // Throws, with the remedy, if a parameter no longer lies in the buffers: its module was moved or cast, or another
  // optimizer has taken it over.
  void check_current() const;
  // Takes values that others have written into the parameters since then (loaded weights) into the masters, and with
  // ZeRO 3 this rank's part of them into the shards. Masters that a parameter still is the rounding of keep their
  // digits. Where nothing was written it compares numbers on the host.
  void take_values();
  void values_taken();     // what was written until here is in the masters: an optimizer has done it
  void broadcast_state();  // from rank 0: running statistics that ranks do not share

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace xylem
