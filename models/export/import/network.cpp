// SPDX-License-Identifier: Apache-2.0
// Operators of networks that are wholes of their own: normalisation, attention, rotary positions, caches.
#include <algorithm>
#include <cmath>

#include "core/autograd/autograd.h"
#include "models/export/import/ops.h"
#include "ops/ops.h"

namespace xylem::exporting {
namespace {

using Call = ImportedOp;

Tensors layer_normalization(const Call& c) {
  const int rank = c.in(0).rank();
  XY_CHECK(axis_of(c.integer("axis", -1), rank) == rank - 1, "only the last dimension can be normalised");
  return {layer_norm(c.in(0), c.in(1), c.has(2) ? c.in(2) : Tensor(), c.number("epsilon", 1e-5))};
}
Tensors rms_normalization(const Call& c) {
  const int rank = c.in(0).rank();
  XY_CHECK(axis_of(c.integer("axis", -1), rank) == rank - 1, "only the last dimension can be normalised");
  return {rms_norm(c.in(0), c.in(1), c.number("epsilon", 1e-5))};
}
Tensors instance_normalization(const Call& c) {
  return {group_norm(c.in(0), int(c.in(0).size(1)), c.in(1), c.in(2), c.number("epsilon", 1e-5))};
}
Tensors group_normalization(const Call& c) {
  XY_CHECK(c.opset >= 21, "GroupNormalization of opset ", c.opset,
           " has a gain per group; only that of 21 is supported");
  return {group_norm(c.in(0), int(std::clamp<int64_t>(c.integer("num_groups", 0), 0, 1 << 24)), c.in(1), c.in(2),
                     c.number("epsilon", 1e-5))};
}
Tensors batch_normalization(const Call& c) {
  return {batch_norm(c.in(0), c.in(1), c.in(2), c.in(3), c.in(4), false, 0.1, c.number("epsilon", 1e-5))};
}

// [B, H, S, D] with an additive mask, as the exporter writes it.
Tensors attention_op(const Call& c) {
  const Tensor &q = c.in(0), &k = c.in(1), &v = c.in(2);
  XY_CHECK(q.rank() == 4 && k.rank() == 4 && v.rank() == 4 && !c.integer("is_causal", 0) && !c.has(4) && !c.has(5) &&
               c.outputs == 1,
           "only attention on [B, H, S, D] with an explicit mask and one output is supported");
  const int64_t heads = q.size(1), kv = k.size(1);
  XY_CHECK(kv > 0 && heads % kv == 0, heads, " heads can not share ", kv);
  auto repeat = [&](const Tensor& t) {
    if (heads == kv) return t;
    return t.unsqueeze(2)
        .expand({t.size(0), kv, heads / kv, t.size(2), t.size(3)})
        .reshape({t.size(0), heads, t.size(2), t.size(3)});
  };
  const double scale = c.number("scale", 1 / std::sqrt(double(std::max<int64_t>(q.size(3), 1))));
  Tensor scores = matmul(q, repeat(k).transpose(2, 3)) * scale;
  if (c.has(3)) scores = scores + c.in(3);
  return {matmul(softmax(scores), repeat(v))};
}

// Pairs (i, i + D/2) of x [B, H, S, D] turned by angles whose cosines and sines are given: [B, S, D/2], or rows of a
// table that position_ids [B, S] select.
Tensors rotary_embedding(const Call& c) {
  const Tensor& x = c.in(0);
  XY_CHECK(x.rank() == 4 && !c.integer("interleaved", 0) && c.integer("rotary_embedding_dim", 0) == 0,
           "only rotary positions of whole heads in halves, [B, H, S, D], are supported");
  auto table = [&](size_t i) {
    Tensor t = c.has(3) ? take(c.in(i), c.in(3), 0) : c.in(i);
    XY_CHECK(t.rank() == 3 && t.size(2) * 2 == x.size(3), "a table of shape ", t.shape(), " does not fit heads of ",
             x.size(3));
    return t.unsqueeze(1);
  };
  const Tensor cosine = table(1), sine = table(2);
  const Tensors ab = x.split({x.size(3) / 2, x.size(3) / 2}, 3);
  return {cat({ab[0] * cosine - ab[1] * sine, ab[1] * cosine + ab[0] * sine}, 3)};
}

// `x` with the places that `index` names along `axis` taken from `source`; every place at most once.
Tensor put(const Tensor& x, int axis, const Tensor& index, const Tensor& source) {
  Tensor filled = scatter_add(zeros(x.shape(), x.dtype(), x.device()), axis, index, source);
  Tensor count = no_grad([&] {
    return scatter_add(zeros(x.shape(), f32, x.device()), axis, index, ones(source.shape(), f32, x.device()));
  });
  return where(gt(count, 0.5), filled, x);
}
Tensors scatter_elements(const Call& c) {
  const int axis = axis_of(c.integer("axis", 0), c.in(0).rank());
  const std::string how = c.text("reduction", "none");
  XY_CHECK(how == "none" || how == "add", "the reduction ", how, " is not supported");
  if (how == "add") return {scatter_add(c.in(0), axis, c.in(1), c.in(2))};
  return {put(c.in(0), axis, c.in(1), c.in(2))};
}
// New keys or values of a cache, written from a place on that each sequence has.
Tensors tensor_scatter(const Call& c) {
  const Tensor &past = c.in(0), &update = c.in(1);
  const int axis = axis_of(c.integer("axis", -2), past.rank());
  XY_CHECK(axis > 0 && update.rank() == past.rank(), "an update of shape ", update.shape(), " does not fit ",
           past.shape(), " along dimension ", axis);
  const int64_t room = past.size(axis), length = update.size(axis), batch = past.size(0);
  const bool circular = c.text("mode", "linear") == "circular";
  std::vector<int64_t> first = c.has(2) ? c.ints_of(2) : std::vector<int64_t>(size_t(batch), 0), places;
  XY_CHECK(int64_t(first.size()) == batch, first.size(), " places for ", batch, " sequences");
  for (int64_t begin : first) {
    XY_CHECK(begin >= 0 && (circular ? begin < room && length <= room : begin + length <= room), "places from ", begin,
             " to ", begin + length, " exceed a cache of ", room);
    for (int64_t i = 0; i < length; ++i) places.push_back((begin + i) % std::max<int64_t>(room, 1));
  }
  Shape s = Shape::filled(past.rank(), 1);
  s[0] = batch, s[axis] = length;
  return {put(past, axis, from_vector(places, s, past.device()).expand(update.shape()).contiguous(), update)};
}

}  // namespace

const ImportHandlers& network_imports() {
  static const auto& all = *new ImportHandlers{
      {"ScatterElements", scatter_elements},
      {"TensorScatter", tensor_scatter},
      {"LayerNormalization", layer_normalization},
      {"RMSNormalization", rms_normalization},
      {"InstanceNormalization", instance_normalization},
      {"GroupNormalization", group_normalization},
      {"BatchNormalization", batch_normalization},
      {"Attention", attention_op},
      {"RotaryEmbedding", rotary_embedding},
  };
  return all;
}

}  // namespace xylem::exporting
