// SPDX-License-Identifier: Apache-2.0
// An ONNX graph as the lint rules ask about it: who makes a tensor, who reads it, its type and shape where they can be
// told, the values of constants. Internal to the lint.
#pragma once
#include <onnx/onnx.pb.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace xylem::lint {

using Node = onnx::NodeProto;

struct Dim {
  int64_t value = -1;  // -1: not fixed
  std::string symbol;  // "" if it has no name
  bool fixed() const { return value >= 0; }
  bool operator==(const Dim&) const = default;
};

struct TensorType {
  int dtype = 0;  // onnx::TensorProto::DataType; 0: unknown
  std::optional<std::vector<Dim>> shape;
};

// The sizes of dynamic dimensions, {min, opt, max} by symbol.
using Ranges = std::map<std::string, std::vector<int64_t>>;

class Graph {
 public:
  // `folder`: of the model's external data, which is read where values of it are asked for.
  Graph(const onnx::ModelProto& model, Ranges ranges, std::optional<std::string> folder = {});

  const onnx::ModelProto& model;
  const onnx::GraphProto& graph;
  int opset = 0;  // of the ONNX domain
  Ranges ranges;  // given by the caller, or else found in the model's metadata ("xylem.range.<symbol>" = "min,opt,max")

  const std::vector<const Node*>& nodes() const { return nodes_; }  // in order
  const Node* producer(const std::string& tensor) const;
  const std::vector<const Node*>& consumers(const std::string& tensor) const;
  bool is_output(const std::string& tensor) const { return outputs_.contains(tensor); }
  bool is_input(const std::string& tensor) const { return inputs_.contains(tensor); }
  const TensorType& type(const std::string& tensor) const;
  // The initializer, or the value of the Constant node, behind a tensor; through Identity and Cast. nullptr: computed.
  const onnx::TensorProto* constant(const std::string& tensor) const;
  // All values, of any numeric type but the four-bit ones; empty when they are not there.
  std::vector<float> values(const onnx::TensorProto& t) const;
  // The bytes of a tensor that is not stored as a list, in the model or outside; empty when they are not there.
  std::string raw_data(const onnx::TensorProto& t) const;
  std::string metadata(const std::string& key) const;

  // Sizes; nullopt where they cannot be told.
  std::optional<int64_t> size(const std::string& tensor, int dim) const;  // negative dims count from the end
  int rank(const std::string& tensor) const;                              // -1: unknown
  // With dynamic dimensions at the middle of their range, or 1.
  double typical(const Dim& dim) const;
  double typical_numel(const std::string& tensor) const;  // 0: unknown

  // The single consumer of a tensor that nobody else sees, or nullptr.
  const Node* only_consumer(const std::string& tensor) const;

 private:
  void index();
  void infer();
  std::optional<std::string> folder_;
  std::vector<const Node*> nodes_;
  std::unordered_map<std::string, const Node*> producers_;
  std::unordered_map<std::string, std::vector<const Node*>> consumers_;
  std::unordered_map<std::string, const onnx::TensorProto*> constants_;
  std::unordered_map<std::string, TensorType> types_;
  std::set<std::string> inputs_, outputs_;
};

int64_t attribute(const Node& node, const char* name, int64_t otherwise);
std::string attribute_text(const Node& node, const char* name, const char* otherwise);
std::vector<int64_t> attribute_ints(const Node& node, const char* name);
bool has_attribute(const Node& node, const char* name);
inline bool is(const Node* node, const char* op) { return node && node->op_type() == op; }
inline std::string input(const Node& node, int i) { return i < node.input_size() ? node.input(i) : std::string(); }
// What a person calls the node: its name, or its operator and output.
std::string label(const Node& node);

int64_t numel(const onnx::TensorProto& t);
size_t element_bits(int dtype);
std::string dtype_name(int dtype);

// A layer with weights: Conv, ConvTranspose, Gemm or MatMul by a constant.
struct Weighted {
  const Node* node;
  const onnx::TensorProto* weight;  // before quantization where it is stored so, else the stored integers
  const Node* weight_dq = nullptr;  // the DequantizeLinear of the weight
  const Node* input_dq = nullptr;   // and of the activation
  int64_t in = 0, out = 0, groups = 1, kernel = 1;  // channels; kernel area
  bool conv() const { return node->op_type() != "Gemm" && node->op_type() != "MatMul"; }
  // What it computes in: "int8", "fp8", "fp16", "bf16", "fp32" (weight-only formats count as their activation's type)
  std::string precision = {};
  bool integer() const { return precision == "int8" || precision == "fp8"; }
};
std::vector<Weighted> weighted_layers(const Graph& graph);

}  // namespace xylem::lint
