// SPDX-License-Identifier: Apache-2.0
// Tensor: a strided, reference-counted array on one device. Copying a Tensor copies a handle, not the data.
//
// A Tensor is to its values what a pointer is to what it points to: const forbids that the handle becomes another
// tensor's, not that values change. So in-place methods are const, as they must be for handles that only pass by:
// x.select(0, 1).fill_(9) writes through a temporary, and kernels take their outputs by const Tensor&. Who must not
// write is told by autograd, which refuses in-place changes of what it still needs.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/tensor/dtype.h"
#include "core/tensor/scalar.h"
#include "core/tensor/shape.h"

namespace xylem {

class Tensor;
using Tensors = std::vector<Tensor>;
struct AutogradMeta;  // core/autograd/node.h

// Reference-counted memory shared by a tensor and its views.
class Storage {
 public:
  Storage(size_t bytes, Device device, bool pinned = false);
  Storage(void* external, size_t bytes, Device device, std::shared_ptr<void> owner);  // memory owned by someone else
  ~Storage();
  Storage(const Storage&) = delete;

  // Memory that comes and goes under tensors that stay (parameters and gradients of ZeRO). While it is away, the first
  // access calls `bring`, which must attach() memory of at least `bytes`.
  static std::shared_ptr<Storage> elastic(size_t bytes, Device device, std::function<void()> bring);
  void attach(std::shared_ptr<Storage> memory);
  void let_go();  // the memory goes back to whom it belongs
  void* address() { return data_ ? data_ : fetch(); }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  uint32_t version() const { return version_; }  // raised by every in-place change
  void bump_version() { ++version_; }            // autograd asks for it before it reads a saved tensor
  bool pinned() const;
  void used_on(Stream stream);  // pinned: the memory is not handed out again before what `stream` has to do is done

 private:
  struct Handle;
  void* fetch();

  void* data_ = nullptr;
  size_t bytes_ = 0;
  Device device_;
  uint32_t version_ = 0;
  std::unique_ptr<Handle> handle_;
};

namespace detail {
struct Access;  // core/tensor/access.h
}

// What a handle points to. Only the core sees inside; to others its address tells tensors apart.
struct TensorImpl {
  Shape shape;
  Strides strides;
  int64_t offset = 0;  // in elements
  DType dtype = f32;
  std::shared_ptr<Storage> storage;
  std::unique_ptr<AutogradMeta> autograd;
  TensorImpl();
  ~TensorImpl();
};

class Tensor {
 public:
  Tensor() = default;  // undefined: no shape, no data

  bool defined() const { return impl_ != nullptr; }
  explicit operator bool() const { return defined(); }
  const Shape& shape() const { return impl().shape; }
  const Strides& strides() const { return impl().strides; }
  int rank() const { return shape().rank(); }
  int64_t size(int dim) const { return shape()[dim_index(dim)]; }  // negative dims count from the end
  int64_t stride(int dim) const { return strides()[dim_index(dim)]; }
  int64_t numel() const { return shape().numel(); }
  size_t nbytes() const { return static_cast<size_t>(numel()) * size_of(dtype()); }
  DType dtype() const { return impl().dtype; }
  Device device() const { return impl().storage->device(); }
  bool is_cuda() const { return device().is_cuda(); }
  bool is_contiguous() const;
  bool is_dense() const;  // the elements fill their memory without gaps or repetition, in some order of dimensions
  int dim_index(int dim) const;  // 0 <= result < rank(); throws naming the shape

  const std::shared_ptr<Storage>& storage() const { return impl().storage; }
  int64_t offset() const { return impl().offset; }  // of the first element in the storage, in elements
  void* raw() const {
    return static_cast<char*>(impl().storage->address()) + impl().offset * int64_t(size_of(dtype()));
  }
  template <class T>
  T* data() const {
    XY_CHECK(dtype_of<std::remove_const_t<T>> == dtype(), "the tensor holds ", name_of(dtype()), ", not ",
             name_of(dtype_of<std::remove_const_t<T>>));
    return static_cast<T*>(raw());
  }
  template <class T = double>
  T item() const {
    XY_CHECK(numel() == 1, "item() needs one element, but the shape is ", shape());
    return to_vector<T>()[0];
  }  // the value of a one-element tensor, converted to T; waits for the device
  template <class T>
  std::vector<T> to_vector() const;  // all values in row-major order, converted to T; waits for the device
  std::string str(int64_t max_values = 64) const;

  // Views share storage; all are differentiable.
  Tensor reshape(const Shape& shape) const;  // one -1 is inferred; copies only when strides force it
  Tensor view(const Shape& shape) const;     // never copies; throws where reshape would
  Tensor flatten(int from = 0, int to = -1) const;
  Tensor transpose(int a, int b) const;
  Tensor permute(const std::vector<int>& order) const;
  Tensor slice(int dim, int64_t begin, int64_t end, int64_t step = 1) const;  // end is exclusive and clamped
  Tensor narrow(int dim, int64_t begin, int64_t length) const;                // throws where slice would clamp
  Tensor select(int dim, int64_t index) const;                                // drops dim
  Tensor operator[](int64_t index) const { return select(0, index); }
  Tensor expand(const Shape& shape) const;  // broadcasts size-1 dims without a copy; sum_to() is the adjoint
  Tensor squeeze(int dim) const;
  Tensor unsqueeze(int dim) const;
  Tensors split(int64_t size, int dim = 0) const;  // pieces of `size`, the last may be shorter
  Tensors split(const std::vector<int64_t>& sizes, int dim = 0) const;

