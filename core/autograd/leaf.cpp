// SPDX-License-Identifier: Apache-2.0
// What a tensor knows of its gradient.
#include "core/autograd/node.h"

namespace xylem {

TensorImpl::TensorImpl() = default;
TensorImpl::~TensorImpl() = default;

bool Tensor::requires_grad() const { return impl().autograd && impl().autograd->requires_grad; }
bool Tensor::is_leaf() const { return !impl().autograd || !impl().autograd->node; }

const Tensor& Tensor::set_requires_grad(bool on) const {
  XY_CHECK(is_leaf(), "only leaves can be told whether they require a gradient; detach() the tensor first");
  XY_CHECK(!on || is_float(dtype()), "a ", dtype(), " tensor cannot require a gradient");
  meta_of(*this).requires_grad = on;
  return *this;
}
Tensor Tensor::grad() const { return impl().autograd ? impl().autograd->grad : Tensor(); }
void Tensor::set_grad(const Tensor& g) const {
  if (g.defined())
    XY_CHECK(g.shape() == shape() && g.device() == device(), "set_grad: gradient ", g.shape(), " on ", g.device(),
             " for a tensor ", shape(), " on ", device());
  meta_of(*this).grad = g;
  meta_of(*this).grad_stale = false;
}
void Tensor::zero_grad() const {
  if (impl().autograd) impl().autograd->grad_stale = true;
}
bool Tensor::grad_stale() const {
  return !impl().autograd || !impl().autograd->grad.defined() || impl().autograd->grad_stale;
}

void Tensor::backward(const Tensor& grad, bool retain_graph, bool create_graph) const {
  xylem::backward({*this}, {grad}, retain_graph, create_graph);
}
void Tensor::register_hook(std::function<Tensor(const Tensor&)> hook) const {
  XY_CHECK(requires_grad(), "register_hook: the tensor does not require a gradient");
  AutogradMeta& meta = meta_of(*this);
  if (meta.node)
    meta.node->outputs[meta.output_index].hooks.push_back(std::move(hook));
  else
    meta.hooks.push_back(std::move(hook));
}
void Tensor::register_grad_ready(std::function<void(const Tensor&)> ready) const {
  XY_CHECK(is_leaf() && requires_grad(), "register_grad_ready: only leaves that require a gradient");
  meta_of(*this).on_ready.push_back(std::move(ready));
}

void Tensor::set_data(const Tensor& other) const {
  TensorImpl& mine = impl();
  const TensorImpl& theirs = other.impl();
  mine.shape = theirs.shape;
  mine.strides = theirs.strides;
  mine.offset = theirs.offset;
  mine.dtype = theirs.dtype;
  mine.storage = theirs.storage;
  if (mine.autograd) mine.autograd->accumulator.reset();  // it remembers the old dtype and device
}

}  // namespace xylem
