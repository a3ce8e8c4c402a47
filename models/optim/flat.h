// SPDX-License-Identifier: Apache-2.0
// FlatParams: the parameters of a module laid out in a few long buffers, so that optimizers, clipping and collectives
// work on spans instead of on hundreds of tensors.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "distributed/parallel/data_parallel.h"
#include "models/nn/module.h"

namespace xylem {

inline ParamOptions default_group(const NamedTensor& p) {
  return p.tensor.rank() > 1 ? ParamOptions{} : ParamOptions{.weight_decay = 0};
}

struct FlatOptions {
  // The group of a parameter: what the optimizer does otherwise with it. By default gains and biases (one dimension)
  // do not decay.
  std::function<ParamOptions(const NamedTensor&)> group = default_group;
  bool f32_grads = true;          // gradients of 16-bit parameters are accumulated in f32
  bool f32_masters = true;        // 16-bit parameters keep an f32 copy that the optimizer updates
  ParallelOptions parallel = {};  // ranks that train together
};

// What one optimizer kernel updates: everything of a group, or this rank's part of a bucket, between frozen parameters.
struct FlatSpan {
  size_t group = 0;
  Tensor params, masters, grads;  // masters may be undefined
  int64_t begin = 0;              // of its state in a buffer made by FlatParams::like()
  const Tensor& values() const { return masters.defined() ? masters : params; }
  Tensor state(const Tensor& buffer) const { return buffer.narrow(0, begin, params.numel()); }
};

class FlatParams {
 public:
  static constexpr int64_t kAlign = 64;  // slots begin at multiples of it

  // Moves every trained parameter of `module` into the buffers, values kept; its handles stay valid. Call it after
  // module.to(...): moving or casting the module afterwards takes the parameters out of the buffers again. Collective
  // over options.parallel.group, whose ranks all take the values of rank 0.
  FlatParams(const Module& module, const FlatOptions& options = {});  // NOLINT: AdamW opt(module, ...) is meant to work
  FlatParams(FlatParams&&) = default;
  FlatParams(const FlatParams&) = delete;

  const std::vector<FlatGroup>& groups() const { return parallel_->groups(); }
  // What this rank updates now: frozen parameters (requires_grad off) are left out until they are no longer.
  const std::vector<FlatSpan>& spans() const;
  std::vector<FlatSpan> spans(const SlotFilter& wanted) const;  // of the slots that `wanted` names, frozen ones too
  DataParallel& parallel() const { return *parallel_; }
  Device device() const { return groups().front().params.device(); }
  Tensors grads() const;  // one per group
  int64_t numel() const;  // parameters, gaps not counted

  // The next backward pass overwrites the gradients; nothing is filled.
  void zero_grad() const { parallel_->zero_grad(); }
  // The gradients are complete after it, and the average over the ranks. Parameters that no backward pass has reached
  // since zero_grad() get a gradient of zero; their names are returned.
  std::vector<std::string> finish_grads() const { return parallel_->finish(); }
  // The sum of the squares of all gradients, on every rank: f64 [1] on the device.
  Tensor squared_norm() const;
  // What the optimizer keeps beside the parameters follows them: values written into them since the last step (loaded
  // weights, clamped ones) go into masters and shards. Throws if the parameters no longer lie in these buffers. Every
  // step does it; it costs a comparison per parameter on the host, unless something has changed.
  void refresh() const;
  // By slot, group after group: whether the parameter is trained now (not frozen).
  std::vector<bool> trained() const;

  // Buffers of the optimizer's state, zero-filled: one per group, of type `dtype` (f64 for f64 parameters), for the
  // parameters that this rank updates; undefined for groups that `rule` leaves out.
  Tensors like(DType dtype, const std::optional<std::string>& rule = {}) const;
  // The part of `flat`, a whole buffer laid out like `group`, that belongs to `slot`.
  static Tensor view(const Tensor& flat, const FlatSlot& slot);
  // Names every part of one whole buffer per group: {prefix + parameter name, view}. Throws if ranks share the buffers.
  void name_parts(const std::string& prefix, const Tensors& buffers, std::vector<NamedTensor>& out) const;
  // The same in pieces, for any buffers. See TensorShard.
  void list_shards(const std::string& prefix, const Tensors& buffers, std::vector<TensorShard>& out) const;
  // The parameters themselves. After copying into them: parallel().publish().
  std::vector<TensorShard> shards() const;

 private:
  std::unique_ptr<DataParallel> parallel_;
  mutable std::vector<bool> trained_;  // when spans_ were made
  mutable std::vector<FlatSpan> spans_;
};

}  // namespace xylem
