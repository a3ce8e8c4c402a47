// SPDX-License-Identifier: Apache-2.0
#include "models/nn/lazy.h"

#include <utility>

#include "core/autograd/unobserved.h"

namespace xylem {
namespace {

constexpr size_t kSmall = 64 << 10;  // bytes of tensors that are not worth it

thread_local std::vector<std::weak_ptr<Storage>> held;
thread_local int making = 0;  // values of one lazy tensor may be made from those of another

void bring(const std::shared_ptr<Storage>& storage, const Shape& shape, DType dtype,
           const std::function<Tensor()>& make) {
  struct Making {
    Making() { ++making; }
    ~Making() { --making; }
  } guard;
  Unobserved unobserved;
  NoGrad no_grad;
  Tensor t = make();
  XY_CHECK(t.shape() == shape && t.dtype() == dtype && !t.is_cuda(), "a lazy tensor should be ", name_of(dtype), shape,
           " on the CPU, but was made as ", name_of(t.dtype()), t.shape(), " on ", t.device());
  if (!t.is_contiguous() || t.offset() != 0) t = t.clone();
  storage->attach(t.storage());
  held.push_back(storage);
}

}  // namespace

Tensor lazy_tensor(const Shape& shape, DType dtype, std::function<Tensor()> make) {
  auto self = std::make_shared<std::weak_ptr<Storage>>();
  Tensor t = elastic_tensor(shape, dtype, Device::cpu(),
                            [self, shape, dtype, make = std::move(make)] { bring(self->lock(), shape, dtype, make); });
  *self = t.storage();
  return t;
}

Tensor lazily(const Tensor& source, const Shape& shape, DType dtype, std::function<Tensor(const Tensor&)> f) {
  if (size_t(shape.numel()) * size_of(dtype) < kSmall) return f(source);
  return lazy_tensor(shape, dtype, [source, f = std::move(f)] { return f(source); });
}

void forget_lazy_values() {
  if (making > 0) return;
  for (const std::weak_ptr<Storage>& one : std::exchange(held, {}))
    if (auto storage = one.lock()) storage->let_go();
}

}  // namespace xylem
