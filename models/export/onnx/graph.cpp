// SPDX-License-Identifier: Apache-2.0
#include "models/export/onnx/graph.h"

#include <algorithm>
#include <set>

#include "models/nn/lazy.h"

namespace xylem::exporting {

OnnxTensor graph_tensor(const std::string& name, const Tensor& data) {
  auto on_host = [](const Tensor& t) { return t.detach().to(Device::cpu()).contiguous(); };
  const bool ready = !data.is_cuda() && data.is_contiguous();
  return {name, onnx_type(data.dtype()), data.shape().vec(),
          ready ? data.detach() : lazily(data, data.shape(), data.dtype(), on_host)};
}

const OnnxAttr* GraphNode::find(const std::string& attr) const {
  for (const auto& [name, value] : attrs)
    if (name == attr) return &value;
  return nullptr;
}
void GraphNode::set(const std::string& attr, OnnxAttr value) {
  for (auto& [name, old] : attrs)
    if (name == attr) {
      old = std::move(value);
      return;
    }
  attrs.emplace_back(attr, std::move(value));
}

const GraphNode* OnnxGraph::producer(const std::string& tensor) const {
  for (const GraphNode& n : nodes)
    if (std::find(n.outputs.begin(), n.outputs.end(), tensor) != n.outputs.end()) return &n;
  return nullptr;
}
GraphNode* OnnxGraph::producer(const std::string& tensor) {
  return const_cast<GraphNode*>(std::as_const(*this).producer(tensor));
}

std::map<std::string, int> OnnxGraph::uses() const {
  std::map<std::string, int> count;
  for (const GraphNode& n : nodes)
    for (const std::string& in : n.inputs)
      if (!in.empty()) ++count[in];
  for (const GraphPort& out : outputs) ++count[out.name];
  return count;
}

int OnnxGraph::type_of(const std::string& tensor) const {
  if (auto it = initializers.find(tensor); it != initializers.end()) return it->second.type;
  for (const GraphPort& in : inputs)
    if (in.name == tensor) return in.type;
  auto it = values.find(tensor);
  XY_ASSERT(it != values.end(), "the type of ", tensor, " is unknown");
  return it->second.type;
}

void OnnxGraph::replace_uses(const std::string& from, const std::string& to) {
  for (GraphNode& n : nodes)
    for (std::string& in : n.inputs)
      if (in == from) in = to;
}

void OnnxGraph::drop_unused() {
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

int64_t OnnxGraph::weight_bytes() const {
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
