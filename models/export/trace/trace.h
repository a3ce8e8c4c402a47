// SPDX-License-Identifier: Apache-2.0
// Tracing: the forward pass runs three times with different sizes of the dynamic dimensions and different values, and
// the three records are merged into one graph. What differs between them must be a size, or it is an error.
#pragma once
#include <array>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/op/lowering.h"
#include "models/export/trace/inputs.h"
#include "models/nn/module.h"

namespace xylem::exporting {

inline constexpr int kTraces = TracedSize::kTraces;

// A tensor of the traced graph. Constants that depend on sizes alone are kept as the rule that makes them.
struct TracedValue {
  enum class Kind { input, constant, result };
  enum class Rule { data, filled, range, size };  // of constants: given values, one value, 0 1 2 .., a size
  Kind kind = Kind::result;
  int index = 0;          // input: which; result: output of its node
  int producer = -1;      // result: its node
  std::string name = {};  // input or parameter
  DType dtype = f32;
  std::vector<TracedSize> shape = {};
  Tensor data = {};  // constant
  double amax = 0;   // the largest |x| seen, where it is known
  Rule rule = Rule::data;
  double fill = 0;
  TracedSize size = {};   // Rule::size
  bool is_fixed() const;  // no dimension depends on a symbol
};

struct TracedNode {
  const OpSpec* spec = nullptr;
  std::vector<int> inputs = {}, outputs = {};  // values; -1: absent
  std::vector<std::pair<std::string, TracedAttr>> attrs = {};
  std::string scope = {};  // the module it belongs to: "blocks.0.attn"
  const TracedAttr* find(const std::string& attr) const;
};

struct Symbol {
  std::string name;
  std::array<int64_t, kTraces> values;
};

struct TracedGraph {
  std::vector<TracedValue> values;
  std::vector<TracedNode> nodes;  // in the order they ran
  std::vector<int> inputs, outputs;
  std::vector<Symbol> symbols;

  std::vector<int> uses() const;  // of each value, outputs of the graph included
  void drop_unused();             // nodes that no output needs
  bool is_constant(int value) const { return value >= 0 && values[value].kind == TracedValue::Kind::constant; }
  int add_constant(const Tensor& data, const std::string& name = {});
};

// Runs `forward` without gradients; parameters and buffers of `model` keep their names.
TracedGraph trace(Module& model, const ExportForward& forward, const std::vector<ExportInput>& inputs,
                  const std::map<std::string, DimRange>& ranges);

// `size` as an expression over the symbols: sum of terms num/den * product of symbols.
struct SizeTerm {
  int64_t num = 0, den = 1;
  std::vector<int> symbols;  // indices; empty: a constant
};
// Empty when no expression of the supported forms fits: a + k*s, s*t, s + t + a, k*s*t.
std::vector<SizeTerm> solve(const TracedSize& size, const std::vector<Symbol>& symbols);
std::string describe(const TracedSize& size, const std::vector<Symbol>& symbols);    // "5 at batch=2, 7 at batch=3"
std::string expression(const TracedSize& size, const std::vector<Symbol>& symbols);  // "batch*seq", "16", or ""

}  // namespace xylem::exporting
