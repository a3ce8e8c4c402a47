// SPDX-License-Identifier: Apache-2.0
// How the parameters of a model lie in long buffers and how these are divided among the ranks of a group.
//
// Note [Buckets and shards]: a flat buffer is cut into buckets, the units in which gradients are reduced and parameters
// gathered. A bucket begins and ends between parameters and is padded until the number of ranks divides it; rank r owns
// part r of every bucket, so that one reduce_scatter or all_gather serves it, whatever the shapes and the number of
// ranks. A parameter may lie in the parts of several ranks. What a rank keeps of its own parts alone (optimizer state
// from ZeRO 1 on, gradients from 2, parameters in 3) lies in compact buffers: its parts one behind the other.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace xylem {

// What an optimizer does otherwise with some of its parameters.
struct ParamOptions {
  double lr = 1;                                 // times the optimizer's learning rate
  std::optional<double> weight_decay = {};       // instead of the optimizer's
  std::optional<double> beta1 = {}, beta2 = {};  // the same, of optimizers that have such
  std::string rule = {};  // of optimizers that have several (Muon); "": as the optimizer sees fit
  bool operator==(const ParamOptions&) const = default;
  std::string str() const;  // "lr * 0.1, weight_decay 0", or "" where nothing differs
};

// One parameter's place in a flat buffer.
struct FlatSlot {
  std::string name;
  int64_t offset = 0;  // in elements
  Tensor param = {};   // a view into the buffer
  int order = 0;       // among all parameters of the model, the one whose gradient is expected first at 0
};

// Elements [begin, end) of a flat buffer, which hold the slots [first_slot, end_slot).
struct FlatBucket {
  int64_t begin = 0, end = 0;
  size_t first_slot = 0, end_slot = 0;
  Tensor params = {},
         grads = {};  // [end - begin]: views into the group's buffers, or memory that comes and goes (ZeRO)
  int64_t size() const { return end - begin; }
};

// The parameters of one type that are treated alike. All buffers are one-dimensional; the gaps between slots hold
// zeros. A whole buffer has numel elements, a compact one numel / world.
struct FlatGroup {
  DType dtype = f32;
  ParamOptions options = {};
  int64_t numel = 0;                // a multiple of the number of ranks
  std::vector<FlatSlot> slots;      // the last registered parameter first: about the order in which gradients arrive
  std::vector<FlatBucket> buckets;  // from 0 to numel without gaps
  Tensor params;                    // whole; compact with ZeRO 3
  Tensor grads;                     // whole; compact with ZeRO 2 and 3
  Tensor masters;                   // undefined where params are wide enough themselves; compact with ZeRO 1 and up
  const Tensor& values() const { return masters.defined() ? masters : params; }  // the parameters at full precision
};

// Part `rank` of `world` of a bucket, as a range of the whole buffer, and where it lies in that rank's compact buffers.
struct FlatPart {
  int64_t begin = 0, end = 0, compact = 0;
  int64_t size() const { return end - begin; }
};
inline FlatPart part_of(const FlatBucket& bucket, int rank, int world) {
  int64_t n = bucket.size() / world, begin = bucket.begin + rank * n;
  return {begin, begin + n, bucket.begin / world};
}

// A stretch of a group's parameters that one rank updates, and where it begins in each of the buffers.
struct FlatRange {
  size_t group = 0;
  int64_t size = 0;
  int64_t params = 0, grads = 0, state = 0;  // state: masters, moments
  int64_t begin = 0;                         // in a whole buffer
};
// What rank `rank` of `world` updates at a ZeRO stage, of the slots that `wanted` names: as few stretches as possible.
using SlotFilter = std::function<bool(const FlatSlot&)>;
inline bool trained_now(const FlatSlot& slot) { return slot.param.requires_grad(); }  // and not frozen
inline bool any_slot(const FlatSlot&) { return true; }
std::vector<FlatRange> owned_ranges(const std::vector<FlatGroup>& groups, int rank, int world, int zero,
                                    const SlotFilter& wanted);

// The stretches [begin, end) of the whole buffer that lie in `part` and belong to slots that `wanted` names; a slot
// reaches to the next one's begin.
std::vector<FlatPart> stretches(const FlatGroup& group, const FlatBucket& bucket, const FlatPart& part,
                                const SlotFilter& wanted);

// Elements [begin, begin + part.numel()) of a named tensor in row-major order, as they lie in this rank's memory.
// Checkpoints are made of these: the rank `owner` writes the piece, and whoever lists a piece reads it back.
struct TensorShard {
  std::string name;
  Shape shape;  // of the whole tensor
  int64_t begin = 0;
  Tensor part;  // one-dimensional, contiguous; copying into it restores the state
  int owner = 0;
  bool everywhere = false;  // every rank has it; otherwise its owner alone
};
// The pieces of `buffer` (laid out like `group`, whole or compact) on rank `rank` of `world`, as
// {prefix + parameter name, ...}: all of a whole buffer, this rank's parts of a compact one.
void list_shards(const FlatGroup& group, const Tensor& buffer, const std::string& prefix, int rank, int world,
                 std::vector<TensorShard>& out);

// Sets the slots' offsets, the buckets and numel of every group. A bucket is closed once it holds `bucket_bytes` of
// parameters; the one whose gradients come first already at `first_bytes`, so that communication starts early.
void cut_buckets(std::vector<FlatGroup>& groups, int world, int64_t first_bytes, int64_t bucket_bytes);

}  // namespace xylem
