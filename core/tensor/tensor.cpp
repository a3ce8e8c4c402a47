// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/tensor.h"

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <sstream>

#include "core/device/allocator.h"
#include "core/tensor/access.h"
#include "core/tensor/add_flat.h"
#include "core/tensor/copy.h"
#include "core/tensor/dispatch.h"
#include "core/tensor/grad_mode.h"

namespace xylem {

// ---- inspection ----------------------------------------------------------------------------------------------------

bool Tensor::is_contiguous() const {
  int64_t expected = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    int64_t n = shape()[i];
    if (n == 0) return true;
    if (n != 1 && strides()[i] != expected) return false;
    expected *= n;
  }
  return true;
}

bool Tensor::is_dense() const {
  const Shape& sizes = shape();
  int64_t expected = 1;
  for (int left = int(std::count_if(sizes.begin(), sizes.end(), [](int64_t n) { return n != 1; })); left > 0; --left) {
    int i = 0;
    while (i < rank() && (sizes[i] == 1 || strides()[i] != expected)) ++i;
    if (i == rank()) return false;
    expected *= sizes[i];
  }
  return numel() > 0;
}

int Tensor::dim_index(int dim) const {
  int n = shape().rank(), d = dim < 0 ? dim + n : dim;
  XY_CHECK(d >= 0 && d < n, "dimension ", dim, " is outside a tensor of shape ", shape());
  return d;
}

bool Tensor::is_pinned() const { return impl().storage->pinned(); }

std::string Tensor::str(int64_t max_values) const {
  if (!defined()) return "undefined";
  std::ostringstream out;
  out << name_of(dtype()) << shape() << " on " << device() << ": ";
  Tensor head = detach().reshape({-1}).slice(0, 0, max_values);
  auto print = [&](const auto& values) {
    for (auto v : values) out << v << ' ';
  };
  out << std::setprecision(6);
  is_float(dtype()) ? print(head.to_vector<double>()) : print(head.to_vector<int64_t>());
  if (numel() > max_values) out << "...";
  return out.str();
}

// ---- factories -----------------------------------------------------------------------------------------------------

namespace {
Tensor make(std::shared_ptr<Storage> storage, const Shape& shape, const Strides& strides, DType dtype) {
  auto impl = std::make_shared<TensorImpl>();
  impl->shape = shape;
  impl->strides = strides;
  impl->dtype = dtype;
  impl->storage = std::move(storage);
  return detail::Access::handle(std::move(impl));
}
void check_sizes(const Shape& shape) {
  for (int64_t d : shape) XY_CHECK(d >= 0, "negative size in shape ", shape);
}
}  // namespace

Tensor empty(const Shape& shape, DType dtype, Device device) {
  check_sizes(shape);
  return make(std::make_shared<Storage>(shape.numel() * size_of(dtype), device), shape, contiguous_strides(shape),
              dtype);
}
Tensor empty_pinned(const Shape& shape, DType dtype) {
  check_sizes(shape);
  return make(std::make_shared<Storage>(shape.numel() * size_of(dtype), Device::cpu(), true), shape,
              contiguous_strides(shape), dtype);
}
Tensor empty_strided(const Shape& shape, const Strides& strides, DType dtype, Device device) {
  check_sizes(shape);
  XY_CHECK(shape.rank() == strides.rank(), "strides ", strides, " do not fit shape ", shape);
  int64_t last = 0;
  for (int i = 0; i < shape.rank(); ++i) last += (shape[i] - 1) * strides[i];
  int64_t elements = shape.numel() == 0 ? 0 : last + 1;
  return make(std::make_shared<Storage>(elements * size_of(dtype), device), shape, strides, dtype);
}
Tensor empty_in_order_of(const Tensor& like, const Shape& shape, DType dtype, Device device) {
  XY_ASSERT(like.rank() == shape.rank(), like.shape(), " against ", shape);
  const Shape &sizes = like.shape(), &given = like.strides();
  int order[kMaxRank], n = shape.rank();
  for (int i = 0; i < n; ++i) {
    if (given[i] == 0 && sizes[i] > 1) return empty(shape, dtype, device);
    order[i] = i;
  }
  // Slowest first. A dimension of size 1 may have the stride of the one beside it and is then the inner one.
  std::stable_sort(order, order + n, [&](int a, int b) {
    return given[a] != given[b] ? given[a] > given[b] : (sizes[a] != 1 && sizes[b] == 1);
  });
  Strides strides = Shape::filled(n, 1);
  for (int i = n - 2; i >= 0; --i)
    strides[order[i]] = strides[order[i + 1]] * std::max<int64_t>(shape[order[i + 1]], 1);
  return empty_strided(shape, strides, dtype, device);
}
Tensor full(const Shape& shape, Scalar value, DType dtype, Device device) {
  Tensor t = empty(shape, dtype, device);
  return no_grad([&] { return t.fill_(value); });
}
Tensor arange(int64_t n, DType dtype, Device device) {
  Tensor t = empty({n}, i64);
  for (int64_t i = 0; i < n; ++i) t.data<int64_t>()[i] = i;
  return t.to(dtype).to(device);
}
Tensor from_bytes(const void* data, const Shape& shape, DType dtype, Device device) {
  Tensor t = empty(shape, dtype);
  if (t.nbytes() > 0) std::memcpy(t.raw(), data, t.nbytes());
  return t.to(device);
}
Tensor from_external(void* data, const Shape& shape, DType dtype, Device device, std::shared_ptr<void> owner) {
  check_sizes(shape);
  size_t bytes = shape.numel() * size_of(dtype);
  return make(std::make_shared<Storage>(data, bytes, device, std::move(owner)), shape, contiguous_strides(shape),
              dtype);
}