  // Copies.
  Tensor contiguous() const;  // itself when already contiguous
  Tensor clone() const;
  Tensor to(DType dtype) const;  // differentiable cast
  // Differentiable. Waits for the copy, unless told not to and the source is pinned: then the source must keep its
  // values until the device has read them (Event), but may itself go.
  Tensor to(Device device, bool non_blocking = false) const;
  Tensor pin() const;      // copy in page-locked host memory (plain host memory without a GPU)
  bool is_pinned() const;  // whether it lies in memory of pin() or empty_pinned()

  // In-place; not recorded, so an error on a tensor that needs a gradient while gradients are being recorded.
  const Tensor& fill_(Scalar value) const;
  const Tensor& zero_() const { return fill_(0); }
  // Broadcasts, casts, crosses devices. Between host and device it waits for the copy unless `non_blocking`.
  const Tensor& copy_(const Tensor& source, bool non_blocking = false) const;
  const Tensor& add_(const Tensor& other, double scale = 1) const;  // same shape; accumulates in this dtype
  // Takes over the storage, shape and dtype of `other`; every handle to this tensor sees it (moving parameters).
  void set_data(const Tensor& other) const;
  uint32_t version() const { return impl().storage->version(); }
  void bump_version() const { impl().storage->bump_version(); }

  // Autograd.
  bool requires_grad() const;
  const Tensor& set_requires_grad(bool on = true) const;  // leaves only
  bool is_leaf() const;
  Tensor grad() const;                      // undefined until backward() has reached this leaf
  void set_grad(const Tensor& grad) const;  // storage that gradients are accumulated into
  void zero_grad() const;                   // the next contribution overwrites; nothing is filled
  bool grad_stale() const;                  // zero_grad() was called and nothing has arrived since
  void backward(const Tensor& grad = {}, bool retain_graph = false, bool create_graph = false) const;
  Tensor detach() const;  // same storage, no history
  // Runs when the gradient of this tensor is complete; may return a replacement, or an undefined tensor to keep it.
  void register_hook(std::function<Tensor(const Tensor&)> hook) const;
  // Leaves only: runs after the last contribution of a backward pass has been accumulated.
  void register_grad_ready(std::function<void(const Tensor& leaf)> ready) const;

  const std::shared_ptr<TensorImpl>& ptr() const { return impl_; }  // which tensor this is, as a key
  bool same_as(const Tensor& o) const { return impl_ == o.impl_; }

 private:
  friend struct detail::Access;
  explicit Tensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}
  TensorImpl& impl() const {
    XY_CHECK(impl_, "the tensor is undefined");
    return *impl_;
  }
  std::shared_ptr<TensorImpl> impl_;
};

// Factories. Values are not differentiable; random ones are in ops/random.
Tensor empty(const Shape& shape, DType dtype = f32, Device device = {});
Tensor empty_pinned(const Shape& shape, DType dtype = f32);
Tensor empty_strided(const Shape& shape, const Strides& strides, DType dtype, Device device);
// Contiguous but for the order of dimensions, which is the one that `like`, of the same rank, has in memory: what is
// made from a channels-last tensor stays channels-last. Row-major where `like` repeats elements.
Tensor empty_in_order_of(const Tensor& like, const Shape& shape, DType dtype, Device device);
inline Tensor empty_in_order_of(const Tensor& like) {
  return empty_in_order_of(like, like.shape(), like.dtype(), like.device());
}
inline Tensor empty_like(const Tensor& t) { return empty(t.shape(), t.dtype(), t.device()); }
Tensor full(const Shape& shape, Scalar value, DType dtype = f32, Device device = {});
inline Tensor zeros(const Shape& shape, DType dtype = f32, Device device = {}) { return full(shape, 0, dtype, device); }
inline Tensor ones(const Shape& shape, DType dtype = f32, Device device = {}) { return full(shape, 1, dtype, device); }
inline Tensor zeros_like(const Tensor& t) { return zeros(t.shape(), t.dtype(), t.device()); }
inline Tensor ones_like(const Tensor& t) { return ones(t.shape(), t.dtype(), t.device()); }
Tensor arange(int64_t n, DType dtype = i64, Device device = {});
Tensor from_bytes(const void* data, const Shape& shape, DType dtype, Device device = {});  // copies
template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape, Device device = {}) {
  XY_CHECK(int64_t(values.size()) == shape.numel(), "from_vector: ", values.size(), " values for shape ", shape);
  return from_bytes(values.data(), shape, dtype_of<T>, device);
}
// Wraps memory that `owner` keeps alive (a memory map, a foreign buffer); never copies.
Tensor from_external(void* data, const Shape& shape, DType dtype, Device device, std::shared_ptr<void> owner);

// A tensor whose memory is away until its first use, when `bring` must attach() some to the tensor's storage.
Tensor elastic_tensor(const Shape& shape, DType dtype, Device device, std::function<void()> bring);

Tensor sum_to(const Tensor& x,
              const Shape& shape);                // what broadcasting `shape` to x's repeats is summed; differentiable
Tensor cat(const Tensors& parts, int dim = 0);    // differentiable
Tensor stack(const Tensors& parts, int dim = 0);  // differentiable

template <class T>
std::vector<T> Tensor::to_vector() const {
  Tensor host = detach().to(Device::cpu()).contiguous().to(dtype_of<T>);
  const T* p = host.data<T>();
  return std::vector<T>(p, p + host.numel());
}

}  // namespace xylem
