// SPDX-License-Identifier: Apache-2.0
// OpSpec: what Xylem knows about an operation besides how to compute it. A static object in the operation's file
// registers it; tests/ops/all_ops_test.cpp then checks every registered operation on its samples.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace xylem {

// Both in core/op/lowering.h.
class OnnxBuilder;
struct ExportedOp;
struct ImportedOp;
using OnnxNames = std::vector<std::string>;  // tensors of an ONNX graph
// Adds the operation's nodes to the graph and returns the names of its outputs.
using OnnxLowering = std::function<OnnxNames(OnnxBuilder& onnx, const ExportedOp& op)>;
// Computes a node of ONNX, with its gradient, and returns its outputs.
using OnnxImport = std::function<Tensors(const ImportedOp& node)>;

// What passes over recorded operations (export, folding, quantization) need to know of one.
enum class OpRole {
  other,
  copy,      // moves data and changes nothing
  cast,      // the same values in another type
  composed,  // recorded after the operations that it is made of, which have its result already
  quantizer,
  linear,
  convolution,
  transposed_convolution,
  batch_norm,
  attention,
};

// One call of an operation for the tests. `inputs` are f64 (or integer) values on the CPU; the test casts the floats
// to the dtype and moves them to the device under test.
struct Sample {
  std::string name;
  Tensors inputs;
  std::function<Tensors(const Tensors&)> run;
  std::vector<int> differentiable = {};  // inputs to gradcheck; empty: every floating point input
};

class OpSpec {
 public:
  explicit OpSpec(std::string name);
  ~OpSpec();
  OpSpec(const OpSpec&) = delete;

  using Flops = std::function<double(std::span<const Tensor> inputs, std::span<const Tensor> outputs)>;
  OpSpec& samples(std::function<std::vector<Sample>()> make);
  OpSpec& flops(Flops count);                    // floating point operations of one forward call; default 0
  OpSpec& tolerance(double f32, double half16);  // largest |a - b| / (1 + |b|) allowed against the f64 CPU result
  OpSpec& double_backward();                     // backward is made of differentiable operations
  OpSpec& not_differentiable();
  OpSpec& dtypes(std::vector<DType> types);  // default f64 f32 f16 bf16
  OpSpec& role(OpRole role);
  // Its form in ONNX. Without one, and without a reason why there is none, export names the operation and stops.
  OpSpec& onnx(OnnxLowering lowering);
  OpSpec& not_exportable(std::string why);
  // Computes nodes of an operator of ONNX's own domain. Where several operations do (Gelu), all but one name the string
  // attribute that asks for theirs.
  struct OnnxVariant {
    std::string attribute, value;
  };
  OpSpec& imports(const std::string& onnx_operator, OnnxImport import, const OnnxVariant& variant = {});

  std::string name, backward_name;
  std::function<std::vector<Sample>()> make_samples;
  Flops flop_count;
  double tolerance_f32 = 1e-5, tolerance_half = 2e-2;
  bool supports_double_backward = false, differentiable = true;
  std::vector<DType> tested_dtypes = {f64, f32, f16, bf16};
  OpRole op_role = OpRole::other;
  OnnxLowering onnx_lowering;
  std::string export_obstacle;

  bool is(OpRole role) const { return op_role == role; }
};

// Every registered operation, sorted by name.
std::vector<const OpSpec*> registered_ops();
const OpSpec* find_op(const std::string& name);
// What imports() declared for an operator; null where nothing did. `text` gives the node's string attributes, "" for an
// absent one.
const OnnxImport* find_onnx_import(const std::string& onnx_operator,
                                   const std::function<std::string(const std::string& attribute)>& text);

// Sample inputs: reproducible values in f64.
Tensor sample_uniform(const Shape& shape, double low = -1, double high = 1, uint64_t seed = 1);
Tensor sample_normal(const Shape& shape, double stddev = 1, uint64_t seed = 1);
Tensor sample_index(const Shape& shape, int64_t bound, uint64_t seed = 1);  // i64 in [0, bound)

}  // namespace xylem
