// SPDX-License-Identifier: Apache-2.0
#include "models/train/flat.h"

#include <algorithm>

#include "core/autograd/autograd.h"

namespace xylem {

FlatParams::FlatParams(const Module& module, const FlatOptions& options) {
  NoGrad guard;
  std::vector<NamedTensor> params = module.parameters();
  std::erase_if(params, [](const NamedTensor& p) { return !p.tensor.requires_grad(); });
  XY_CHECK(!params.empty(), "the module has no parameter that requires a gradient");
  std::reverse(params.begin(), params.end());

  std::vector<int64_t> sizes;
  for (const NamedTensor& p : params) {
    XY_CHECK(p.tensor.device() == params[0].tensor.device(), "parameter '", p.name, "' is on ", p.tensor.device(),
             " but '", params[0].name, "' is on ", params[0].tensor.device(),
             "; move the module with to(device) first");
    bool decays = options.decays(p);
    auto group = std::find_if(groups_.begin(), groups_.end(),
                              [&](const FlatGroup& g) { return g.dtype == p.tensor.dtype() && g.decays == decays; });
    if (group == groups_.end()) {
      group = groups_.emplace(group);
      group->dtype = p.tensor.dtype();
      group->decays = decays;
      sizes.push_back(0);
    }
    int64_t& size = sizes[group - groups_.begin()];
    group->slots.push_back({p.name, size, p.tensor});
    size += (p.tensor.numel() + kAlign - 1) / kAlign * kAlign;
  }

  for (size_t i = 0; i < groups_.size(); ++i) {
    FlatGroup& g = groups_[i];
    Device device = g.slots[0].param.device();
    g.params = zeros({sizes[i]}, g.dtype, device);
    g.grads = zeros({sizes[i]}, is_half(g.dtype) && options.f32_grads ? f32 : g.dtype, device);
    if (is_half(g.dtype) && options.f32_masters) g.masters = zeros({sizes[i]}, f32, device);
    for (const FlatSlot& s : g.slots) {
      Tensor home = view(g.params, s);
      home.copy_(s.param);
      s.param.set_data(home);
      s.param.set_grad(view(g.grads, s));
      s.param.zero_grad();
    }
  }
  sync_masters();
}

Tensors FlatParams::grads() const {
  Tensors all;
  for (const FlatGroup& g : groups_) all.push_back(g.grads);
  return all;
}

int64_t FlatParams::numel() const {
  int64_t n = 0;
  for (const FlatGroup& g : groups_)
    for (const FlatSlot& s : g.slots) n += s.param.numel();
  return n;
}

void FlatParams::zero_grad() const {
  for (const FlatGroup& g : groups_)
    for (const FlatSlot& s : g.slots) s.param.zero_grad();
}

std::vector<std::string> FlatParams::finish_grads() const {
  std::vector<std::string> unused;
  for (const FlatGroup& g : groups_)
    for (const FlatSlot& s : g.slots)
      if (s.param.grad_stale()) {
        Tensor part = view(g.grads, s);
        part.zero_();
        s.param.set_grad(part);
        unused.push_back(s.name);
      }
  return unused;
}

void FlatParams::sync_masters() const {
  for (const FlatGroup& g : groups_)
    if (g.masters.defined()) g.masters.copy_(g.params);
}

Tensors FlatParams::like(DType dtype) const {
  Tensors all;
  for (const FlatGroup& g : groups_) all.push_back(zeros(g.params.shape(), g.dtype == f64 ? f64 : dtype, device()));
  return all;
}

Tensor FlatParams::view(const Tensor& flat, const FlatSlot& slot) {
  return flat.narrow(0, slot.offset, slot.param.numel()).view(slot.param.shape());
}

void FlatParams::name_parts(const std::string& prefix, const Tensors& buffers, std::vector<NamedTensor>& out) const {
  for (size_t i = 0; i < groups_.size(); ++i)
    if (buffers[i].defined())
      for (const FlatSlot& s : groups_[i].slots) out.push_back({prefix + s.name, view(buffers[i], s)});
}

}  // namespace xylem
