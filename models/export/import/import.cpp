// SPDX-License-Identifier: Apache-2.0
#include "models/export/import/import.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "models/export/import/ops.h"
#include "models/export/import/weights.h"
#include "ops/ops.h"
#include "ops/quant/quant.h"

namespace xylem {

using namespace exporting;

struct OnnxModule::Impl {
  OnnxGraph graph;
  // Initializers as the module holds them. Integers behind DequantizeLinear have become the floats they stand for.
  std::map<std::string, Tensor> parameters, constants;
  std::map<std::string, Buffer> buffers;
  std::vector<OnnxImport> imports;                 // of each node; empty for those that run() knows itself
  std::map<std::string, FakeQuantizeArgs> stored;  // of initializers that the file holds in low precision

  void check();  // and finds out how each node is computed
  void sort_initializers(const ImportOptions& options);
  FakeQuantizeArgs arguments(const GraphNode& n, int type) const;
  Tensor quantizer_scale(const GraphNode& n) const;
  Tensors run(const Tensors& inputs) const;
};

namespace {

int type_of_zero_point(const OnnxGraph& g, const GraphNode& n) {
  if (n.inputs.size() < 3 || n.inputs[2].empty()) return type::uint8;
  auto it = g.initializers.find(n.inputs[2]);
  XY_CHECK(it != g.initializers.end(), "node '", n.name, "': the zero point must be a constant");
  return it->second.type;
}

double from_float8(uint8_t code) {
  const int exponent = code >> 3 & 0xF, fraction = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(double(fraction), -9) : std::ldexp(1 + double(fraction) / 8, exponent - 7);
  return code & 0x80 ? -magnitude : magnitude;
}

// The whole numbers, or fp8 values, that a quantized initializer holds.
Tensor levels(const OnnxTensor& t) {
  const Shape shape(t.dims);
  if (t.type == type::int8 || t.type == type::uint8) return t.data.to(f32);
  Tensor out = empty(shape);
  const uint8_t* bytes = t.data.data<uint8_t>();
  for (int64_t i = 0; i < out.numel(); ++i) {
    if (t.type == type::float8) {
      out.data<float>()[i] = float(from_float8(bytes[i]));
    } else {
      const int nibble = bytes[i / 2] >> (i % 2 ? 4 : 0) & 0xF;
      out.data<float>()[i] = float(nibble < 8 ? nibble : nibble - 16);
    }
  }
  return out;
}

Tensor spread(const Tensor& scale, const FakeQuantizeArgs& args, const Shape& shape) {
  if (scale.numel() == 1) return scale.reshape({}).expand(shape);
  Shape s = scale.shape();
  if (args.block > 0) {
    Shape wide = s;
    s.push_back(1), wide.push_back(args.block);
    return scale.reshape(s).expand(wide).contiguous().reshape(shape);
  }
  s = Shape::filled(shape.rank(), 1);
  XY_CHECK(args.axis >= 0 && args.axis < shape.rank() && shape[args.axis] == scale.numel(), "a scale of shape ",
           scale.shape(), " does not fit a weight of shape ", shape);
  s[args.axis] = scale.numel();
  return scale.reshape(s).expand(shape);
}

}  // namespace

FakeQuantizeArgs OnnxModule::Impl::arguments(const GraphNode& n, int stored_type) const {
  FakeQuantizeArgs args;
  const Tensors none;
  const ImportedOp call{n.op, n.attrs, none, graph.opset, n.outputs.size()};
  const int64_t axis = call.integer("axis", 1), block = call.integer("block_size", 0);
  XY_CHECK(axis >= -kMaxRank && axis < kMaxRank && block >= 0 && block < (int64_t(1) << 31), "the axis ", axis,
           " or the block size ", block, " is impossible");
  int64_t zero = 0;
  if (n.inputs.size() > 2 && !n.inputs[2].empty()) {
    const OnnxTensor& z = graph.initializers.at(n.inputs[2]);
    if (z.type == type::int8 || z.type == type::uint8) {
      std::vector<int64_t> values = z.data.to_vector<int64_t>();
      XY_CHECK(!values.empty() && std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == values[0]; }),
               "zero points that differ between channels are not supported");
      zero = values[0];
    }
  }
  switch (stored_type) {
    case type::int8:
      args.low = -128 - zero, args.high = 127 - zero;
      break;
    case type::uint8:
      args.low = -zero, args.high = 255 - zero;
      break;
    case type::float8:
      args.format = QuantFormat::fp8;
      break;
    case type::int4:
      args.format = QuantFormat::int4;
      args.low = -8, args.high = 7;
      break;
    default:
      XY_FAIL("the quantized type ", stored_type, " is not supported");
  }
  auto scale = graph.initializers.find(n.inputs.at(1));
  XY_CHECK(scale != graph.initializers.end(), "the scale must be a constant");
  args.axis = scale->second.data.numel() == 1 ? -1 : int(axis);
  args.block = block;
  if (block > 0) args.axis = -1;
  return args;
}

