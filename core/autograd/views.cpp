// SPDX-License-Identifier: Apache-2.0
// Views and copies of tensors, all differentiable, and the sum that is the gradient of a broadcast.
#include <algorithm>

#include "core/autograd/autograd.h"
#include "core/autograd/view_lowering.h"
#include "core/tensor/access.h"
#include "core/tensor/copy.h"
#include "core/tensor/reduce.h"
#include "core/tensor/strided.h"
#include "core/tensor/tensor.h"

namespace xylem {

namespace {

using Samples = std::vector<Sample>;

Tensor alias(const Tensor& t, const Shape& shape, const Strides& strides, int64_t offset) {
  Tensor v = t.detach();
  TensorImpl& impl = detail::Access::impl(v);
  impl.shape = shape;
  impl.strides = strides;
  impl.offset = offset;
  return v;
}

Tensor sample_matrix() { return sample_normal({3, 4}); }

const OpSpec& kReshape = (new OpSpec("reshape"))->double_backward().onnx(lower_reshape).samples([] {
  return Samples{{"flat",
                  {sample_matrix()},
                  [](const Tensors& t) -> Tensors {
                    return {t[0].reshape({2, -1})};
                  }},
                 {"empty", {sample_normal({0, 4})}, [](const Tensors& t) -> Tensors {
                    return {t[0].reshape({2, 0, 2})};
                  }}};
});
const OpSpec& kPermute = (new OpSpec("permute"))->double_backward().onnx(lower_permute).samples([] {
  return Samples{{"rotate", {sample_normal({2, 3, 4})}, [](const Tensors& t) -> Tensors {
                    return {t[0].permute({2, 0, 1})};
                  }}};
});
const OpSpec& kSlice = (new OpSpec("slice"))->double_backward().onnx(lower_slice).samples([] {
  return Samples{
      {"step", {sample_normal({5, 3})}, [](const Tensors& t) -> Tensors { return {t[0].slice(0, 1, 5, 2)}; }},
      {"select", {sample_normal({5, 3})}, [](const Tensors& t) -> Tensors { return {t[0].select(1, 2)}; }},
      {"none", {sample_normal({5, 3})}, [](const Tensors& t) -> Tensors { return {t[0].slice(0, 2, 2)}; }}};
});
const OpSpec& kEmbedSlice =
    (new OpSpec("slice_scatter"))->double_backward().not_exportable("it belongs to a backward pass").samples([] {
      return Samples{};
    });
const OpSpec& kExpand = (new OpSpec("expand"))->double_backward().onnx(lower_expand).samples([] {
  return Samples{{"rows", {sample_normal({1, 4})}, [](const Tensors& t) -> Tensors {
                    return {t[0].expand({2, 3, 4})};
                  }}};
});
double one_per_input(std::span<const Tensor> in, std::span<const Tensor>) { return double(in[0].numel()); }
const OpSpec& kSumTo = (new OpSpec("sum_to"))->double_backward().onnx(lower_sum_to).flops(one_per_input).samples([] {
  return Samples{{"row", {sample_normal({4, 5})}, [](const Tensors& t) -> Tensors { return {sum_to(t[0], {5})}; }},
                 {"column",
                  {sample_normal({4, 5})},
                  [](const Tensors& t) -> Tensors {
                    return {sum_to(t[0], {4, 1})};
                  }},
                 {"channel",
                  {sample_normal({2, 3, 4})},
                  [](const Tensors& t) -> Tensors {
                    return {sum_to(t[0], {3, 1})};
                  }},
                 {"same", {sample_normal({2})}, [](const Tensors& t) -> Tensors { return {sum_to(t[0], {2})}; }}};
});
const OpSpec& kSplit = (new OpSpec("split"))->double_backward().onnx(lower_split).samples([] {
  return Samples{{"uneven", {sample_normal({3, 5})}, [](const Tensors& t) -> Tensors { return t[0].split(2, 1); }}};
});
const OpSpec& kCat = (new OpSpec("cat"))->double_backward().onnx(lower_cat).samples([] {
  return Samples{{"two",
                  {sample_normal({3, 2}), sample_normal({3, 4}, 1, 2)},
                  [](const Tensors& t) -> Tensors { return {cat(t, 1)}; }},
                 {"with empty", {sample_normal({0, 2}), sample_normal({3, 2}, 1, 2)}, [](const Tensors& t) -> Tensors {
                    return {cat(t, 0)};
                  }}};
});
const OpSpec& kCopy =
    (new OpSpec("contiguous"))->double_backward().role(OpRole::copy).onnx(lower_to_identity).samples([] {
      return Samples{{"clone", {sample_matrix()}, [](const Tensors& t) -> Tensors { return {t[0].clone()}; }},
                     {"transposed", {sample_matrix()}, [](const Tensors& t) -> Tensors {
                        return {t[0].transpose(0, 1).contiguous()};
                      }}};
    });
const OpSpec& kCast = (new OpSpec("cast"))->double_backward().role(OpRole::cast).onnx(lower_cast).samples([] {
  return Samples{{"wider", {sample_matrix()}, [](const Tensors& t) -> Tensors { return {t[0].to(f64)}; }}};
});
const OpSpec& kMove =
    (new OpSpec("to_device"))->double_backward().role(OpRole::copy).onnx(lower_to_identity).samples([] {
      return Samples{};
    });

// zeros(shape) with dy written where slice(dim, begin, .., step) reads.
Tensor slice_scatter(const Tensor& dy, const Shape& shape, int dim, int64_t begin, int64_t step) {
  OpScope scope(kEmbedSlice);
  const int64_t end = begin + dy.size(dim) * step;  // or beyond the tensor's, which slice() makes of it
  Tensor out = no_grad([&] {
    Tensor t = empty_in_order_of(dy, shape, dy.dtype(), dy.device()).zero_();
    t.slice(dim, begin, end, step).copy_(dy);
    return t;
  });
  return record(kEmbedSlice, out, {dy}, {},
                [=](const Tensor& d, const Wanted&) -> Tensors { return {d.slice(dim, begin, end, step)}; });
}

// Strides of `to` over t's memory, or nothing if t's strides do not allow it.
std::optional<Strides> view_strides(const Tensor& t, const Shape& to) {
  if (t.numel() == 0 || t.rank() == 0) return contiguous_strides(to);
  Strides out = Shape::filled(to.rank(), 1);
  int j = to.rank() - 1;
  int64_t chunk = 1;  // elements of the current run of mergeable source dimensions
  int64_t base = t.rank() ? t.strides()[t.rank() - 1] : 1;
  for (int i = t.rank() - 1; i >= 0; --i) {
    chunk *= t.shape()[i];
    bool last = i == 0 || (t.shape()[i - 1] != 1 && t.strides()[i - 1] != chunk * base);
    if (!last) continue;
    int64_t filled = 1;
    while (j >= 0 && (filled < chunk || to[j] == 1)) {
      out[j] = filled * base;
      filled *= to[j--];
    }
    if (filled != chunk) return {};
    if (i > 0) chunk = 1, base = t.strides()[i - 1];
  }
  return j < 0 ? std::optional(out) : std::nullopt;
}

// The tensor of shape `whole` that `parts` are pieces of along `dim`, where they lie side by side in one memory
// already.
Tensor joined(std::span<const Tensor> parts, const Shape& whole, int dim) {
  const Tensor& first = parts[0];
  if (!first.defined()) return {};
  int64_t next = first.offset();
  for (const Tensor& p : parts) {
    if (!p.defined() || p.storage() != first.storage() || p.dtype() != first.dtype()) return {};
    for (int i = 0; i < whole.rank(); ++i)
      if ((i == dim || whole[i] != 1) && p.strides()[i] != first.strides()[i]) return {};
    if (p.offset() != next) return {};
    next += p.shape()[dim] * p.strides()[dim];
  }
  return alias(first, whole, first.strides(), first.offset());
}

Shape infer(const Tensor& t, const Shape& shape) {
  Shape out = shape;
  int unknown = -1;
  int64_t known = 1;
  for (int i = 0; i < out.rank(); ++i) {
    if (out[i] == -1) {
      XY_CHECK(unknown < 0, "reshape: only one -1 is allowed in ", shape);
      unknown = i;
    } else {
      XY_CHECK(out[i] >= 0, "reshape: size ", out[i], " in ", shape);
      known *= out[i];
    }
  }
  if (unknown >= 0) {
    XY_CHECK(known > 0 && t.numel() % known == 0, "reshape: ", t.shape(), " does not fit ", shape);
    out[unknown] = t.numel() / known;
  }
  XY_CHECK(out.numel() == t.numel(), "reshape: ", t.shape(), " has ", t.numel(), " elements, ", shape, " needs ",
           out.numel());
  return out;
}

}  // namespace

Tensor Tensor::view(const Shape& to) const {
  OpScope scope(kReshape);
  Shape target = infer(*this, to), from = shape();
  auto st = view_strides(*this, target);
  XY_CHECK(st, "view: strides ", strides(), " of shape ", shape(), " do not allow ", target,
           " without a copy; use reshape");
  return record(kReshape, alias(*this, target, *st, offset()), {*this}, {{"shape", target.vec()}},
                [from](const Tensor& dy, const Wanted&) -> Tensors { return {dy.reshape(from)}; });
}
Tensor Tensor::reshape(const Shape& to) const {
  Shape target = infer(*this, to);
  return view_strides(*this, target) ? view(target) : contiguous().view(target);
}
Tensor Tensor::flatten(int from, int to) const {
  from = dim_index(from), to = dim_index(to);
  Shape s;
  int64_t merged = 1;
  for (int i = 0; i < rank(); ++i) {
    if (i < from || i > to)
      s.push_back(shape()[i]);
    else
      merged *= shape()[i];
    if (i == to) s.push_back(merged);
  }
  return reshape(s);
}

Tensor Tensor::permute(const std::vector<int>& order) const {
  OpScope scope(kPermute);
  XY_CHECK(int(order.size()) == rank(), "permute: ", order.size(), " dimensions named for shape ", shape());
  Shape s;
  Strides st;
  std::vector<int> inverse(order.size(), -1);
  std::vector<int64_t> attr;
  for (size_t i = 0; i < order.size(); ++i) {
    int d = dim_index(order[i]);
    XY_CHECK(inverse[d] < 0, "permute: dimension ", d, " appears twice");
    inverse[d] = int(i);
    attr.push_back(d);
    s.push_back(shape()[d]);
    st.push_back(strides()[d]);
  }
  return record(kPermute, alias(*this, s, st, offset()), {*this}, {{"perm", attr}},
                [inverse](const Tensor& dy, const Wanted&) -> Tensors { return {dy.permute(inverse)}; });
}
Tensor Tensor::transpose(int a, int b) const {
  std::vector<int> order(rank());
  for (int i = 0; i < rank(); ++i) order[i] = i;
  std::swap(order[dim_index(a)], order[dim_index(b)]);
  return permute(order);
}

Tensor Tensor::slice(int dim, int64_t begin, int64_t end, int64_t step) const {
  OpScope scope(kSlice);
  dim = dim_index(dim);
  int64_t n = shape()[dim];
  XY_CHECK(step >= 1, "slice: step ", step, " must be positive");
  if (begin < 0) begin += n;
  if (end < 0) end += n;
  begin = std::clamp<int64_t>(begin, 0, n), end = std::clamp<int64_t>(end, begin, n);
  Shape s = shape(), from = shape();
  Strides st = strides();
  s[dim] = (end - begin + step - 1) / step;
  st[dim] *= step;
  return record(
      kSlice, alias(*this, s, st, offset() + begin * strides()[dim]), {*this},
      {{"dim", int64_t(dim)}, {"begin", begin}, {"end", end}, {"step", step}},
      [=](const Tensor& dy, const Wanted&) -> Tensors { return {slice_scatter(dy, from, dim, begin, step)}; });
}
Tensor Tensor::narrow(int dim, int64_t begin, int64_t length) const {
  dim = dim_index(dim);
  int64_t n = shape()[dim], at = begin < 0 ? begin + n : begin;
  XY_CHECK(at >= 0 && length >= 0 && at + length <= n, "narrow: begin ", begin, " and length ", length,
           " do not lie within dimension ", dim, " of shape ", shape());
  return slice(dim, at, at + length);
}
Tensor Tensor::select(int dim, int64_t index) const {
  dim = dim_index(dim);
  int64_t n = shape()[dim], at = index < 0 ? index + n : index;
  XY_CHECK(at >= 0 && at < n, "select: index ", index, " is outside dimension ", dim, " of shape ", shape());
  return slice(dim, at, at + 1).squeeze(dim);
}

Tensor Tensor::expand(const Shape& to) const {
  OpScope scope(kExpand);
  if (to == shape()) return *this;
  for (int64_t n : to) XY_CHECK(n >= 0, "expand: size ", n, " in ", to);
  XY_CHECK(to.rank() >= rank() && broadcast(shape(), to) == to, "expand: ", shape(), " does not broadcast to ", to);
  Strides st = Shape::filled(to.rank(), 0);
  int lead = to.rank() - rank();
  for (int i = 0; i < rank(); ++i) st[lead + i] = shape()[i] == to[lead + i] ? strides()[i] : 0;
  Shape from = shape();
  return record(kExpand, alias(*this, to, st, offset()), {*this}, {{"shape", to.vec()}},
                [from](const Tensor& dy, const Wanted&) -> Tensors { return {sum_to(dy, from)}; });
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  OpScope scope(kSumTo);
  int lead = x.rank() - shape.rank();
  XY_CHECK(lead >= 0 && broadcast(shape, x.shape()) == x.shape(), "shape ", shape, " does not broadcast to ",
           x.shape());
  std::vector<bool> reduce(x.rank());
  for (int i = 0; i < x.rank(); ++i) reduce[i] = i < lead || (shape[i - lead] == 1 && x.shape()[i] != 1);
  Tensor y = reduced(x, reduce, shape, ReduceKind::sum, 1);
  return record(kSumTo, y, {x}, {{"shape", shape.vec()}},
                [from = x.shape()](const Tensor& dy, const Wanted&) -> Tensors { return {dy.expand(from)}; });
}

Tensor Tensor::squeeze(int dim) const {
  dim = dim_index(dim);
  if (shape()[dim] != 1) return *this;
  Shape s = shape();
  s.erase(dim);
  return view(s);
}
Tensor Tensor::unsqueeze(int dim) const {
  int d = dim < 0 ? dim + rank() + 1 : dim;
  XY_CHECK(d >= 0 && d <= rank(), "unsqueeze: dimension ", dim, " is outside shape ", shape());
  Shape s = shape();
  s.insert(d, 1);
  return view(s);
}

Tensors Tensor::split(const std::vector<int64_t>& sizes, int dim) const {
  OpScope scope(kSplit);
  dim = dim_index(dim);
  int64_t total = 0;
  for (int64_t n : sizes) {
    XY_CHECK(n >= 0, "split: a piece of size ", n, " of shape ", shape());
    total += n;
  }
  XY_CHECK(total == shape()[dim], "split: pieces add up to ", total, " but dimension ", dim, " of ", shape(), " has ",
           shape()[dim]);
  Tensors parts;
  int64_t at = 0;
  for (int64_t n : sizes) {
    Shape s = shape();
    s[dim] = n;
    parts.push_back(alias(*this, s, strides(), offset() + at * strides()[dim]));
    at += n;
  }
  return record(
      kSplit, parts, {*this}, {{"dim", int64_t(dim)}, {"sizes", sizes}},
      [=, whole = shape(), type = dtype()](std::span<const Tensor> grads, const Wanted& want) -> Tensors {
        if (!want.create_graph())
          if (Tensor together = joined(grads, whole, dim); together.defined()) return {together};
        Tensor any = *std::find_if(grads.begin(), grads.end(), [](const Tensor& g) { return g.defined(); });
        Tensors all;
        for (size_t i = 0; i < sizes.size(); ++i) {
          Shape part = whole;
          part[dim] = sizes[i];
          all.push_back(grads[i].defined() ? grads[i] : empty_in_order_of(any, part, type, any.device()).zero_());
        }
        return {cat(all, dim)};
      });
}
Tensors Tensor::split(int64_t size, int dim) const {
  XY_CHECK(size > 0, "split: piece size ", size, " must be positive");
  std::vector<int64_t> sizes;
  for (int64_t left = this->size(dim); left > 0; left -= size) sizes.push_back(std::min(left, size));
  return split(sizes, dim);
}

Tensor cat(const Tensors& parts, int dim) {
  OpScope scope(kCat);
  XY_CHECK(!parts.empty(), "cat: no tensors given");
  dim = parts[0].dim_index(dim);
  Shape s = parts[0].shape();
  DType dtype = parts[0].dtype();
  std::vector<int64_t> sizes;
  int64_t total = 0;
  for (const Tensor& p : parts) {
    bool fits = p.rank() == s.rank() && p.device() == parts[0].device();
    for (int i = 0; fits && i < s.rank(); ++i) fits = i == dim || p.shape()[i] == s[i];
    XY_CHECK(fits, "cat: ", p.shape(), " on ", p.device(), " does not fit ", s, " on ", parts[0].device(),
             " along dimension ", dim);
    sizes.push_back(p.shape()[dim]);
    total += sizes.back();
    dtype = promote(dtype, p.dtype());
  }
  s[dim] = total;
  Tensor out = no_grad([&] {
    Tensor t = empty_in_order_of(parts[0], s, dtype, parts[0].device());
    int64_t at = 0;
    for (size_t i = 0; i < parts.size(); at += sizes[i++]) t.narrow(dim, at, sizes[i]).copy_(parts[i]);
    return t;
  });
  return record(kCat, out, parts, {{"dim", int64_t(dim)}},
                [dim, sizes](const Tensor& dy, const Wanted&) { return dy.split(sizes, dim); });
}
Tensor stack(const Tensors& parts, int dim) {
  Tensors rows;
  for (const Tensor& p : parts) rows.push_back(p.unsqueeze(dim));
  return cat(rows, dim);
}

Tensor Tensor::clone() const {
  OpScope scope(kCopy);
  Tensor out = no_grad([&] { return empty(shape(), dtype(), device()).copy_(*this); });
  return record(kCopy, out, {*this}, {}, [](const Tensor& dy, const Wanted&) -> Tensors { return {dy}; });
}
Tensor Tensor::contiguous() const { return is_contiguous() ? *this : clone(); }

Tensor Tensor::to(DType to) const {
  if (to == dtype()) return *this;
  OpScope scope(kCast);
  Tensor out = no_grad([&] {
    Tensor t = is_dense() ? empty_strided(shape(), strides(), to, device()) : empty(shape(), to, device());
    return t.copy_(*this);
  });
  DType from = dtype();
  if (!is_float(to) || !is_float(from)) return record(kCast, out, {*this}, {{"to", std::string(name_of(to))}});
  return record(kCast, out, {*this}, {{"to", std::string(name_of(to))}},
                [from](const Tensor& dy, const Wanted&) -> Tensors { return {dy.to(from)}; });
}
Tensor Tensor::to(Device to, bool non_blocking) const {
  if (to == device()) return *this;
  OpScope scope(kMove);
  Device from = device();
  Tensor out = no_grad([&] { return empty(shape(), dtype(), to).copy_(*this, non_blocking && is_pinned()); });
  return record(kMove, out, {*this}, {}, [from](const Tensor& dy, const Wanted&) -> Tensors { return {dy.to(from)}; });
}
Tensor Tensor::pin() const {
  return no_grad([&] { return empty_pinned(shape(), dtype()).copy_(*this); });
}

}  // namespace xylem
