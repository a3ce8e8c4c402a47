// SPDX-License-Identifier: Apache-2.0
#include "models/optim/flat.h"

#include <algorithm>

#include "core/autograd/autograd.h"
#include "ops/ops.h"

namespace xylem {
namespace {

std::vector<FlatGroup> make_groups(const Module& module, const FlatOptions& options) {
  std::vector<NamedTensor> params = module.parameters();
  for (const NamedTensor& p : params) detail::note_member(p.tensor);
  std::erase_if(params, [](const NamedTensor& p) { return !p.tensor.requires_grad(); });
  XY_CHECK(!params.empty(), "the module has no parameter that requires a gradient");
  std::reverse(params.begin(), params.end());

  std::vector<FlatGroup> groups;
  for (size_t i = 0; i < params.size(); ++i) {
    const NamedTensor& p = params[i];
    XY_CHECK(p.tensor.device() == params[0].tensor.device(), "parameter '", p.name, "' is on ", p.tensor.device(),
             " but '", params[0].name, "' is on ", params[0].tensor.device(),
             "; move the module with to(device) first");
    ParamOptions of_group = options.group(p);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const FlatGroup& g) { return g.dtype == p.tensor.dtype() && g.options == of_group; });
    if (group == groups.end()) {
      group = groups.emplace(group);
      group->dtype = p.tensor.dtype();
      group->options = of_group;
    }
    group->slots.push_back({.name = p.name, .param = p.tensor, .order = int(i)});
  }
  return groups;
}

Tensors buffers_of(const Module& module) {
  Tensors all;
  for (const NamedTensor& b : module.buffers()) all.push_back(b.tensor);
  return all;
}

}  // namespace

FlatParams::FlatParams(const Module& module, const FlatOptions& options) {
  NoGrad guard;
  parallel_ =
      std::make_unique<DataParallel>(make_groups(module, options), buffers_of(module), options.parallel,
                                     BufferOptions{.f32_grads = options.f32_grads, .f32_masters = options.f32_masters});
}

std::vector<bool> FlatParams::trained() const {
  std::vector<bool> all;
  for (const FlatGroup& g : groups())
    for (const FlatSlot& s : g.slots) all.push_back(trained_now(s));
  return all;
}

const std::vector<FlatSpan>& FlatParams::spans() const {
  if (auto now = trained(); now != trained_) {
    spans_ = spans(trained_now);
    trained_ = std::move(now);
  }
  return spans_;
}

std::vector<FlatSpan> FlatParams::spans(const SlotFilter& wanted) const {
  std::vector<FlatSpan> all;
  for (const FlatRange& r : parallel_->ranges(wanted)) {
    const FlatGroup& g = groups()[r.group];
    all.push_back({.group = r.group,
                   .params = g.params.narrow(0, r.params, r.size),
                   .masters = g.masters.defined() ? g.masters.narrow(0, r.state, r.size) : Tensor(),
                   .grads = g.grads.narrow(0, r.grads, r.size),
                   .begin = r.state});
  }
  return all;
}

void FlatParams::refresh() const {
  parallel_->check_current();
  parallel_->take_values();
}

Tensors FlatParams::grads() const {
  Tensors all;
  for (const FlatGroup& g : groups()) all.push_back(g.grads);
  return all;
}

int64_t FlatParams::numel() const {
  int64_t n = 0;
  for (const FlatGroup& g : groups())
    for (const FlatSlot& s : g.slots) n += s.param.numel();
  return n;
}

// In f64, so that the norm as f32 does not depend on how the gradients are divided.
Tensor FlatParams::squared_norm() const {
  NoGrad guard;
  Tensors grads = parallel_->owned_grads();  // none where all is frozen
  Tensor sum = grads.empty() ? zeros({1}, f64, device()) : sum_of_squares(grads);
  if (parallel_->group().size() > 1) parallel_->group().all_reduce(sum).wait();
  return sum;
}

Tensors FlatParams::like(DType dtype, const std::optional<std::string>& rule) const {
  Tensors all;
  int64_t share = parallel_->zero() > 0 ? parallel_->group().size() : 1;
  for (const FlatGroup& g : groups())
    all.push_back(rule && g.options.rule != *rule
                      ? Tensor()
                      : zeros({g.numel / share}, g.dtype == f64 ? f64 : dtype, g.params.device()));
  return all;
}

Tensor FlatParams::view(const Tensor& flat, const FlatSlot& slot) {
  return flat.narrow(0, slot.offset, slot.param.numel()).view(slot.param.shape());
}

void FlatParams::name_parts(const std::string& prefix, const Tensors& buffers, std::vector<NamedTensor>& out) const {
  for (size_t i = 0; i < groups().size(); ++i)
    if (buffers[i].defined()) {
      XY_CHECK(buffers[i].numel() == groups()[i].numel, "with ZeRO no rank has the whole of '", prefix,
               "...'; ask for shards");
      for (const FlatSlot& s : groups()[i].slots) out.push_back({prefix + s.name, view(buffers[i], s)});
    }
}

void FlatParams::list_shards(const std::string& prefix, const Tensors& buffers, std::vector<TensorShard>& out) const {
  const Group& group = parallel_->group();
  for (size_t i = 0; i < groups().size(); ++i)
    if (buffers[i].defined()) xylem::list_shards(groups()[i], buffers[i], prefix, group.rank(), group.size(), out);
}

std::vector<TensorShard> FlatParams::shards() const {
  Tensors values;
  for (const FlatGroup& g : groups()) values.push_back(g.params);
  std::vector<TensorShard> out;
  list_shards("", values, out);
  return out;
}

}  // namespace xylem