Tensor OnnxModule::Impl::quantizer_scale(const GraphNode& n) const {
  auto it = graph.initializers.find(n.inputs[1]);
  XY_CHECK(it != graph.initializers.end(), "the scale must be a constant");
  Tensor scale = it->second.data.to(f32);
  return scale.numel() == 1 ? scale.reshape({1}) : scale;
}

void OnnxModule::Impl::check() {
  std::set<std::string> known, unknown;
  for (const GraphPort& in : graph.inputs) known.insert(in.name);
  for (const auto& [name, t] : graph.initializers) known.insert(name);
  for (const GraphNode& n : graph.nodes) {
    const bool constant = n.op == "Constant";
    const bool quantizer = n.op == "QuantizeLinear" || n.op == "DequantizeLinear";
    if (!n.domain.empty() && n.domain != "ai.onnx")
      unknown.insert(n.domain + "." + n.op);
    else if (imports.emplace_back(find_import(n)); !constant && !quantizer && !imports.back())
      unknown.insert(n.op);
    for (const std::string& in : n.inputs)
      XY_CHECK(in.empty() || known.contains(in), "node '", n.name, "' reads '", in, "', which nothing before it makes");
    XY_CHECK(!n.outputs.empty(), "node '", n.name, "' makes nothing");
    for (const std::string& out : n.outputs)
      XY_CHECK(out.empty() || known.insert(out).second, "'", out, "' is made twice");
    if (quantizer) XY_CHECK(n.inputs.size() >= 2, "node '", n.name, "' has no scale");
  }
  std::string list;
  for (const std::string& op : unknown) list += (list.empty() ? "" : ", ") + op;
  XY_CHECK(unknown.empty(), "import does not know the operators ", list);
  for (const GraphPort& out : graph.outputs)
    XY_CHECK(known.contains(out.name), "nothing makes the output '", out.name, "'");
  XY_CHECK(!graph.outputs.empty(), "the graph has no output");
}

// Into what is trained, running statistics, and the rest.
void OnnxModule::Impl::sort_initializers(const ImportOptions& options) {
  const std::set<std::string> weights = weights_of(graph);
  auto keep = [&](const std::string& name, const Tensor& value) {
    bool trained = weights.contains(name);
    if (options.trained) trained = options.trained(name, trained);
    if (trained)
      parameters[name] = parameter(value.detach().clone());
    else
      constants[name] = value;
  };
  for (const GraphNode& n : graph.nodes) {
    if (n.op == "DequantizeLinear" && graph.is_initializer(n.inputs[0])) {
      const OnnxTensor& w = graph.initializers.at(n.inputs[0]);
      stored[n.inputs[0]] = arguments(n, w.type);
      const FakeQuantizeArgs& args = stored[n.inputs[0]];
      const int64_t zero = w.type == type::uint8 ? -args.low : w.type == type::int8 ? -128 - args.low : 0;
      Tensor scale = quantizer_scale(n), q = levels(w);
      if (zero != 0) q = q - double(zero);
      keep(n.inputs[0], (q * spread(scale, args, q.shape())).contiguous());
    }
    if (n.op == "BatchNormalization")
      for (size_t i : {size_t(3), size_t(4)})
        if (i < n.inputs.size() && graph.is_initializer(n.inputs[i]))
          buffers[n.inputs[i]].tensor = graph.initializers.at(n.inputs[i]).data.to(f32);
  }
  for (const auto& [name, t] : graph.initializers) {
    if (stored.contains(name) || buffers.contains(name)) continue;
    if (t.type == type::float8 || t.type == type::int4) continue;  // zero points
    if (is_float(t.data.dtype()))
      keep(name, t.data.to(f32));
    else
      constants[name] = t.data;
  }
}

