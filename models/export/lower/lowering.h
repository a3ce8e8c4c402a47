// SPDX-License-Identifier: Apache-2.0
// How an operation becomes ONNX. An operation of your own needs one function:
//
//   register_onnx_lowering("my_op", [](OnnxBuilder& onnx, const ExportedOp& op) -> std::vector<std::string> {
//     return {onnx.node("Mul", {op.inputs[0], onnx.scalar(op.number("factor"))})};
//   });
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/tensor/tensor.h"

namespace xylem {

// A size as the traces saw it: the same in all of them, or following the dynamic dimensions.
struct TracedSize {
  static constexpr int kTraces = 3;
  std::array<int64_t, kTraces> at{};
  TracedSize() = default;
  TracedSize(int64_t fixed) { at.fill(fixed); }  // NOLINT: implicit on purpose
  bool fixed() const { return at[0] == at[1] && at[1] == at[2]; }
  bool operator==(const TracedSize&) const = default;
};

using OnnxAttr = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;
using OnnxAttrs = std::vector<std::pair<std::string, OnnxAttr>>;

// One operation of the traced graph.
struct ExportedOp {
  std::string name, scope;
  std::vector<std::string> inputs = {};  // tensors of the ONNX graph; "" for an absent one
  std::vector<DType> input_types = {}, output_types = {};
  std::vector<std::vector<TracedSize>> input_shapes = {}, output_shapes = {};
  std::vector<std::pair<std::string, std::variant<TracedSize, double, bool, std::string, std::vector<TracedSize>>>>
      attrs = {};

  // Attributes by name; an absent one, one of another type or a size that is not fixed is an error that names it.
  int64_t integer(const std::string& attr) const;
  double number(const std::string& attr) const;
  bool flag(const std::string& attr) const;
  const std::string& text(const std::string& attr) const;
  std::vector<int64_t> integers(const std::string& attr) const;
  const std::vector<TracedSize>& sizes(const std::string& attr) const;
  const TracedSize& size(const std::string& attr) const;
  bool has(const std::string& attr) const;
  int rank(int input) const { return int(input_shapes[input].size()); }
};

// Builds the ONNX graph. Tensors are named by strings. All floating point tensors are float32 here; the types of the
// target are assigned afterwards.
class OnnxBuilder {
 public:
  virtual ~OnnxBuilder() = default;
  virtual int opset() const = 0;
  // Adds a node and returns its first output. `type` is that of the outputs; by default that of the first input.
  virtual std::string node(const std::string& op, const std::vector<std::string>& inputs, const OnnxAttrs& attrs = {},
                           std::optional<DType> type = {}) = 0;
  virtual std::vector<std::string> nodes(const std::string& op, const std::vector<std::string>& inputs, int outputs,
                                         const OnnxAttrs& attrs = {}, const std::vector<DType>& types = {}) = 0;
  // Initializers; equal ones are stored once. `name` is a wish.
  virtual std::string constant(const Tensor& value, const std::string& name = {}) = 0;
  std::string scalar(double value, DType type = f32);
  std::string ints(const std::vector<int64_t>& values);  // i64 [n]
  // The values of a constant tensor of the graph; undefined for a computed one.
  virtual Tensor value_of(const std::string& tensor) const = 0;
  virtual DType type_of(const std::string& tensor) const = 0;
  // i64 [n] holding sizes, computed in the graph where they are dynamic.
  virtual std::string sizes(const std::vector<TracedSize>& sizes) = 0;
  std::string cast(const std::string& tensor, DType type);
  // Built once per graph: `make` runs when `key` is new.
  virtual std::string once(const std::string& key, const std::function<std::string()>& make) = 0;
};

// Returns the names of the operation's outputs.
using OnnxLowering = std::function<std::vector<std::string>(OnnxBuilder& onnx, const ExportedOp& op)>;

// Replaces an earlier one. `op` is the name of the OpSpec.
void register_onnx_lowering(const std::string& op, OnnxLowering lowering);
const OnnxLowering* find_onnx_lowering(const std::string& op);
// Why an operation without a lowering needs none ("it is a loss ..."); "" when it should have one.
std::string export_obstacle(const OpSpec& op);

}  // namespace xylem
