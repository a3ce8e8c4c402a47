// SPDX-License-Identifier: Apache-2.0
// How an operation becomes ONNX, and how a node of ONNX becomes an operation. Both are declared with the operation:
//
//   const OpSpec& kScale = (new OpSpec("my_scale"))
//       ->onnx([](OnnxBuilder& onnx, const ExportedOp& op) -> OnnxNames {
//         return {onnx.node("Mul", {op.inputs[0], onnx.scalar(op.number("factor"))})};
//       });
//
// A pointwise functor names its operator instead (ops/elementwise/pointwise.h). Files are read and written in
// models/export; here are core types alone, so that every operation can see it.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/op/onnx_types.h"
#include "core/op/op_spec.h"

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
using TracedAttr = std::variant<TracedSize, double, bool, std::string, std::vector<TracedSize>>;

// One operation of the traced graph.
struct ExportedOp {
  std::string name, scope;
  OnnxNames inputs = {};  // tensors of the ONNX graph; "" for an absent one
  std::vector<DType> input_types = {}, output_types = {};
  std::vector<std::vector<TracedSize>> input_shapes = {}, output_shapes = {};
  std::vector<std::pair<std::string, TracedAttr>> attrs = {};

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

// What the runtime that the graph is for wants of quantized layers.
struct OnnxTarget {
  bool float_weights = false;      // quantized weights stay floats on the grid, rounded in the graph
  bool uint8_activations = false;  // int8 ones are shifted to uint8
  bool any_attention = true;       // Attention of any head size: TensorRT runs those of 16 to 256 in steps of 8 alone
  bool integer_gemm = false;       // a Gemm of quantized operands must have no bias to become one of integers
};

// A decoder with a key-value cache: positions, masks and earlier keys come from inputs of the graph.
class OnnxDecoder {
 public:
  virtual ~OnnxDecoder() = default;
  virtual std::string position_ids() = 0;  // i64 [B, S]
  virtual std::string mask() = 0;          // [B, 1, S, T], added to the scores
  // New keys [B, heads, S, size], then the values beside them, become those of all positions so far, [B, heads, T,
  // size]. Each attention asks once for either.
  virtual std::string all_keys(const std::string& now, int64_t heads, int64_t size) = 0;
  virtual std::string all_values(const std::string& now) = 0;
};

// Builds the ONNX graph. Tensors are named by strings. All floating point tensors are float32 here; the types of the
// target are assigned afterwards.
class OnnxBuilder {
 public:
  virtual ~OnnxBuilder() = default;
  virtual int opset() const = 0;
  // Whether an operator that ONNX has since opset `since` may be used: every runtime of the export's profile that reads
  // the graph's opset has it.
  virtual bool has(const std::string& op, int since) const = 0;
  virtual const OnnxTarget& target() const = 0;
  virtual OnnxDecoder* decoder() = 0;  // null outside of decoders

  // Adds a node and returns its first output. `type` is that of the outputs; by default that of the first input.
  virtual std::string node(const std::string& op, const OnnxNames& inputs, const OnnxAttrs& attrs = {},
                           std::optional<DType> type = {}) = 0;
  virtual OnnxNames nodes(const std::string& op, const OnnxNames& inputs, int outputs, const OnnxAttrs& attrs = {},
                          const std::vector<DType>& types = {}) = 0;
  // One whose output is of a type that Xylem does not have, by its number in onnx_types.
  virtual std::string typed_node(const std::string& op, const OnnxNames& inputs, const OnnxAttrs& attrs,
                                 int onnx_type) = 0;

  // Initializers; equal ones are stored once. `name` is a wish.
  virtual std::string constant(const Tensor& value, const std::string& name = {}) = 0;
  virtual std::string initializer(OnnxTensor tensor) = 0;  // as it is, under a free name like the one it has
  std::string scalar(double value, DType type = f32);
  std::string ints(const std::vector<int64_t>& values);  // i64 [n]
  // f(source), computed when the file is written, so that memory need not hold it.
  virtual Tensor derived(const Tensor& source, const Shape& shape, DType dtype,
                         std::function<Tensor(const Tensor&)> f) = 0;

  // The values of a constant tensor of the graph; undefined for a computed one.
  virtual Tensor value_of(const std::string& tensor) const = 0;
  virtual DType type_of(const std::string& tensor) const = 0;
  struct Producer {
    std::string op;  // "" for an input or a constant
    OnnxNames inputs;
  };
  virtual Producer producer(const std::string& tensor) const = 0;

  // i64 [n] holding sizes, computed in the graph where they are dynamic.
  virtual std::string sizes(const std::vector<TracedSize>& sizes) = 0;
  // Built once per graph: `make` runs when `key` is new. Its nodes belong to no module, or to that of the operation
  // which happened to come first.
  enum class Owner { none, first };
  virtual std::string once(const std::string& key, const std::function<std::string()>& make,
                           Owner owner = Owner::none) = 0;
  virtual void note(const std::string& text) = 0;  // for ExportReport::notes

  std::string cast(const std::string& tensor, DType type);
  std::string scalar_of(const std::string& one_element);  // [1] -> []
  std::string transpose(const std::string& x, const std::vector<int64_t>& order);
  std::string unsqueeze(const std::string& x, const std::vector<int64_t>& axes);
  std::string reduce(const std::string& op, const std::string& x, const std::vector<int64_t>& axes, bool keepdims);
  std::string reshape(const std::string& x, const std::vector<TracedSize>& from, const std::vector<TracedSize>& to);
  std::string range(const std::string& begin, const std::string& end);  // i64
  // 0 where `visible`, and where not a number that fits into fp16 and whose exponential is 0.
  std::string additive_mask(const std::string& visible);
  static constexpr double kMasked = -1e4;

 protected:
  bool keep_fp32_ = false;  // for the nodes being added

 private:
  friend class Fp32Island;
};

// Nodes added inside the scope are computed in float32 in every precision.
class Fp32Island {
 public:
  explicit Fp32Island(OnnxBuilder& onnx) : onnx_(onnx), previous_(std::exchange(onnx.keep_fp32_, true)) {}
  ~Fp32Island() { onnx_.keep_fp32_ = previous_; }
  Fp32Island(const Fp32Island&) = delete;

 private:
  OnnxBuilder& onnx_;
  bool previous_;
};

// A node that is being imported, and its inputs; asking for what is not there is an error that names it.
struct ImportedOp {
  const std::string& op;
  const OnnxAttrs& attrs;
  const Tensors& inputs;
  int opset;
  size_t outputs;  // that the node names

  const Tensor& in(size_t i) const;
  bool has(size_t i) const { return i < inputs.size() && inputs[i].defined(); }
  std::vector<int64_t> ints_of(size_t i) const;  // the values of an integer input
  int64_t integer(const std::string& attr, int64_t otherwise) const;
  double number(const std::string& attr, double otherwise) const;
  std::string text(const std::string& attr, const std::string& otherwise) const;
  std::vector<int64_t> integers(const std::string& attr, std::vector<int64_t> otherwise) const;
  // Axes, shapes and the like moved from attributes to inputs over the years.
  std::vector<int64_t> attr_or_input(const std::string& attr, size_t input) const;
};

// What several lowerings do.
OnnxNames lower_to_identity(OnnxBuilder& onnx, const ExportedOp& op);
// Operands `first` and `first` + 1 brought to one type, as the operation itself does it.
OnnxNames promoted(OnnxBuilder& onnx, const ExportedOp& op, int first = 0);

}  // namespace xylem
