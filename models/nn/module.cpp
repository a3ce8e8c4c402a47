// SPDX-License-Identifier: Apache-2.0
#include "models/nn/module.h"

#include <functional>
#include <unordered_map>
#include <unordered_set>

#include "core/autograd/autograd.h"
#include "models/nn/lazy.h"

namespace xylem {
namespace {

// Calls f(name, member, owner) for every tensor below `module`, parents before children, as often as it is reached.
void walk(Module& module, const std::string& prefix,
          const std::function<void(const std::string&, const Member&, const Module&)>& f) {
  std::vector<Member> members;
  module.list_members(members);
  for (const Member& m : members) {
    if (m.module)
      walk(*m.module, prefix + m.name + ".", f);
    else
      f(prefix + m.name, m, module);
  }
}

// The walk only reads; list_members is not const because the members it hands out are not.
Module& unconst(const Module& module) { return const_cast<Module&>(module); }

std::vector<NamedTensor> collect(const Module& module, bool parameters, bool buffers) {
  std::vector<NamedTensor> found;
  std::unordered_set<const TensorImpl*> seen;
  walk(unconst(module), "", [&](const std::string& name, const Member& m, const Module&) {
    if ((m.is_buffer ? buffers : parameters) && seen.insert(m.tensor->ptr().get()).second)
      found.push_back({name, *m.tensor});
  });
  return found;
}

void replace_data(const Tensor& t, const Tensor& value) {
  t.set_data(value);
  if (t.grad().defined()) t.set_grad({});
}

std::string join(const std::vector<std::string>& lines, const char* title) {
  if (lines.empty()) return "";
  constexpr size_t kShown = 40;
  std::string text = std::string("\n  ") + title + " (" + std::to_string(lines.size()) + "):";
  for (size_t i = 0; i < std::min(lines.size(), kShown); ++i) text += "\n    " + lines[i];
  if (lines.size() > kShown) text += "\n    ... and " + std::to_string(lines.size() - kShown) + " more";
  return text;
}

// PyTorch's batch norm counts batches, which only its momentum = None mode reads.
bool is_batch_counter(std::string_view name) { return name.ends_with("num_batches_tracked"); }

}  // namespace

std::vector<NamedTensor> Module::parameters() const { return collect(*this, true, false); }
std::vector<NamedTensor> Module::buffers() const { return collect(*this, false, true); }

std::vector<std::pair<std::string, Module*>> Module::modules() {
  std::vector<std::pair<std::string, Module*>> found;
  std::function<void(const std::string&, Module&)> visit = [&](const std::string& name, Module& module) {
    found.emplace_back(name, &module);
    std::vector<Member> members;
    module.list_members(members);
    for (const Member& m : members)
      if (m.module) visit(name.empty() ? m.name : name + "." + m.name, *m.module);
  };
  visit("", *this);
  return found;
}

int64_t Module::num_parameters() const {
  int64_t n = 0;
  for (const NamedTensor& p : parameters()) n += p.tensor.numel();
  return n;
}

void Module::to(Device device) {
  NoGrad guard;
  for (const NamedTensor& t : state_dict(*this))
    if (t.tensor.device() != device) replace_data(t.tensor, t.tensor.detach().to(device));
}

void Module::to(DType dtype) {
  XY_CHECK(is_float(dtype), "a module becomes f64, f32, f16 or bf16, not ", name_of(dtype));
  NoGrad guard;
  walk(*this, "", [&](const std::string&, const Member& m, const Module& owner) {
    DType wanted = owner.keeps_f32() && (is_half(dtype) || m.is_buffer) ? f32 : dtype;
    if (is_float(m.tensor->dtype()) && m.tensor->dtype() != wanted)
      replace_data(*m.tensor, m.tensor->detach().to(wanted));
  });
}

void Module::train(bool on) {
  for (auto& [name, module] : modules()) module->training_ = on;
}

void Module::requires_grad(bool on) {
  for (const NamedTensor& p : parameters()) p.tensor.set_requires_grad(on);
}

void Module::zero_grad() {
  for (const NamedTensor& p : parameters()) p.tensor.zero_grad();
}

std::vector<NamedTensor> state_dict(const Module& module) { return collect(module, true, true); }

namespace {

// Which of the given tensors belongs to which of the module's.
std::vector<std::pair<Tensor, Tensor>> match(const Module& module, const std::vector<NamedTensor>& tensors,
                                             bool strict) {
  std::unordered_map<std::string, Tensor> given;
  for (const NamedTensor& t : tensors)
    XY_CHECK(given.emplace(t.name, t.tensor).second, "the state dict holds '", t.name, "' twice");

  std::vector<std::pair<Tensor, Tensor>> copies;  // destination, source
  std::unordered_set<std::string> known;
  std::unordered_map<const TensorImpl*, std::string> unfilled;  // tensors that no name has provided yet
  std::vector<std::string> missing, unexpected, misshaped;
  std::vector<const TensorImpl*> order;
  std::unordered_set<const TensorImpl*> filled;
  walk(unconst(module), "", [&](const std::string& name, const Member& m, const Module&) {
    known.insert(name);
    const TensorImpl* id = m.tensor->ptr().get();
    if (unfilled.emplace(id, name).second) order.push_back(id);
    auto it = given.find(name);
    if (it == given.end() || filled.contains(id)) return;
    filled.insert(id);
    if (it->second.shape() != m.tensor->shape())
      misshaped.push_back(name + ": the model has " + m.tensor->shape().str() + ", the state dict " +
                          it->second.shape().str());
    else
      copies.emplace_back(*m.tensor, it->second);
  });
  for (const TensorImpl* id : order)
    if (!filled.contains(id)) missing.push_back(unfilled[id]);
  for (const NamedTensor& t : tensors)
    if (!known.contains(t.name) && !is_batch_counter(t.name)) unexpected.push_back(t.name);
  if (!strict) missing.clear(), unexpected.clear();
  XY_CHECK(missing.empty() && unexpected.empty() && misshaped.empty(), "the state dict does not fit the model",
           join(missing, "missing"), join(unexpected, "unexpected"), join(misshaped, "other shape"));
  return copies;
}

}  // namespace

void load_state_dict(Module& module, const std::vector<NamedTensor>& tensors, bool strict) {
  auto copies = match(module, tensors, strict);
  NoGrad guard;
  for (auto& [to, from] : copies) to.copy_(from);
}

void adopt_state_dict(Module& module, const std::vector<NamedTensor>& tensors) {
  for (auto& [to, from] : match(module, tensors, true)) {
    const DType dtype = to.dtype();
    replace_data(to, from.dtype() == dtype ? from : lazily(from, from.shape(), dtype, [dtype](const Tensor& t) {
                   return t.detach().to(dtype);
                 }));
  }
}

}  // namespace xylem
