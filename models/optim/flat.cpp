// SPDX-License-Identifier: Apache-2.0
#include "models/optim/flat.h"

#include <algorithm>

#include "core/autograd/autograd.h"
#include "ops/ops.h"

namespace xylem {
namespace {

std::vector<FlatGroup> make_groups(const Module& module, const FlatOptions& options) {
  std::vector<NamedTensor> params = module.parameters();
  std::erase_if(params, [](const NamedTensor& p) { return !p.tensor.requires_grad(); });
  XY_CHECK(!params.empty(), "the module has no parameter that requires a gradient");
  std::reverse(params.begin(), params.end());

  std::vector<FlatGroup> groups;
  for (size_t i = 0; i < params.size(); ++i) {
    const NamedTensor& p = params[i];
    XY_CHECK(p.tensor.device() == params[0].tensor.device(), "parameter '", p.name, "' is on ", p.tensor.device(),
             " but '", params[0].name, "' is on ", params[0].tensor.device(),
             "; move the module with to(device) first");
    bool decays = options.decays(p);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const FlatGroup& g) { return g.dtype == p.tensor.dtype() && g.decays == decays; });
    if (group == groups.end()) {
      group = groups.emplace(group);
      group->dtype = p.tensor.dtype();
      group->decays = decays;
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

std::vector<FlatSpan> make_spans(const DataParallel& parallel) {
  std::vector<FlatSpan> spans;
  int rank = parallel.group().rank(), world = parallel.group().size(), zero = parallel.zero();
  for (size_t i = 0; i < parallel.groups().size(); ++i) {
    const FlatGroup& g = parallel.groups()[i];
    if (zero == 0 || zero == 3) {
      spans.push_back({.group = i, .params = g.params, .masters = g.masters, .grads = g.grads});
      continue;
    }
    for (const FlatBucket& b : g.buckets) {
      FlatPart p = part_of(b, rank, world);
      spans.push_back({.group = i,
                       .params = g.params.narrow(0, p.begin, p.size()),
                       .masters = g.masters.defined() ? g.masters.narrow(0, p.compact, p.size()) : Tensor(),
                       .grads = g.grads.narrow(0, zero == 1 ? p.begin : p.compact, p.size()),
                       .begin = p.compact});
    }
  }
  return spans;
}

}  // namespace

FlatParams::FlatParams(const Module& module, const FlatOptions& options) {
  NoGrad guard;
  parallel_ =
      std::make_unique<DataParallel>(make_groups(module, options), buffers_of(module), options.parallel,
                                     BufferOptions{.f32_grads = options.f32_grads, .f32_masters = options.f32_masters});
  spans_ = make_spans(*parallel_);
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
  Tensor sum = sum_of_squares(parallel_->owned_grads());
  if (parallel_->group().size() > 1) parallel_->group().all_reduce(sum).wait();
  return sum;
}

Tensors FlatParams::like(DType dtype) const {
  Tensors all;
  int64_t share = parallel_->zero() > 0 ? parallel_->group().size() : 1;
  for (const FlatGroup& g : groups())
    all.push_back(zeros({g.numel / share}, g.dtype == f64 ? f64 : dtype, g.params.device()));
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