Tensors OnnxModule::Impl::run(const Tensors& inputs) const {
  XY_CHECK(inputs.size() == graph.inputs.size(), "the model has ", graph.inputs.size(), " inputs, not ", inputs.size());
  std::map<std::string, Tensor> values;
  std::map<std::string, FakeQuantizeArgs> quantized;  // results of QuantizeLinear: their input stands for them
  for (size_t i = 0; i < inputs.size(); ++i) values[graph.inputs[i].name] = inputs[i];
  auto find = [&](const std::string& name) -> Tensor {
    if (name.empty()) return {};
    if (auto it = values.find(name); it != values.end()) return it->second;
    if (auto it = parameters.find(name); it != parameters.end()) return it->second;
    if (auto it = buffers.find(name); it != buffers.end()) return it->second.tensor;
    if (auto it = constants.find(name); it != constants.end()) return it->second;
    return {};
  };
  for (size_t k = 0; k < graph.nodes.size(); ++k) {
    const GraphNode& n = graph.nodes[k];
    try {
      Tensors in, out;
      for (const std::string& name : n.inputs) in.push_back(find(name));
      const ImportedOp call{n.op, n.attrs, in, graph.opset, n.outputs.size()};
      if (n.op == "QuantizeLinear") {
        quantized[n.outputs[0]] = arguments(n, type_of_zero_point(graph, n));
        out = {call.in(0)};
      } else if (n.op == "DequantizeLinear") {
        auto it = quantized.find(n.inputs[0]);
        auto weight = stored.find(n.inputs[0]);
        XY_CHECK(it != quantized.end() || weight != stored.end(), "its input is not quantized in this graph");
        out = {fake_quantize(call.in(0), quantizer_scale(n), it != quantized.end() ? it->second : weight->second)};
      } else if (n.op == "Constant") {
        const OnnxAttr* value = n.find("value");
        XY_CHECK(value && std::holds_alternative<OnnxTensor>(*value), "only tensors are supported");
        Tensor t = std::get<OnnxTensor>(*value).data;
        out = {is_float(t.dtype()) ? t.to(f32) : t};
      } else {
        out = imports[k](call);
      }
      XY_CHECK(out.size() >= n.outputs.size(), "it makes ", out.size(), " tensors, not ", n.outputs.size());
      for (size_t i = 0; i < n.outputs.size(); ++i)
        if (!n.outputs[i].empty()) values[n.outputs[i]] = out[i];
    } catch (const Error& e) {
      XY_FAIL(n.op, " '", n.name, "': ", e.message());
    } catch (const std::exception& e) {
      XY_FAIL(n.op, " '", n.name, "': ", e.what());
    }
  }
  Tensors results;
  for (const GraphPort& out : graph.outputs) results.push_back(find(out.name));
  return results;
}

OnnxModule::OnnxModule(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OnnxModule::OnnxModule(OnnxModule&&) noexcept = default;
OnnxModule::~OnnxModule() = default;

std::vector<std::string> OnnxModule::input_names() const {
  std::vector<std::string> names;
  for (const GraphPort& p : impl_->graph.inputs) names.push_back(p.name);
  return names;
}
std::vector<std::string> OnnxModule::output_names() const {
  std::vector<std::string> names;
  for (const GraphPort& p : impl_->graph.outputs) names.push_back(p.name);
  return names;
}
std::string OnnxModule::metadata(const std::string& key) const {
  auto it = impl_->graph.metadata.find(key);
  return it == impl_->graph.metadata.end() ? "" : it->second;
}
int OnnxModule::opset() const { return impl_->graph.opset; }

Tensors OnnxModule::operator()(const Tensors& inputs) const { return impl_->run(inputs); }
Tensor OnnxModule::operator()(const Tensor& x) const { return impl_->run({x})[0]; }

void OnnxModule::list_members(std::vector<Member>& out) {
  for (auto& [name, tensor] : impl_->parameters) out.push_back({.name = name, .tensor = &tensor});
  for (auto& [name, buffer] : impl_->buffers)
    out.push_back({.name = name, .tensor = &buffer.tensor, .is_buffer = true});
}

OnnxModule import_onnx(const std::string& file, const ImportOptions& options) {
#ifdef XY_WITH_ONNX
  auto impl = std::make_unique<OnnxModule::Impl>();
  try {
    impl->graph = read_graph(file);
    impl->check();
    impl->sort_initializers(options);
  } catch (const Error& e) {
    XY_FAIL("cannot import '", file, "': ", e.message());
  } catch (const std::exception& e) {
    XY_FAIL("cannot import '", file, "': ", e.what());
  }
  return OnnxModule(std::move(impl));
#else
  XY_FAIL("cannot import '", file, "': this build has no ONNX support; run scripts/setup.sh and configure again");
#endif
}

}  // namespace xylem
