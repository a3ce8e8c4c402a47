// SPDX-License-Identifier: Apache-2.0
// The graph as an ONNX file, and back.
#include <onnx/onnx.pb.h>

#include "models/export/onnx/file.h"
#include "models/export/onnx/graph.h"
#include "models/nn/lazy.h"

namespace xylem::exporting {
namespace {

void describe_tensor(const OnnxTensor& t, onnx::TensorProto& proto) {
  proto.set_name(t.name);
  proto.set_data_type(t.type);
  for (int64_t d : t.dims) proto.add_dims(d);
}

void fill_port(const GraphPort& p, onnx::ValueInfoProto& proto) {
  proto.set_name(p.name);
  auto* tensor = proto.mutable_type()->mutable_tensor_type();
  tensor->set_elem_type(p.type);
  auto* shape = tensor->mutable_shape();
  for (const GraphDim& d : p.dims) {
    auto* dim = shape->add_dim();
    if (d.size >= 0)
      dim->set_dim_value(d.size);
    else if (!d.symbol.empty())
      dim->set_dim_param(d.symbol);
  }
}

void fill_attribute(const std::string& name, const OnnxAttr& value, onnx::AttributeProto& proto) {
  using A = onnx::AttributeProto;
  proto.set_name(name);
  if (auto* i = std::get_if<int64_t>(&value)) {
    proto.set_type(A::INT);
    proto.set_i(*i);
  } else if (auto* f = std::get_if<double>(&value)) {
    proto.set_type(A::FLOAT);
    proto.set_f(float(*f));
  } else if (auto* s = std::get_if<std::string>(&value)) {
    proto.set_type(A::STRING);
    proto.set_s(*s);
  } else if (auto* is = std::get_if<std::vector<int64_t>>(&value)) {
    proto.set_type(A::INTS);
    for (int64_t i : *is) proto.add_ints(i);
  } else if (auto* fs = std::get_if<std::vector<double>>(&value)) {
    proto.set_type(A::FLOATS);
    for (double f : *fs) proto.add_floats(float(f));
  } else {
    proto.set_type(A::TENSOR);
    const auto& t = std::get<OnnxTensor>(value);
    describe_tensor(t, *proto.mutable_t());
    proto.mutable_t()->set_raw_data(t.data.numel() ? t.data.raw() : "", t.data.nbytes());
  }
}

OnnxTensor tensor_from(const onnx::TensorProto& proto) {
  OnnxTensor t{proto.name(), proto.data_type(), {proto.dims().begin(), proto.dims().end()}};
  if (t.type == type::float8 || t.type == type::int4) {
    int64_t elements = 1;
    for (int64_t d : t.dims) {
      XY_CHECK(d >= 0 && d < int64_t(1) << 40 && elements < int64_t(1) << 40, "tensor '", t.name,
               "' has an impossible dimension ", d);
      elements *= d;
    }
    const auto bytes = onnx_bytes(t.type, elements);
    XY_CHECK(proto.has_raw_data() && int64_t(proto.raw_data().size()) == bytes, "tensor '", t.name, "' should hold ",
             bytes, " bytes");
    t.data = from_bytes(proto.raw_data().data(), {bytes}, u8);
  } else {
    t.data = onnx_file::to_tensor(proto);
  }
  return t;
}

GraphPort port_from(const onnx::ValueInfoProto& proto) {
  GraphPort p{proto.name(), proto.type().tensor_type().elem_type()};
  p.shaped = proto.type().tensor_type().has_shape();
  for (const auto& d : proto.type().tensor_type().shape().dim())
    p.dims.push_back(d.has_dim_value() ? GraphDim{d.dim_value(), ""} : GraphDim{-1, d.dim_param()});
  return p;
}

OnnxAttr attribute_from(const std::string& node, const onnx::AttributeProto& a) {
  using A = onnx::AttributeProto;
  switch (a.type()) {
    case A::INT:
      return int64_t(a.i());
    case A::FLOAT:
      return double(a.f());
    case A::STRING:
      return a.s();
    case A::INTS:
      return std::vector<int64_t>(a.ints().begin(), a.ints().end());
    case A::FLOATS:
      return std::vector<double>(a.floats().begin(), a.floats().end());
    case A::TENSOR:
      return tensor_from(a.t());
    default:
      XY_FAIL("node '", node, "': attribute ", a.name(), " is of a kind that import does not know (a graph?)");
  }
}

}  // namespace

void write_graph(const OnnxGraph& graph, const std::string& file, bool external_data, int64_t external_over) {
  onnx::ModelProto model;
  model.set_ir_version(graph.ir_version);
  model.set_producer_name("xylem");
  model.set_producer_version(XY_VERSION);
  model.add_opset_import()->set_version(graph.opset);
  for (const auto& [key, value] : graph.metadata) {
    auto* entry = model.add_metadata_props();
    entry->set_key(key);
    entry->set_value(value);
  }
  auto* g = model.mutable_graph();
  g->set_name(graph.name);
  for (const GraphNode& n : graph.nodes) {
    auto* proto = g->add_node();
    proto->set_op_type(n.op);
    proto->set_name(n.name);
    if (!n.domain.empty()) proto->set_domain(n.domain);
    for (const std::string& in : n.inputs) proto->add_input(in);
    for (const std::string& out : n.outputs) proto->add_output(out);
    for (const auto& [name, value] : n.attrs) fill_attribute(name, value, *proto->add_attribute());
  }
  onnx_file::Writer writer(file, external_data || graph.weight_bytes() > external_over);
  for (const auto& [name, t] : graph.initializers) {
    auto* proto = g->add_initializer();
    describe_tensor(t, *proto);
    writer.add(*proto, t.data.numel() ? t.data.raw() : nullptr, int64_t(t.data.nbytes()));
    forget_lazy_values();
  }
  for (const GraphPort& p : graph.inputs) fill_port(p, *g->add_input());
  for (const GraphPort& p : graph.outputs) fill_port(p, *g->add_output());
  for (const auto& [name, p] : graph.values) {
    bool is_output = false;
    for (const GraphPort& out : graph.outputs) is_output = is_output || out.name == name;
    if (!is_output && p.shaped) fill_port(p, *g->add_value_info());
  }
  writer.finish(model);
}

OnnxGraph read_graph(const std::string& file) {
  onnx::ModelProto model;
  onnx_file::load(file, model);
  OnnxGraph graph;
  graph.ir_version = int(model.ir_version());
  graph.opset = 0;
  for (const auto& o : model.opset_import())
    if (o.domain().empty() || o.domain() == "ai.onnx") graph.opset = int(o.version());
  XY_CHECK(graph.opset >= 1 && graph.opset < 1000, "'", file, "' does not say which opset it uses");
  for (const auto& m : model.metadata_props()) graph.metadata[m.key()] = m.value();
  const auto& g = model.graph();
  graph.name = g.name();
  for (const auto& t : g.initializer()) graph.initializers[t.name()] = tensor_from(t);
  for (const auto& p : g.input())
    if (!graph.is_initializer(p.name())) graph.inputs.push_back(port_from(p));
  for (const auto& p : g.output()) graph.outputs.push_back(port_from(p));
  for (const auto& p : g.value_info()) graph.values[p.name()] = port_from(p);
  for (const auto& n : g.node()) {
    GraphNode node{n.op_type(), n.name(), {n.input().begin(), n.input().end()}, {n.output().begin(), n.output().end()}};
    node.domain = n.domain();
    for (const auto& a : n.attribute()) node.attrs.emplace_back(a.name(), attribute_from(n.name(), a));
    graph.nodes.push_back(std::move(node));
  }
  return graph;
}

}  // namespace xylem::exporting
