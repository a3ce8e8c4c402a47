// SPDX-License-Identifier: Apache-2.0
// Small ONNX models for tests, a line a node.
#pragma once
#include <onnx/onnx.pb.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support.h"

namespace xylem::testing {

struct OnnxBuilder {
  using Proto = onnx::TensorProto;
  onnx::ModelProto model;
  onnx::GraphProto& graph = *model.mutable_graph();

  explicit OnnxBuilder(int opset = 17, int ir = 8) {
    model.set_ir_version(ir);
    model.add_opset_import()->set_version(opset);
    graph.set_name("test");
  }
  // Dimensions are numbers ("3") or symbols ("batch").
  static void set_type(onnx::ValueInfoProto& v, const std::string& name, const std::vector<std::string>& shape,
                       int dtype) {
    v.set_name(name);
    auto& t = *v.mutable_type()->mutable_tensor_type();
    t.set_elem_type(dtype);
    t.mutable_shape();
    for (const auto& d : shape) {
      auto& dim = *t.mutable_shape()->add_dim();
      if (std::isdigit(static_cast<unsigned char>(d[0])))
        dim.set_dim_value(std::stoll(d));
      else
        dim.set_dim_param(d);
    }
  }
  OnnxBuilder& input(const std::string& name, const std::vector<std::string>& shape, int dtype = Proto::FLOAT) {
    set_type(*graph.add_input(), name, shape, dtype);
    return *this;
  }
  OnnxBuilder& output(const std::string& name, const std::vector<std::string>& shape, int dtype = Proto::FLOAT) {
    set_type(*graph.add_output(), name, shape, dtype);
    return *this;
  }
  OnnxBuilder& meta(const std::string& key, const std::string& value) {
    auto& p = *model.add_metadata_props();
    p.set_key(key);
    p.set_value(value);
    return *this;
  }
  OnnxBuilder& range(const std::string& symbol) { return meta("xylem.range." + symbol, "1,2,4"); }

  template <class T>
  OnnxBuilder& raw(const std::string& name, const std::vector<int64_t>& dims, int dtype, const std::vector<T>& values) {
    auto& t = *graph.add_initializer();
    t.set_name(name);
    t.set_data_type(dtype);
    for (int64_t d : dims) t.add_dims(d);
    t.set_raw_data(std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
    return *this;
  }
  // All values alike, or given.
  OnnxBuilder& f32(const std::string& name, const std::vector<int64_t>& dims, float value = 0.5f) {
    return raw(name, dims, Proto::FLOAT, std::vector<float>(count(dims), value));
  }
  OnnxBuilder& f32(const std::string& name, const std::vector<int64_t>& dims, const std::vector<float>& v) {
    return raw(name, dims, Proto::FLOAT, v);
  }
  OnnxBuilder& f16(const std::string& name, const std::vector<int64_t>& dims, uint16_t bits = 0x3800) {  // 0.5
    return raw(name, dims, Proto::FLOAT16, std::vector<uint16_t>(count(dims), bits));
  }
  OnnxBuilder& i8(const std::string& name, const std::vector<int64_t>& dims, int8_t value = 0) {
    return raw(name, dims, Proto::INT8, std::vector<int8_t>(count(dims), value));
  }
  OnnxBuilder& u8(const std::string& name, const std::vector<int64_t>& dims, uint8_t value = 0) {
    return raw(name, dims, Proto::UINT8, std::vector<uint8_t>(count(dims), value));
  }
  OnnxBuilder& i64(const std::string& name, const std::vector<int64_t>& v) {
    return raw(name, {int64_t(v.size())}, Proto::INT64, v);
  }

  onnx::NodeProto& add(const std::string& op, const std::vector<std::string>& inputs,
                       const std::vector<std::string>& outputs) {
    auto& n = *graph.add_node();
    n.set_op_type(op);
    n.set_name("/" + outputs[0] + "/" + op);
    for (const auto& i : inputs) n.add_input(i);
    for (const auto& o : outputs) n.add_output(o);
    return n;
  }
  // Chainable form.
  OnnxBuilder& node(const std::string& op, const std::vector<std::string>& inputs,
                    const std::vector<std::string>& outputs) {
    add(op, inputs, outputs);
    return *this;
  }
  onnx::NodeProto& last() { return *graph.mutable_node(graph.node_size() - 1); }
  OnnxBuilder& attr(const std::string& name, int64_t value) {
    auto& a = *last().add_attribute();
    a.set_name(name);
    a.set_type(onnx::AttributeProto::INT);
    a.set_i(value);
    return *this;
  }
  OnnxBuilder& text(const std::string& name, const std::string& value) {
    auto& a = *last().add_attribute();
    a.set_name(name);
    a.set_type(onnx::AttributeProto::STRING);
    a.set_s(value);
    return *this;
  }
  OnnxBuilder& ints(const std::string& name, const std::vector<int64_t>& value) {
    auto& a = *last().add_attribute();
    a.set_name(name);
    a.set_type(onnx::AttributeProto::INTS);
    for (int64_t v : value) a.add_ints(v);
    return *this;
  }

  // x -> QuantizeLinear -> DequantizeLinear -> y, with the scale and zero point named.
  OnnxBuilder& qdq(const std::string& x, const std::string& y, const std::string& scale, const std::string& zero) {
    return node("QuantizeLinear", {x, scale, zero}, {y + ".q"}).node("DequantizeLinear", {y + ".q", scale, zero}, {y});
  }
  // An int8 convolution of `in` to `out` channels, weight stored as int8, activation quantized just before.
  OnnxBuilder& conv_int8(const std::string& x, const std::string& y, int64_t in, int64_t out, int64_t groups = 1) {
    i8(y + ".w", {out, in / groups, 3, 3}, 5).f32(y + ".ws", {out}, 0.1f).i8(y + ".wz", {out});
    f32(y + ".s", {}, 0.1f).i8(y + ".z", {});
    qdq(x, y + ".x", y + ".s", y + ".z");
    node("DequantizeLinear", {y + ".w", y + ".ws", y + ".wz"}, {y + ".wd"}).attr("axis", int64_t(0));
    return node("Conv", {y + ".x", y + ".wd"}, {y}).ints("pads", {1, 1, 1, 1}).attr("group", groups);
  }

  std::string save(const std::string& name) const {
    static const Scratch folder;
    std::string path = folder / (name + ".onnx");
    std::ofstream out(path, std::ios::binary);
    model.SerializeToOstream(&out);
    return path;
  }

 private:
  static size_t count(const std::vector<int64_t>& dims) {
    size_t n = 1;
    for (int64_t d : dims) n *= size_t(d);
    return n;
  }
};

}  // namespace xylem::testing
