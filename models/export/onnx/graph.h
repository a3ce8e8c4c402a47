// SPDX-License-Identifier: Apache-2.0
// The ONNX graph in plain C++: what the exporter builds, its passes change, and import reads. graph_onnx.cpp turns it
// into a file and back.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/tensor/tensor.h"
#include "models/export/lower/lowering.h"

namespace xylem::exporting {

// TensorProto::DataType.
namespace type {
inline constexpr int float32 = 1, uint8 = 2, int8 = 3, int32 = 6, int64 = 7, boolean = 9, float16 = 10, float64 = 11,
                     bfloat16 = 16, float8 = 17, int4 = 22;
}
int onnx_type(DType dtype);
DType xylem_type(int onnx_type);    // throws for fp8, int4, strings
bool is_onnx_float(int onnx_type);  // float32, float16, bfloat16

struct GraphTensor {
  std::string name;
  int type = type::float32;
  std::vector<int64_t> dims = {};
  Tensor data = {};  // on the CPU; fp8 and int4 as the bytes of the file (u8)
};
GraphTensor graph_tensor(const std::string& name, const Tensor& data);

using GraphAttr = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>, GraphTensor>;

struct GraphNode {
  std::string op, name;
  std::vector<std::string> inputs = {}, outputs = {};
  std::vector<std::pair<std::string, GraphAttr>> attrs = {};
  std::string domain = {}, scope = {};
  bool keep_fp32 = false;  // statistics, angles and masks are computed in float32 in every precision
  const GraphAttr* find(const std::string& attr) const;
  void set(const std::string& attr, GraphAttr value);
};

struct GraphDim {
  int64_t size = -1;        // -1: dynamic
  std::string symbol = {};  // "" where fixed or nameless
};
struct GraphPort {
  std::string name;
  int type = type::float32;
  std::vector<GraphDim> dims = {};
  bool shaped = true;  // false: only the type is known
};

struct Graph {
  int opset = 17, ir_version = 8;
  std::string name = "main";
  std::vector<GraphNode> nodes;  // in an order that runs
  std::map<std::string, GraphTensor> initializers;
  std::vector<GraphPort> inputs, outputs;
  std::map<std::string, GraphPort> values;  // type and shape of what nodes make, where known
  std::map<std::string, std::string> metadata;
  std::map<std::string, double> amax;  // the largest |x| seen of a tensor

  GraphNode* producer(const std::string& tensor);
  std::map<std::string, int> uses() const;
  bool is_initializer(const std::string& tensor) const { return initializers.contains(tensor); }
  int type_of(const std::string& tensor) const;
  void replace_uses(const std::string& from, const std::string& to);  // in nodes only
  void drop_unused();                                                 // nodes and initializers
  int64_t weight_bytes() const;
};

int ir_version_for(int opset);

// graph_onnx.cpp
void write_graph(const Graph& graph, const std::string& file, bool external_data, int64_t external_over);
Graph read_graph(const std::string& file);

}  // namespace xylem::exporting