Tensor Tensor::detach() const {
  auto copy = std::make_shared<TensorImpl>();
  const TensorImpl& mine = impl();
  copy->shape = mine.shape;
  copy->strides = mine.strides;
  copy->offset = mine.offset;
  copy->dtype = mine.dtype;
  copy->storage = mine.storage;
  return Tensor(std::move(copy));
}

Tensor elastic_tensor(const Shape& shape, DType dtype, Device device, std::function<void()> bring) {
  check_sizes(shape);
  return make(Storage::elastic(size_t(shape.numel()) * size_of(dtype), device, std::move(bring)), shape,
              contiguous_strides(shape), dtype);
}

// ---- in-place ------------------------------------------------------------------------------------------------------

namespace {
void check_in_place(const Tensor& t) {
  XY_CHECK(!(grad_enabled() && t.requires_grad()), "in-place change of a tensor (shape ", t.shape(),
           ") whose gradient is being recorded; wrap it in xylem::no_grad or change a .clone()");
}
}  // namespace

const Tensor& Tensor::fill_(Scalar value) const {
  check_in_place(*this);
  if (numel() > 0) XY_ON_DEVICE(*this, fill, *this, value);
  bump_version();
  return *this;
}

const Tensor& Tensor::copy_(const Tensor& source, [[maybe_unused]] bool non_blocking) const {
  check_in_place(*this);
  NoGrad guard;
  Tensor from = source.shape() == shape() ? source : source.detach().expand(shape());
  if (numel() > 0) {
    if (device() == from.device()) {
      XY_ON_DEVICE(*this, copy, *this, from);
    } else {
#ifdef XY_WITH_CUDA
      // Between devices travel contiguous bytes of one type; casts and strides are handled on either end.
      Tensor packed = from.detach().to(dtype()).contiguous();
      if (is_contiguous()) {
        cuda::transfer(*this, packed, non_blocking);
      } else {
        Tensor landing = empty(shape(), dtype(), device());
        cuda::transfer(landing, packed, non_blocking);
        return copy_(landing);
      }
#endif
    }
  }
  bump_version();
  return *this;
}

const Tensor& Tensor::add_(const Tensor& other, double scale) const {
  check_in_place(*this);
  XY_CHECK(other.shape() == shape(), "add_: shapes ", shape(), " and ", other.shape(), " differ");
  XY_CHECK(other.device() == device(), "add_: tensors on ", device(), " and ", other.device());
  if (numel() > 0 && scale == 1 && can_add_flat(*this, *this, other))
    add_flat(*this, *this, other);
  else if (numel() > 0)
    XY_ON_DEVICE(*this, accumulate, *this, other, scale);
  bump_version();
  return *this;
}

}  // namespace xylem
