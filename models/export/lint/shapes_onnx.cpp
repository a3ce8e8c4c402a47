// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <set>

#include "models/export/lint/rules_onnx.h"

namespace xylem::lint {
namespace {

using onnx::TensorProto;

void ranges(const Rules& r) {
  for (const auto& v : r.graph.graph.input()) {
    if (!r.graph.is_input(v.name())) continue;
    const TensorType& t = r.graph.type(v.name());
    if (!t.shape) {
      r.error("S1", v.name(),
              "the input has no shape; TensorRT cannot build a profile. Export it with named dimensions.");
      continue;
    }
    for (size_t i = 0; i < t.shape->size(); ++i) {
      const Dim& d = (*t.shape)[i];
      if (d.fixed() || r.graph.ranges.contains(d.symbol)) continue;
      r.error("S1", v.name(), "dimension ", i, " ('", d.symbol.empty() ? "unnamed" : d.symbol,
              "') has no range; TensorRT cannot build a profile. Give it with --range ",
              d.symbol.empty() ? "NAME" : d.symbol, "=MIN:OPT:MAX", d.symbol.empty() ? " after naming it." : ".");
    }
  }
}

// The batch axis is the symbol at the front of the first input.
void batch(const Rules& r) {
  std::string symbol;
  auto missing = [&](const std::string& name) {
    const TensorType& t = r.graph.type(name);
    return t.shape && (t.shape->empty() || (*t.shape)[0].symbol != symbol);
  };
  auto note = [&](const std::string& name) {
    r.warning("S3", name, "no batch axis '", symbol,
              "' in front: Triton's max_batch_size must be 0 (no dynamic batching).");
  };
  for (const auto& v : r.graph.graph.input()) {
    const TensorType& t = r.graph.type(v.name());
    if (symbol.empty() && t.shape && !t.shape->empty()) symbol = (*t.shape)[0].symbol;
  }
  if (symbol.empty()) return;
  for (const auto& v : r.graph.graph.input())
    if (r.graph.is_input(v.name()) && missing(v.name())) note(v.name());
  for (const auto& v : r.graph.graph.output())
    if (missing(v.name())) note(v.name());
}

std::vector<int64_t> int64_values(const Rules& r, const TensorProto& t) {
  const std::string raw = r.graph.raw_data(t);
  std::vector<int64_t> v(raw.size() / sizeof(int64_t));
  std::memcpy(v.data(), raw.data(), v.size() * sizeof(int64_t));
  v.insert(v.end(), t.int64_data().begin(), t.int64_data().end());
  return v;
}

void integers(const Rules& r) {
  for (const auto& t : r.graph.graph.initializer()) {
    if (t.data_type() != TensorProto::INT64 || r.target.version >= Version{9, 0}) continue;
    for (int64_t v : int64_values(r, t))
      if (v > INT32_MAX || v < INT32_MIN) {
        r.warning("I1", t.name(), "value ", v, " is clamped to 32 bits by TensorRT ", r.target.version.str(),
                  ". Write a bound within 32 bits.");
        break;
      }
  }
  for (const auto& v : r.graph.graph.input())
    if (r.graph.is_input(v.name()) && r.graph.type(v.name()).dtype == TensorProto::INT64 &&
        r.target.version < Version{9, 0})
      r.warning("I1", v.name(), "an int64 input is read as int32 by TensorRT ", r.target.version.str(), ".");
}

void types(const Rules& r) {
  std::set<std::string> told;
  for (const Node* n : r.graph.nodes())
    for (const auto& o : n->output()) {
      if (o.empty() || r.graph.is_output(o) || !told.insert(o).second) continue;
      int dtype = r.graph.type(o).dtype;
      if (dtype == TensorProto::STRING || dtype == TensorProto::COMPLEX64 || dtype == TensorProto::COMPLEX128)
        r.error("I2", o, dtype_name(dtype), " tensors are not supported by TensorRT.");
      if (dtype == TensorProto::DOUBLE) r.warning("I2", o, "double is computed as float by TensorRT.");
      if (dtype == TensorProto::UINT8 && !is(n, "QuantizeLinear"))
        r.error("I2", o, "uint8 is only allowed at TensorRT's inputs and outputs.");
    }
}

// A shape without a place for what varies fits one size of it, that of the trace.
void frozen(const Rules& r) {
  for (const Node* n : r.graph.nodes()) {
    const TensorProto* to = is(n, "Reshape") ? r.graph.constant(input(*n, 1)) : nullptr;
    const TensorType& from = r.graph.type(input(*n, 0));
    if (!to || !from.shape || to->data_type() != TensorProto::INT64) continue;
    const std::vector<int64_t> shape = int64_values(r, *to);
    if (shape.empty() || *std::min_element(shape.begin(), shape.end()) <= 0) continue;
    for (const Dim& d : *from.shape) {
      if (d.fixed() || d.symbol.empty()) continue;
      std::string text;
      for (int64_t s : shape) text += (text.empty() ? "" : ", ") + std::to_string(s);
      r.error("S2", label(*n), "the shape [", text, "] is a constant, but the input has the dynamic dimension '",
              d.symbol, "': the model works for one size of it alone. Put -1 or 0 in its place.");
      break;
    }
  }
}

void shape_nodes(const Rules& r) {
  int count = 0;
  for (const Node* n : r.graph.nodes()) count += n->op_type() == "Shape";
  if (count) r.info("S4", "model", count, " Shape nodes remain; they run on the host between kernels.");
}

}  // namespace

void check_shapes(const Rules& r) {
  batch(r);
  shape_nodes(r);
  frozen(r);
  if (!r.target.tensorrt) return;
  ranges(r);
  integers(r);
  types(r);
}

}  // namespace xylem::lint
