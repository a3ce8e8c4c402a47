// SPDX-License-Identifier: Apache-2.0
// Simulated quantization becomes QuantizeLinear and DequantizeLinear as each profile wants them. Every zero point is 0
// in training; the uint8 of ONNX Runtime shifts it to 128, which changes no value, or to 0 behind a ReLU, where the
// quantizer then reaches twice as far.
#include "ops/quant/quant_lowering.h"

#include <cmath>
#include <cstring>

namespace xylem {
namespace {

namespace type = onnx_types;

// The nearest e4m3 value, halves to even; saturates at 448.
uint8_t to_float8(double x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const double magnitude = std::min(std::abs(x), 448.0);
  if (!(magnitude > 0)) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  exponent = std::max(exponent - 1, -6);  // below 2^-6 the spacing stays
  auto steps = int(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  if (steps == 16) steps = 8, ++exponent;
  const int code = steps < 8 ? steps : ((exponent + 7) << 3) + (steps - 8);
  return sign | uint8_t(std::min(code, 0x7E));
}

struct Quantizer {
  std::string format;
  int64_t axis, low, high, block;
};
Quantizer quantizer_of(const ExportedOp& op) {
  return {op.text("format"), op.integer("axis"), op.integer("low"), op.integer("high"),
          op.has("block") ? op.integer("block") : 0};
}

int stored_type(const Quantizer& q) {
  if (q.format == "fp8") return type::float8;
  if (q.format == "int4") return type::int4;
  return q.low >= 0 ? type::uint8 : type::int8;
}
void check_opset(OnnxBuilder& onnx, const Quantizer& q) {
  const int needed = q.format == "fp8" ? 19 : q.format == "int4" || q.block > 0 ? 21 : 13;
  XY_CHECK(onnx.opset() >= needed, q.format, q.block ? " in blocks" : "", " needs opset ", needed, ", not ",
           onnx.opset());
}

// A channel that is all zero has no scale of its own; 1 serves as well and no runtime refuses it.
Tensor usable_scale(const Tensor& given, bool& dead) {
  Tensor s = given.detach().to(Device::cpu()).to(f32).clone();
  for (int64_t i = 0; i < s.numel(); ++i) {
    float& v = s.data<float>()[i];
    if (std::isfinite(v) && v > 0) continue;
    v = 1;
    dead = true;
  }
  return s.numel() == 1 ? s.reshape({}) : s;
}

OnnxAttrs axis_attrs(const Quantizer& q, const Tensor& scale, int rank) {
  OnnxAttrs attrs;
  if (scale.rank() == 0) return attrs;
  attrs.emplace_back("axis", q.block > 0 ? int64_t(rank - 1) : q.axis);
  if (q.block > 0) attrs.emplace_back("block_size", q.block);
  return attrs;
}

OnnxTensor float_tensor(const std::string& name, const Tensor& t) { return {name, type::float32, t.shape().vec(), t}; }
OnnxTensor zero_point(const std::string& name, int stored, const Tensor& scale, int value = 0) {
  int64_t bytes = scale.numel();
  if (stored == type::int4) bytes = (bytes + 1) / 2;
  OnnxTensor t{name, stored, scale.shape().vec(), full({bytes}, value, stored == type::int8 ? i8 : u8)};
  if (stored == type::int8 || stored == type::uint8) t.data = t.data.reshape(scale.shape());
  return t;
}

// What the numbers of a weight become: whole levels, or multiples of the scale that fp8 rounds.
class Levels {
 public:
  Levels(const Quantizer& q, const Tensor& scale, const Tensor& given, const Tensor& weight)
      : q_(q), scale_(scale.to_vector<float>()), given_(given.to_vector<float>()) {
    if (scale.rank() > 0) inner_ = q.block > 0 ? q.block : contiguous_strides(weight.shape())[int(q.axis)];
  }
  float scale(int64_t i) const { return scale_[at(i)]; }
  double operator()(float w, int64_t i) const {
    const float given = given_[at(i)];
    if (!std::isfinite(given) || given <= 0) return 0;  // a dead channel
    if (q_.format == "fp8") return double(w) / scale(i);
    return std::clamp(std::nearbyint(double(w / scale(i))), double(q_.low), double(q_.high));
  }

 private:
  size_t at(int64_t i) const { return size_t(i / inner_) % scale_.size(); }
  Quantizer q_;
  std::vector<float> scale_, given_;
  int64_t inner_ = 1;  // neighbours with one scale
};

// As the file holds them: int4 in pairs, fp8 as bytes.
Shape stored_shape(const Tensor& weight, int stored) {
  const int64_t n = weight.numel();
  if (stored == type::int4) return {(n + 1) / 2};
  return stored == type::float8 ? Shape{n} : weight.shape();
}
Tensor stored_levels(const Levels& levels, const Tensor& weight, int stored) {
  const int64_t n = weight.numel();
  const float* w = weight.data<float>();
  const bool packed = stored == type::int4;
  Tensor t = zeros(stored_shape(weight, stored), stored == type::int8 ? i8 : u8);
  auto* to = static_cast<uint8_t*>(t.raw());
  for (int64_t i = 0; i < n; ++i) {
    const double level = levels(w[i], i);
    if (packed)
      to[i / 2] |= uint8_t((int(level) & 0xF) << (i % 2 ? 4 : 0));
    else
      to[i] = stored == type::float8 ? to_float8(level) : uint8_t(int(level));
  }
  return t;
}

OnnxNames quantized_weight(OnnxBuilder& onnx, const ExportedOp& op, const Quantizer& q, const Tensor& weight,
                           const Tensor& given) {
  bool dead = false;
  Tensor scale = usable_scale(given, dead);
  const Levels levels(q, scale, given, weight);
  const int stored = stored_type(q);
  const std::string name = op.inputs[0];
  if (dead) onnx.note(name + ": channels that are all zero got the scale 1");
  std::string scale_name = onnx.initializer(float_tensor(name + ".scale", scale));
  OnnxAttrs attrs = axis_attrs(q, scale, weight.rank());

  const bool keeps_float = stored == type::int8 && onnx.target().float_weights;
  if (keeps_float) {  // float values on the grid, which Q maps to exactly the trained levels
    Tensor on_grid = onnx.derived(weight, weight.shape(), f32, [levels](const Tensor& w) {
      Tensor out = empty(w.shape());
      const float* from = w.data<float>();
      float* to = out.data<float>();
      for (int64_t i = 0; i < w.numel(); ++i) to[i] = float(levels(from[i], i)) * levels.scale(i);
      return out;
    });
    std::string x = onnx.initializer(float_tensor(name + ".rounded", on_grid));
    std::string zero = onnx.initializer(zero_point(name + ".zp", stored, scale));
    std::string y = onnx.typed_node("QuantizeLinear", {x, scale_name, zero}, attrs, stored);
    return {onnx.typed_node("DequantizeLinear", {y, scale_name, zero}, attrs, type::float32)};
  }
  OnnxTensor t{name + ".quantized", stored, weight.shape().vec()};
  t.data = onnx.derived(weight, stored_shape(weight, stored), stored == type::int8 ? i8 : u8,
                        [levels, stored](const Tensor& w) { return stored_levels(levels, w, stored); });
  std::string x = onnx.initializer(t), zero = onnx.initializer(zero_point(name + ".zp", stored, scale));
  return {onnx.typed_node("DequantizeLinear", {x, scale_name, zero}, attrs, type::float32)};
}

// Whether a tensor is never negative: it comes from a ReLU, perhaps by way of what keeps signs.
bool follows_relu(OnnxBuilder& onnx, const std::string& tensor) {
  OnnxBuilder::Producer p = onnx.producer(tensor);
  while (p.op == "MaxPool" || p.op == "Reshape" || p.op == "Transpose" || p.op == "GlobalAveragePool" ||
         p.op == "AveragePool")
    p = onnx.producer(p.inputs[0]);
  return p.op == "Relu";
}

OnnxNames quantized_activation(OnnxBuilder& onnx, const ExportedOp& op, const Quantizer& q, const Tensor& given) {
  bool dead = false;
  Tensor scale = usable_scale(given, dead);
  XY_CHECK(q.block == 0, "only weights can be quantized in blocks");
  std::string x = op.inputs[0];
  int stored = stored_type(q), zero = 0;
  if (stored == type::int8 && onnx.target().uint8_activations) {
    stored = type::uint8;
    zero = follows_relu(onnx, x) ? 0 : 128;
  }
  const bool full_range = q.format == "fp8" || (q.low == -128 && q.high == 127) || (q.low == 0 && q.high == 255);
  if (!full_range) {
    XY_CHECK(scale.rank() == 0, "a range of [", q.low, ", ", q.high, "] needs one scale for the tensor");
    const double s = scale.item();
    x = onnx.node("Clip", {x, onnx.scalar(double(q.low) * s), onnx.scalar(double(q.high) * s)});
  }
  const std::string name = op.inputs[0];
  // Readers that round a tensor alike share the pair: runtimes fuse what makes the tensor with one QuantizeLinear.
  std::string key = "quantized " + name + " " + q.format;
  for (int64_t v : {q.axis, q.low, q.high}) key += " " + std::to_string(v);
  key.append(static_cast<const char*>(scale.raw()), scale.nbytes());
  auto make = [&] {
    std::string scale_name = onnx.initializer(float_tensor(name + ".scale", scale));
    std::string zero_name = onnx.initializer(zero_point(name + ".zp", stored, scale, zero));
    OnnxAttrs attrs = axis_attrs(q, scale, op.rank(0));
    std::string y = onnx.typed_node("QuantizeLinear", {x, scale_name, zero_name}, attrs, stored);
    return onnx.typed_node("DequantizeLinear", {y, scale_name, zero_name}, attrs, type::float32);
  };
  return {onnx.once(key, make, OnnxBuilder::Owner::first)};
}

}  // namespace

OnnxNames lower_fake_quantize(OnnxBuilder& onnx, const ExportedOp& op) {
  Quantizer q = quantizer_of(op);
  check_opset(onnx, q);
  Tensor weight = onnx.value_of(op.inputs[0]), scale = onnx.value_of(op.inputs[1]);
  XY_CHECK(scale.defined(), "the scale is computed from the input; freeze the scales before export");
  return weight.defined() ? quantized_weight(onnx, op, q, weight, scale) : quantized_activation(onnx, op, q, scale);
}

}  // namespace xylem
