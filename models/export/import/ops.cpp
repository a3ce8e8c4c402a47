// SPDX-License-Identifier: Apache-2.0
#include "models/export/import/ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/ops.h"

namespace xylem::exporting {

using Call = ImportedOp;

int axis_of(int64_t axis, int rank) {
  if (axis < 0) axis += rank;
  XY_CHECK(axis >= 0 && axis < std::max(rank, 1), "axis ", axis, " is outside a tensor of ", rank, " dimensions");
  return int(axis);
}

Tensor take(const Tensor& data, const Tensor& given, int axis) {
  const int64_t n = data.size(axis);
  std::vector<int64_t> index = given.to_vector<int64_t>();
  for (int64_t& i : index) {
    if (i < 0) i += n;
    XY_CHECK(i >= 0 && i < n, "the index ", i, " is outside dimension ", axis, " of ", data.shape());
  }
  Tensor flat = from_vector(index, {int64_t(index.size())}, data.device());
  Tensor rows;
  if (is_float(data.dtype())) {
    rows = index_select(data, axis, flat);
  } else {
    Tensors parts;
    for (int64_t i : index) parts.push_back(data.narrow(axis, i, 1));
    XY_CHECK(!parts.empty(), "gathers nothing from whole numbers");
    rows = cat(parts, axis);
  }
  Shape shape;
  for (int d = 0; d < data.rank(); ++d) {
    if (d != axis) {
      shape.push_back(data.size(d));
      continue;
    }
    for (int64_t s : given.shape()) shape.push_back(s);
  }
  return rows.reshape(shape);
}

namespace {

constexpr int64_t kElementsAtMost = int64_t(1) << 32;

std::vector<int> axes_of(const std::vector<int64_t>& axes, int rank) {
  std::vector<int> out;
  for (int64_t a : axes) out.push_back(axis_of(a, rank));
  return out;
}
Shape shape_of(const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (int64_t d : dims) {
    XY_CHECK(d >= -1 && d <= kElementsAtMost, "the dimension ", d, " is impossible");
    n *= std::max<int64_t>(d, 1);
    XY_CHECK(n <= kElementsAtMost, "a tensor of more than ", kElementsAtMost, " elements");
  }
  return Shape(dims);
}
std::array<int, 2> pair_of(const std::vector<int64_t>& v, size_t at = 0) {
  XY_CHECK(v.size() >= at + 2, "needs two values per attribute: only 2-D images are supported");
  for (size_t i = at; i < at + 2; ++i)
    XY_CHECK(v[i] >= 0 && v[i] < (1 << 24), "the attribute value ", v[i], " is impossible");
  return {int(v[at]), int(v[at + 1])};
}

// ---- integers: shapes are computed on the host ----------------------------------------------------------------------
bool is_whole(const Tensor& t) { return t.dtype() == i64 || t.dtype() == i32; }

Tensor whole_division(const Tensor& a, const Tensor& b) {
  Shape s = broadcast(a.shape(), b.shape());
  auto x = a.expand(s).to_vector<int64_t>(), y = b.expand(s).to_vector<int64_t>();
  for (size_t i = 0; i < x.size(); ++i) {
    XY_CHECK(y[i] != 0 && !(y[i] == -1 && x[i] == std::numeric_limits<int64_t>::min()), "division by zero");
    x[i] /= y[i];
  }
  return from_vector(x, s).to(a.dtype());
}

// ---- shapes ---------------------------------------------------------------------------------------------------------
Tensors reshape(const Call& c) {
  std::vector<int64_t> to = c.ints_of(1);
  if (c.integer("allowzero", 0) == 0)
    for (size_t i = 0; i < to.size(); ++i)
      if (to[i] == 0) {
        XY_CHECK(int(i) < c.in(0).rank(), "a 0 in the shape stands for no dimension of ", c.in(0).shape());
        to[i] = c.in(0).size(int(i));
      }
  return {c.in(0).reshape(shape_of(to))};
}
Tensors transposed(const Call& c) {
  std::vector<int64_t> order = c.integers("perm", {});
  std::vector<int> perm = axes_of(order, c.in(0).rank());
  if (perm.empty())
    for (int d = c.in(0).rank(); d-- > 0;) perm.push_back(d);
  return {c.in(0).permute(perm)};
}
Tensors squeeze(const Call& c) {
  const Tensor& x = c.in(0);
  Shape s;
  std::vector<int64_t> given = c.attr_or_input("axes", 1);
  std::vector<int> axes = axes_of(given, x.rank());
  for (int d = 0; d < x.rank(); ++d) {
    const bool drop = axes.empty() ? x.size(d) == 1 : std::find(axes.begin(), axes.end(), d) != axes.end();
    if (!drop) s.push_back(x.size(d));
  }
  return {x.reshape(s)};
}
Tensors unsqueeze(const Call& c) {
  std::vector<int64_t> axes = c.attr_or_input("axes", 1);
  const int rank = c.in(0).rank() + int(axes.size());
  XY_CHECK(rank <= kMaxRank, "more than ", kMaxRank, " dimensions");
  std::vector<int> at = axes_of(axes, rank);
  std::sort(at.begin(), at.end());
  Tensor x = c.in(0);
  for (int a : at) x = x.unsqueeze(a);
  return {x};
}
Tensors slice(const Call& c) {
  std::vector<int64_t> begin = c.ints_of(1), end = c.ints_of(2), axes, steps;
  if (c.has(3)) axes = c.ints_of(3);
  if (c.has(4)) steps = c.ints_of(4);
  Tensor x = c.in(0);
  XY_CHECK(end.size() == begin.size() && (axes.empty() || axes.size() == begin.size()) &&
               (steps.empty() || steps.size() == begin.size()),
           "starts, ends, axes and steps differ in length");
  for (size_t i = 0; i < begin.size(); ++i) {
    const int64_t step = steps.empty() ? 1 : steps[i];
    XY_CHECK(step >= 1, "a step of ", step, " is not supported");
    x = x.slice(axis_of(axes.empty() ? int64_t(i) : axes[i], x.rank()), begin[i], end[i], step);
  }
  return {x};
}
Tensors expand(const Call& c) {
  Shape to = broadcast(c.in(0).shape(), shape_of(c.ints_of(1)));
  return {c.in(0).expand(to)};
}
Tensors split(const Call& c) {
  const int axis = axis_of(c.integer("axis", 0), c.in(0).rank());
  std::vector<int64_t> sizes = c.attr_or_input("split", 1);
  if (sizes.empty()) {
    const int64_t parts = int64_t(c.outputs), n = c.in(0).size(axis);
    const int64_t each = (n + parts - 1) / parts;
    for (int64_t left = n; int64_t(sizes.size()) < parts; left -= each)
      sizes.push_back(std::clamp<int64_t>(left, 0, each));
  }
  for (int64_t s : sizes) XY_CHECK(s >= 0, "a part of ", s, " rows");
  return c.in(0).split(sizes, axis);
}
Tensors concat(const Call& c) {
  Tensors parts;
  for (size_t i = 0; i < c.inputs.size(); ++i) parts.push_back(c.in(i));
  XY_CHECK(!parts.empty(), "joins nothing");
  return {cat(parts, axis_of(c.integer("axis", 0), parts[0].rank()))};
}
Tensors shape(const Call& c) {
  std::vector<int64_t> dims = c.in(0).shape().vec();
  const auto rank = int64_t(dims.size());
  auto clamp = [&](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + rank : v, 0, rank); };
  const int64_t begin = clamp(c.integer("start", 0)), end = std::max(clamp(c.integer("end", rank)), begin);
  return {from_vector(std::vector<int64_t>(dims.begin() + begin, dims.begin() + end), {end - begin})};
}
Tensors range(const Call& c) {
  XY_CHECK(is_whole(c.in(0)) && c.in(0).numel() == 1 && c.in(1).numel() == 1 && c.in(2).numel() == 1,
           "only ranges of whole numbers are supported");
  const int64_t begin = c.in(0).item<int64_t>(), end = c.in(1).item<int64_t>(), step = c.in(2).item<int64_t>();
  XY_CHECK(step == 1 && end - begin <= kElementsAtMost, "a range from ", begin, " to ", end, " by ", step);
  std::vector<int64_t> v;
  for (int64_t i = begin; i < end; ++i) v.push_back(i);
  return {from_vector(v, {int64_t(v.size())})};
}
Tensors cast(const Call& c) {
  const int64_t to = c.integer("to", 1);
  if (is_onnx_float(int(to)) || to == type::float64) return {is_float(c.in(0).dtype()) ? c.in(0) : c.in(0).to(f32)};
  return {c.in(0).to(dtype_from_onnx(int(to)))};
}

// ---- pointwise ------------------------------------------------------------------------------------------------------
Tensors both(const Call& c) { return {mul(c.in(0).to(i32), c.in(1).to(i32)).to(boolean)}; }

// ---- reductions -----------------------------------------------------------------------------------------------------
template <Tensor (*F)(const Tensor&, const std::vector<int>&, bool)>
Tensors reduction(const Call& c) {
  const Tensor& x = c.in(0);
  std::vector<int64_t> given = c.attr_or_input("axes", 1);
  if (given.empty() && c.integer("noop_with_empty_axes", 0)) return {x};
  return {F(x, axes_of(given, x.rank()), c.integer("keepdims", 1) != 0)};
}

// ---- networks -------------------------------------------------------------------------------------------------------
Tensors gemm(const Call& c) {
  Tensor a = c.in(0), b = c.in(1);
  XY_CHECK(a.rank() == 2 && b.rank() == 2, "needs matrices, not ", a.shape(), " and ", b.shape());
  if (c.integer("transA", 0)) a = a.transpose(0, 1);
  const double alpha = c.number("alpha", 1), beta = c.number("beta", 1);
  const bool plain = c.integer("transB", 0) && alpha == 1 && beta == 1;
  if (plain && c.has(2) && c.in(2).rank() == 1 && c.in(2).numel() == b.size(0)) return {linear(a, b, c.in(2))};
  Tensor y = matmul(a, c.integer("transB", 0) ? b.transpose(0, 1) : b);
  if (alpha != 1) y = y * alpha;
  if (c.has(2)) y = y + (beta == 1 ? c.in(2) : c.in(2) * beta);
  return {y};
}

// ONNX pads each side by itself; the operations pad both sides alike.
std::array<int, 2> even_pads(const Call& c) {
  XY_CHECK(c.text("auto_pad", "NOTSET") == "NOTSET" || c.text("auto_pad", "") == "VALID",
           "auto_pad is not supported; write the pads out");
  std::vector<int64_t> pads = c.integers("pads", {0, 0, 0, 0});
  XY_CHECK(pads.size() == 4 && pads[0] == pads[2] && pads[1] == pads[3],
           "only images padded alike on both sides are supported");
  return pair_of(pads);
}
ConvArgs conv_args(const Call& c) {
  return {.stride = pair_of(c.integers("strides", {1, 1})),
          .padding = even_pads(c),
          .dilation = pair_of(c.integers("dilations", {1, 1})),
          .groups = int(std::clamp<int64_t>(c.integer("group", 1), 0, 1 << 24))};
}
Tensors conv(const Call& c) { return {conv2d(c.in(0), c.in(1), c.has(2) ? c.in(2) : Tensor(), conv_args(c))}; }
Tensors conv_transpose(const Call& c) {
  return {conv_transpose2d(c.in(0), c.in(1), c.has(2) ? c.in(2) : Tensor(), conv_args(c),
                           pair_of(c.integers("output_padding", {0, 0})))};
}
PoolArgs pool_args(const Call& c) {
  XY_CHECK(c.integer("ceil_mode", 0) == 0 && c.outputs == 1, "ceil_mode and indices are not supported");
  return {.kernel = pair_of(c.integers("kernel_shape", {})),
          .stride = pair_of(c.integers("strides", {1, 1})),
          .padding = even_pads(c),
          .count_include_pad = c.integer("count_include_pad", 0) != 0};
}
Tensors resize(const Call& c) {
  const Tensor& x = c.in(0);
  XY_CHECK(x.rank() == 4, "only images can be resized, not ", x.shape());
  std::array<int64_t, 2> size{};
  if (c.has(3)) {
    std::vector<int64_t> s = c.ints_of(3);
    XY_CHECK(s.size() == 4, "sizes must name four dimensions");
    size = {s[2], s[3]};
  } else {
    std::vector<double> s = c.in(2).to_vector<double>();
    XY_CHECK(s.size() == 4, "scales must name four dimensions");
    for (int d = 0; d < 2; ++d) {
      const double wanted = std::clamp(double(x.size(2 + d)) * s[2 + d], 0.0, 1e6);
      size[d] = std::llround(wanted);
      XY_CHECK(std::abs(wanted - double(size[d])) < 1e-3, "a scale of ", s[2 + d], " makes no whole size of ",
               x.size(2 + d), "; write the sizes");
    }
  }
  XY_CHECK(size[0] > 0 && size[1] > 0 && size[0] < (1 << 20) && size[1] < (1 << 20), "an image of ", size[0], " x ",
           size[1]);
  const std::string mode = c.text("mode", "nearest"), how = c.text("coordinate_transformation_mode", "half_pixel");
  if (mode == "nearest") {
    // Rounding the centres of pixels gives the same where every pixel is repeated as often.
    const std::string rounding = c.text("nearest_mode", "round_prefer_floor");
    const bool repeats = size[0] % x.size(2) == 0 && size[1] % x.size(3) == 0;
    XY_CHECK((how == "asymmetric" && rounding == "floor") ||
                 (repeats && how.ends_with("half_pixel") && rounding.starts_with("round")),
             "nearest with ", how, " and ", rounding, " is not supported; write asymmetric and floor");
    return {interpolate(x, size, Interpolation::nearest)};
  }
  // That of PyTorch differs for a single row or column alone.
  const bool half = how == "half_pixel" || (how == "pytorch_half_pixel" && size[0] > 1 && size[1] > 1);
  XY_CHECK(mode == "linear" && (half || how == "align_corners"), "mode ", mode, " with ", how, " is not supported");
  return {interpolate(x, size, Interpolation::bilinear, how == "align_corners")};
}

const ImportHandlers& handlers() {
  static const auto& all = *new ImportHandlers{
      {"Identity", [](const Call& c) -> Tensors { return {c.in(0)}; }},
      {"Cast", cast},
      {"Reshape", reshape},
      {"Transpose", transposed},
      {"Squeeze", squeeze},
      {"Unsqueeze", unsqueeze},
      {"Flatten",
       [](const Call& c) -> Tensors {
         const int axis = axis_of(c.integer("axis", 1), c.in(0).rank() + 1);
         int64_t rows = 1;
         for (int d = 0; d < axis; ++d) rows *= c.in(0).size(d);
         return {c.in(0).reshape({rows, c.in(0).numel() / std::max<int64_t>(rows, 1)})};
       }},
      {"Slice", slice},
      {"Expand", expand},
      {"Split", split},
      {"Concat", concat},
      {"Shape", shape},
      {"Range", range},
      {"Gather",
       [](const Call& c) -> Tensors {
         return {take(c.in(0), c.in(1), axis_of(c.integer("axis", 0), c.in(0).rank()))};
       }},
      {"GatherElements",
       [](const Call& c) -> Tensors {
         return {gather(c.in(0), axis_of(c.integer("axis", 0), c.in(0).rank()), c.in(1))};
       }},
      {"Where", [](const Call& c) -> Tensors { return {where(c.in(0), c.in(1), c.in(2))}; }},
      {"Greater", [](const Call& c) -> Tensors { return {lt(c.in(1), c.in(0))}; }},
      {"And", both},
      {"Div",
       [](const Call& c) -> Tensors {
         return {is_whole(c.in(0)) && is_whole(c.in(1)) ? whole_division(c.in(0), c.in(1)) : div(c.in(0), c.in(1))};
       }},
      {"Neg", [](const Call& c) -> Tensors { return {-c.in(0)}; }},
      {"Reciprocal", [](const Call& c) -> Tensors { return {pow(c.in(0), -1.0)}; }},
      {"ReduceSum", reduction<sum>},
      {"ReduceMean", reduction<mean>},
      {"ReduceMax", reduction<amax>},
      {"ReduceMin", reduction<amin>},
      {"ArgMax",
       [](const Call& c) -> Tensors {
         return {argmax(c.in(0), axis_of(c.integer("axis", 0), c.in(0).rank()), c.integer("keepdims", 1) != 0)};
       }},
      {"TopK",
       [](const Call& c) -> Tensors {
         std::vector<int64_t> k = c.ints_of(1);
         XY_CHECK(k.size() == 1 && c.integer("largest", 1) == 1, "only the largest values are supported");
         auto [values, indices] = topk(c.in(0), k[0], axis_of(c.integer("axis", -1), c.in(0).rank()));
         return {values, indices};
       }},
      {"Softmax",
       [](const Call& c) -> Tensors { return {softmax(c.in(0), axis_of(c.integer("axis", -1), c.in(0).rank()))}; }},
      {"LogSoftmax",
       [](const Call& c) -> Tensors { return {log_softmax(c.in(0), axis_of(c.integer("axis", -1), c.in(0).rank()))}; }},
      {"MatMul", [](const Call& c) -> Tensors { return {matmul(c.in(0), c.in(1))}; }},
      {"Gemm", gemm},
      {"Conv", conv},
      {"ConvTranspose", conv_transpose},
      {"MaxPool", [](const Call& c) -> Tensors { return {max_pool2d(c.in(0), pool_args(c))}; }},
      {"AveragePool", [](const Call& c) -> Tensors { return {avg_pool2d(c.in(0), pool_args(c))}; }},
      {"GlobalAveragePool",
       [](const Call& c) -> Tensors {
         return {adaptive_avg_pool2d(c.in(0), {1, 1})};
       }},
      {"Resize", resize},
  };
  return all;
}

}  // namespace

OnnxImport find_import(const GraphNode& node) {
  for (const auto* all : {&handlers(), &network_imports()})
    if (auto it = all->find(node.op); it != all->end()) return it->second;
  const OnnxImport* declared = find_onnx_import(node.op, [&](const std::string& attr) -> std::string {
    const OnnxAttr* value = node.find(attr);
    const auto* text = value ? std::get_if<std::string>(value) : nullptr;
    return text ? *text : "";
  });
  return declared ? *declared : OnnxImport();
}

}  // namespace xylem::exporting
