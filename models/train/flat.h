// SPDX-License-Identifier: Apache-2.0
// FlatParams: the parameters of a module laid out in a few long buffers, so that optimizers, clipping and collectives
// work on spans instead of on hundreds of tensors.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "models/nn/module.h"

namespace xylem {

struct FlatOptions {
  // Which parameters weight decay applies to. Gains and biases (one dimension) are left alone by default.
  std::function<bool(const NamedTensor&)> decays = [](const NamedTensor& p) { return p.tensor.rank() > 1; };
  bool f32_grads = true;    // gradients of 16-bit parameters are accumulated in f32
  bool f32_masters = true;  // 16-bit parameters keep an f32 copy that the optimizer updates
};

struct FlatSlot {
  std::string name;
  int64_t offset = 0;  // in elements, a multiple of FlatParams::kAlign
  Tensor param;        // a view into the group's params
};

// The parameters of one type and one decay setting. All buffers are one-dimensional with the same layout; the gaps
// between slots hold zeros.
struct FlatGroup {
  DType dtype = f32;
  bool decays = true;
  Tensor params, grads, masters;  // masters is undefined where params are wide enough themselves
  std::vector<FlatSlot> slots;    // the last registered parameter first: about the order in which gradients arrive
  const Tensor& values() const { return masters.defined() ? masters : params; }  // the parameters at full precision
};

class FlatParams {
 public:
  static constexpr int64_t kAlign = 64;

  // Moves every trained parameter of `module` into the buffers, values kept; its handles stay valid. Call it after
  // module.to(...): moving or casting the module afterwards takes the parameters out of the buffers again.
  FlatParams(const Module& module, const FlatOptions& options = {});  // NOLINT: AdamW opt(module, ...) is meant to work
  FlatParams(FlatParams&&) = default;
  FlatParams(const FlatParams&) = delete;

  const std::vector<FlatGroup>& groups() const { return groups_; }
  Device device() const { return groups_.front().params.device(); }
  Tensors grads() const;  // one per group
  int64_t numel() const;  // parameters, gaps not counted

  // The next backward pass overwrites the gradients; nothing is filled.
  void zero_grad() const;
  // Gives parameters that no backward pass has reached since zero_grad() a gradient of zero, and returns their names.
  std::vector<std::string> finish_grads() const;
  // Takes the parameters' present values into the masters, after weights were loaded.
  void sync_masters() const;

  // One zero-filled buffer per group, of type `dtype` (f64 for f64 parameters).
  Tensors like(DType dtype) const;
  // The part of `flat`, a buffer laid out like `group`, that belongs to `slot`.
  static Tensor view(const Tensor& flat, const FlatSlot& slot);
  // Names every part of one buffer per group: {prefix + parameter name, view}.
  void name_parts(const std::string& prefix, const Tensors& buffers, std::vector<NamedTensor>& out) const;

 private:
  std::vector<FlatGroup> groups_;
};

}  // namespace xylem
