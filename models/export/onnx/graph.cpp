// SPDX-License-Identifier: Apache-2.0
#include "models/export/onnx/graph.h"

#include <algorithm>
#include <set>

#include "models/nn/lazy.h"

namespace xylem::exporting {

int onnx_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return type::float64;
    case DType::f32:
      return type::float32;
    case DType::f16:
      return type::float16;
    case DType::bf16:
      return type::bfloat16;
    case DType::i64:
      return type::int64;
    case DType::i32:
      return type::int32;
    case DType::i8:
      return type::int8;
    case DType::u8:
      return type::uint8;
    case DType::boolean:
      break;
  }
  return type::boolean;
}

DType xylem_type(int t) {
  for (DType d : {f64, f32, f16, bf16, i64, i32, i8, u8, boolean})
    if (onnx_type(d) == t) return d;
  XY_FAIL("a tensor has the ONNX element type ", t, ", which Xylem does not have");
}

bool is_onnx_float(int t) { return t == type::float32 || t == type::float16 || t == type::bfloat16; }

GraphTensor graph_tensor(const std::string& name, const Tensor& data) {
  auto on_host = [](const Tensor& t) { return t.detach().to(Device::cpu()).contiguous(); };
  const bool ready = !data.is_cuda() && data.is_contiguous();
  return {name, onnx_type(data.dtype()), data.shape().vec(),
          ready ? data.detach() : lazily(data, data.shape(), data.dtype(), on_host)};
}

const GraphAttr* GraphNode::find(const std::string& attr) const {
  for (const auto& [name, value] : attrs)
    if (name == attr) return &value;
  return nullptr;
}
void GraphNode::set(const std::string& attr, GraphAttr value) {
  for (auto& [name, old] : attrs)
    if (name == attr) {
      old = std::move(value);
      return;
    }
  attrs.emplace_back(attr, std::move(value));
}

GraphNode* Graph::producer(const std::string& tensor) {
  for (GraphNode& n : nodes)
    if (std::find(n.outputs.begin(), n.outputs.end(), tensor) != n.outputs.end()) return &n;
  return nullptr;
}

std::map<std::string, int> Graph::uses() const {
  std::map<std::string, int> count;
  for (const GraphNode& n : nodes)
    for (const std::string& in : n.inputs)
      if (!in.empty()) ++count[in];
  for (const GraphPort& out : outputs) ++count[out.name];
  return count;
}

int Graph::type_of(const std::string& tensor) const {
  if (auto it = initializers.find(tensor); it != initializers.end()) return it->second.type;
  for (const GraphPort& in : inputs)
    if (in.name == tensor) return in.type;
  auto it = values.find(tensor);
  XY_ASSERT(it != values.end(), "the type of ", tensor, " is unknown");
  return it->second.type;
}

void Graph::replace_uses(const std::string& from, const std::string& to) {
  for (GraphNode& n : nodes)
    for (std::string& in : n.inputs)
      if (in == from) in = to;
}

void Graph::drop_unused() {
  std::set<std::string> wanted;
  for (const GraphPort& out : outputs) wanted.insert(out.name);
  std::vector<GraphNode> kept;
  for (size_t i = nodes.size(); i-- > 0;) {
    if (std::none_of(nodes[i].outputs.begin(), nodes[i].outputs.end(),
                     [&](const std::string& out) { return wanted.contains(out); }))
      continue;
    wanted.insert(nodes[i].inputs.begin(), nodes[i].inputs.end());
    kept.push_back(std::move(nodes[i]));
  }
  std::reverse(kept.begin(), kept.end());
  nodes = std::move(kept);
  std::erase_if(initializers, [&](const auto& i) { return !wanted.contains(i.first); });
  std::erase_if(values, [&](const auto& v) { return !wanted.contains(v.first); });
}

int64_t Graph::weight_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, t] : initializers) bytes += int64_t(t.data.nbytes());
  return bytes;
}

int ir_version_for(int opset) {
  if (opset <= 14) return 7;
  if (opset <= 18) return 8;
  if (opset <= 20) return 9;
  if (opset <= 22) return 10;
  return opset == 23 ? 11 : 12;
}

}  // namespace xylem::exporting
