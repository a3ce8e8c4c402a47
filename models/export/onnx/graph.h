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

#include "core/op/onnx_types.h"

namespace xylem::exporting {

namespace type = onnx_types;

OnnxTensor graph_tensor(const std::string& name, const Tensor& data);

struct GraphNode {
  std::string op, name;
  std::vector<std::string> inputs = {}, outputs = {};
  std::vector<std::pair<std::string, OnnxAttr>> attrs = {};
  std::string domain = {}, scope = {};
  bool keep_fp32 = false;  // statistics, angles and masks are computed in float32 in every precision
  const OnnxAttr* find(const std::string& attr) const;
  void set(const std::string& attr, OnnxAttr value);
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

struct OnnxGraph {
  int opset = 17, ir_version = 8;
  std::string name = "main";
  std::vector<GraphNode> nodes;  // in an order that runs
  std::map<std::string, OnnxTensor> initializers;
  std::vector<GraphPort> inputs, outputs;
  std::map<std::string, GraphPort> values;  // type and shape of what nodes make, where known
  std::map<std::string, std::string> metadata;
  std::map<std::string, double> amax;  // the largest |x| seen of a tensor

  GraphNode* producer(const std::string& tensor);
  const GraphNode* producer(const std::string& tensor) const;
  std::map<std::string, int> uses() const;
  bool is_initializer(const std::string& tensor) const { return initializers.contains(tensor); }
  int type_of(const std::string& tensor) const;
  void replace_uses(const std::string& from, const std::string& to);  // in nodes only
  void drop_unused();                                                 // nodes and initializers
  int64_t weight_bytes() const;
};

int ir_version_for(int opset);

// graph_onnx.cpp
void write_graph(const OnnxGraph& graph, const std::string& file, bool external_data, int64_t external_over);
OnnxGraph read_graph(const std::string& file);
// hash_onnx.cpp: SHA-256 over the names and bytes of the initializers, in hexadecimal.
std::string weights_hash(const OnnxGraph& graph);

}  // namespace xylem::exporting
