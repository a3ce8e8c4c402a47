// SPDX-License-Identifier: Apache-2.0
#include "core/op/op_spec.h"

#include <cmath>
#include <map>
#include <numbers>

#include "core/random/rng.h"

namespace xylem {
namespace {

std::map<std::string, const OpSpec*>& registry() {
  static auto* ops = new std::map<std::string, const OpSpec*>;
  return *ops;
}

struct DeclaredImport {
  std::string op;
  OpSpec::OnnxVariant variant;
  OnnxImport import;
  const OpSpec* owner;
};
std::vector<DeclaredImport>& declared_imports() {
  static auto* all = new std::vector<DeclaredImport>;
  return *all;
}

template <class F>
Tensor generate(const Shape& shape, DType dtype, uint64_t seed, F&& value) {
  Tensor t = empty(shape, dtype);
  for (int64_t i = 0; i < t.numel(); ++i) {
    Philox4 r = philox(seed, uint64_t(i), 0x5A3D);
    double u = (double(r.v[0]) + 0.5) * 0x1p-32, v = (double(r.v[1]) + 0.5) * 0x1p-32;
    if (dtype == i64)
      t.data<int64_t>()[i] = int64_t(value(u, v));
    else
      t.data<double>()[i] = value(u, v);
  }
  return t;
}

}  // namespace

OpSpec::OpSpec(std::string n) : name(std::move(n)), backward_name(name + ".backward") {
  bool fresh = registry().emplace(name, this).second;
  XY_CHECK(fresh, "an operation named \"", name, "\" is already registered; give yours another name");
}
OpSpec::~OpSpec() {
  registry().erase(name);
  std::erase_if(declared_imports(), [&](const DeclaredImport& d) { return d.owner == this; });
}

OpSpec& OpSpec::samples(std::function<std::vector<Sample>()> make) {
  make_samples = std::move(make);
  return *this;
}
OpSpec& OpSpec::flops(Flops count) {
  flop_count = std::move(count);
  return *this;
}
OpSpec& OpSpec::tolerance(double f32_limit, double half_limit) {
  tolerance_f32 = f32_limit, tolerance_half = half_limit;
  return *this;
}
OpSpec& OpSpec::double_backward() {
  supports_double_backward = true;
  return *this;
}
OpSpec& OpSpec::not_differentiable() {
  differentiable = false;
  return *this;
}
OpSpec& OpSpec::dtypes(std::vector<DType> types) {
  tested_dtypes = std::move(types);
  return *this;
}
OpSpec& OpSpec::role(OpRole role) {
  op_role = role;
  return *this;
}
OpSpec& OpSpec::onnx(OnnxLowering lowering) {
  onnx_lowering = std::move(lowering);
  return *this;
}
OpSpec& OpSpec::imports(const std::string& onnx_operator, OnnxImport import, const OnnxVariant& variant) {
  for (const DeclaredImport& d : declared_imports())
    XY_CHECK(d.op != onnx_operator || d.variant.attribute != variant.attribute || d.variant.value != variant.value,
             "ONNX's ", onnx_operator, " is imported by the operation \"", d.owner->name, "\" already");
  declared_imports().push_back({onnx_operator, variant, std::move(import), this});
  return *this;
}
OpSpec& OpSpec::not_exportable(std::string why) {
  export_obstacle = std::move(why);
  return *this;
}

std::vector<const OpSpec*> registered_ops() {
  std::vector<const OpSpec*> ops;
  for (auto& [name, spec] : registry()) ops.push_back(spec);
  return ops;
}
const OpSpec* find_op(const std::string& name) {
  auto it = registry().find(name);
  return it == registry().end() ? nullptr : it->second;
}

const OnnxImport* find_onnx_import(const std::string& onnx_operator,
                                   const std::function<std::string(const std::string& attribute)>& text) {
  const OnnxImport* plain = nullptr;
  for (const DeclaredImport& d : declared_imports()) {
    if (d.op != onnx_operator) continue;
    if (d.variant.attribute.empty())
      plain = &d.import;
    else if (text(d.variant.attribute) == d.variant.value)
      return &d.import;
  }
  return plain;
}

Tensor sample_uniform(const Shape& shape, double low, double high, uint64_t seed) {
  return generate(shape, f64, seed, [=](double u, double) { return low + (high - low) * u; });
}
Tensor sample_normal(const Shape& shape, double stddev, uint64_t seed) {
  return generate(shape, f64, seed, [=](double u, double v) {
    return stddev * std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
  });
}
Tensor sample_index(const Shape& shape, int64_t bound, uint64_t seed) {
  return generate(shape, i64, seed, [=](double u, double) { return u * double(bound); });
}

}  // namespace xylem
