// SPDX-License-Identifier: Apache-2.0
#include "models/export/lower/lower.h"

#include <algorithm>
#include <cstring>

#include "models/export/runtime/target.h"
#include "models/nn/lazy.h"

namespace xylem::exporting {
namespace {

// Floating point is float32 in the graph until its precision is assigned.
Tensor as_float32(const Tensor& t) {
  const DType dtype = is_float(t.dtype()) ? f32 : t.dtype();
  if (t.dtype() == dtype) return t;
  return lazily(t, t.shape(), dtype, [dtype](const Tensor& x) { return x.detach().to(Device::cpu()).to(dtype); });
}
DType graph_dtype(DType t) { return is_float(t) ? f32 : t; }

OnnxTarget target_of(Profile p) {
  const bool ort = p == Profile::ort_cpu;
  const bool tensorrt = p == Profile::trt8 || p == Profile::trt10 || p == Profile::trt11;
  return {.float_weights = p == Profile::exact || p == Profile::trt8,
          .uint8_activations = ort,
          .any_attention = !tensorrt,
          .integer_gemm = ort};
}

std::string path_of(const std::string& scope) {
  std::string path = "/";
  for (char c : scope) path += c == '.' ? '/' : c;
  return path.size() > 1 ? path + "/" : path;
}

}  // namespace

GraphBuilder::GraphBuilder(OnnxGraph& graph, const TracedGraph& trace, Profile profile, DecoderInputs* decoder,
                           std::vector<std::string>& notes)
    : graph_(graph),
      trace_(trace),
      profile_(profile),
      target_(target_of(profile)),
      decoder_(decoder),
      notes_(notes),
      names_(trace.values.size()) {
  if (decoder) decoder->onnx_ = this;
  for (const GraphPort& in : graph.inputs) taken_.insert(in.name);
  for (const GraphPort& out : graph.outputs) taken_.insert(out.name);
  for (int v : trace.inputs) names_[v] = trace.values[v].name;
}

std::string GraphBuilder::unique(const std::string& wish) {
  std::string name = wish;
  while (!taken_.insert(name).second) name = wish + "_" + std::to_string(++counters_[wish]);
  return name;
}

OnnxNames GraphBuilder::nodes(const std::string& op, const OnnxNames& inputs, int outputs, const OnnxAttrs& attrs,
                              const std::vector<DType>& types) {
  GraphNode n{op, unique(path_of(scope_) + op), inputs, {}};
  n.scope = scope_;
  n.keep_fp32 = keep_fp32_;
  n.attrs = attrs;
  for (int i = 0; i < outputs; ++i) {
    std::string name = unique(n.name + "_output" + (i ? std::to_string(i) : ""));
    const int t = size_t(i) < types.size() ? onnx_type(types[i]) : graph_.type_of(inputs.at(0));
    graph_.values[name] = {.name = name, .type = t, .dims = {}, .shaped = false};
    n.outputs.push_back(name);
  }
  graph_.nodes.push_back(n);
  return n.outputs;
}
std::string GraphBuilder::node(const std::string& op, const OnnxNames& inputs, const OnnxAttrs& attrs,
                               std::optional<DType> type) {
  return nodes(op, inputs, 1, attrs, type ? std::vector{graph_dtype(*type)} : std::vector<DType>())[0];
}

std::string GraphBuilder::typed_node(const std::string& op, const OnnxNames& inputs, const OnnxAttrs& attrs, int type) {
  std::string out = node(op, inputs, attrs, f32);
  graph_.values[out].type = type;
  return out;
}

// Small unnamed constants are shared when equal; weights only when they are the same memory.
std::string GraphBuilder::constant(const Tensor& value, const std::string& wish) {
  Tensor t = as_float32(value);
  std::string key;
  if (wish.empty()) {
    t = t.detach().to(Device::cpu()).contiguous();
    key = std::to_string(onnx_type(t.dtype())) + t.shape().str();
    if (t.numel()) key.append(static_cast<const char*>(t.raw()), t.nbytes());
    if (auto it = constants_.find(key); it != constants_.end()) return it->second;
  }
  std::string name = initializer(graph_tensor(wish.empty() ? "constant" : wish, t));
  if (wish.empty()) constants_[key] = name;
  return name;
}
std::string GraphBuilder::initializer(OnnxTensor tensor) {
  tensor.name = unique(tensor.name);
  std::string name = tensor.name;
  graph_.initializers[name] = std::move(tensor);
  return name;
}

Tensor GraphBuilder::derived(const Tensor& source, const Shape& shape, DType dtype,
                             std::function<Tensor(const Tensor&)> f) {
  return lazily(source, shape, dtype, std::move(f));
}

std::string GraphBuilder::rename_last(const std::string& name) {
  std::string& out = graph_.nodes.back().outputs[0];
  graph_.values.erase(out);
  graph_.values[name] = {.name = name, .type = type::float32, .dims = {}, .shaped = false};
  return out = name;
}

bool GraphBuilder::has(const std::string& op, int since) const {
  if (opset() < since) return false;
  switch (profile_) {
    case Profile::trt8:
      return lint::tensorrt_always_has(op, 8, opset());
    case Profile::trt10:
      return lint::tensorrt_always_has(op, 10, opset());
    case Profile::trt11:
      return lint::tensorrt_always_has(op, 11, opset());
    default:
      return true;
  }
}

OnnxBuilder::Producer GraphBuilder::producer(const std::string& tensor) const {
  const GraphNode* made = graph_.producer(tensor);
  return made ? Producer{made->op, made->inputs} : Producer{};
}

Tensor GraphBuilder::value_of(const std::string& tensor) const {
  auto it = graph_.initializers.find(tensor);
  return it == graph_.initializers.end() ? Tensor() : it->second.data;
}
DType GraphBuilder::type_of(const std::string& tensor) const { return dtype_from_onnx(graph_.type_of(tensor)); }

std::string GraphBuilder::once(const std::string& key, const std::function<std::string()>& make, Owner owner) {
  if (auto it = once_.find(key); it != once_.end()) return it->second;
  if (owner == Owner::first) return once_[key] = make();
  std::string previous = scope_;
  scope_.clear();
  std::string made = make();
  scope_ = previous;
  return once_[key] = made;
}

std::string GraphBuilder::symbol_size(int symbol) {
  const std::string& name = trace_.symbols[symbol].name;
  return once("size " + name, [&] {
    for (const GraphPort& in : graph_.inputs)
      for (size_t d = 0; d < in.dims.size(); ++d) {
        if (in.dims[d].symbol != name) continue;
        if (opset() >= 15) return node("Shape", {in.name}, {{"start", int64_t(d)}, {"end", int64_t(d) + 1}}, i64);
        return node("Gather", {node("Shape", {in.name}, {}, i64), ints({int64_t(d)})}, {{"axis", int64_t(0)}}, i64);
      }
    XY_FAIL("no input has the dimension ", name);
  });
}

std::string GraphBuilder::one_size(const TracedSize& size) {
  if (size.fixed()) return ints({size.at[0]});
  auto terms = solve(size, trace_.symbols);
  XY_CHECK(!terms.empty(), "a size can not be expressed by the dynamic dimensions: it is ",
           describe(size, trace_.symbols), "; the graph_ would only work for one of them");
  std::string sum;
  for (const SizeTerm& t : terms) {
    std::string part;
    for (int s : t.symbols) part = part.empty() ? symbol_size(s) : node("Mul", {part, symbol_size(s)});
    if (part.empty())
      part = ints({t.num});
    else if (t.num != 1)
      part = node("Mul", {part, ints({t.num})});
    if (t.den != 1) part = node("Div", {part, ints({t.den})});
    sum = sum.empty() ? part : node("Add", {sum, part});
  }
  return sum;
}

std::string GraphBuilder::sizes(const std::vector<TracedSize>& sizes) {
  std::vector<std::string> parts;
  std::vector<int64_t> fixed;
  auto flush = [&] {
    if (!fixed.empty()) parts.push_back(ints(fixed));
    fixed.clear();
  };
  for (const TracedSize& s : sizes) {
    if (s.fixed()) {
      fixed.push_back(s.at[0]);
    } else {
      flush();
      parts.push_back(one_size(s));
    }
  }
  flush();
  if (parts.empty()) return ints({});
  return parts.size() == 1 ? parts[0] : node("Concat", parts, {{"axis", int64_t(0)}});
}

// A constant that sizes alone decide.
std::string GraphBuilder::size_rule(const TracedValue& v) {
  const DType t = graph_dtype(v.dtype);
  switch (v.rule) {
    case TracedValue::Rule::filled:
      return node("Expand", {scalar(v.fill, t), sizes(v.shape)}, {}, t);
    case TracedValue::Rule::range: {
      std::string end = scalar_of(sizes({v.shape[0]}));
      return cast(node("Range", {scalar(0, i64), end, scalar(1, i64)}, {}, i64), t);
    }
    case TracedValue::Rule::size: {
      std::string value = sizes({v.size});
      if (v.shape.empty()) value = scalar_of(value);
      if (v.shape.size() > 1) value = node("Reshape", {value, sizes(v.shape)});
      return cast(value, t);
    }
    case TracedValue::Rule::data:
      break;
  }
  return {};
}

std::string GraphBuilder::name_of_value(int value) {
  if (value < 0) return "";
  std::string& name = names_[value];
  if (!name.empty()) return name;
  const TracedValue& v = trace_.values[value];
  XY_ASSERT(v.kind == TracedValue::Kind::constant, "a value is used before it is made");
  if (v.rule != TracedValue::Rule::data) return name = size_rule(v);
  return name = constant(v.data, v.name);
}

void GraphBuilder::lower(const TracedNode& n) {
  const OpSpec& spec = *n.spec;
  const std::string where = n.scope.empty() ? "" : " in '" + n.scope + "'";
  XY_CHECK(spec.export_obstacle.empty(), "operation '", spec.name, "'", where,
           " can not be exported: ", spec.export_obstacle);
  XY_CHECK(spec.onnx_lowering, "operation '", spec.name, "'", where,
           " has no ONNX form; give its OpSpec one with .onnx(lowering), core/op/lowering.h, or a reason with "
           ".not_exportable(why)");
  ExportedOp op{.name = spec.name, .scope = n.scope};
  op.attrs = n.attrs;
  scope_ = n.scope;
  for (int v : n.inputs) {
    op.inputs.push_back(name_of_value(v));
    op.input_types.push_back(v < 0 ? f32 : graph_dtype(trace_.values[v].dtype));
    op.input_shapes.push_back(v < 0 ? std::vector<TracedSize>() : trace_.values[v].shape);
  }
  for (int v : n.outputs) {
    op.output_types.push_back(graph_dtype(trace_.values[v].dtype));
    op.output_shapes.push_back(trace_.values[v].shape);
  }
  OnnxNames made;
  try {
    made = spec.onnx_lowering(*this, op);
  } catch (const Error& e) {
    XY_FAIL("operation '", spec.name, "'", where, ": ", e.message());
  }
  XY_CHECK(made.size() == n.outputs.size(), "the lowering of '", spec.name, "' gave ", made.size(),
           " tensors instead of ", n.outputs.size());
  for (size_t i = 0; i < made.size(); ++i) {
    names_[n.outputs[i]] = made[i];
    auto it = graph_.values.find(made[i]);
    if (it == graph_.values.end() || decoder_) continue;  // a decoder's sizes are other ones than were traced
    it->second.shaped = true;
    it->second.dims.clear();
    for (const TracedSize& s : op.output_shapes[i])
      it->second.dims.push_back(s.fixed() ? GraphDim{s.at[0], ""} : GraphDim{-1, expression(s, trace_.symbols)});
  }
}

// Gives results the names of the graph's outputs.
void GraphBuilder::finish_outputs() {
  for (size_t i = 0; i < trace_.outputs.size(); ++i) {
    GraphPort& port = graph_.outputs[i];
    scope_.clear();
    const std::string from = name_of_value(trace_.outputs[i]);
    const TracedValue& v = trace_.values[trace_.outputs[i]];
    port.type = graph_.type_of(from);
    port.dims.clear();
    for (const TracedSize& s : v.shape)
      port.dims.push_back(s.fixed() ? GraphDim{s.at[0], ""} : GraphDim{-1, expression(s, trace_.symbols)});
    GraphNode* made = graph_.producer(from);
    const bool shared =
        std::any_of(graph_.outputs.begin(), graph_.outputs.end(), [&](const GraphPort& o) { return o.name == from; });
    if (!made || shared) {  // an input, a constant, or already the output of another name
      GraphNode copy{"Identity", unique("/" + port.name + "/Identity"), {from}, {port.name}};
      graph_.nodes.push_back(copy);
    } else {
      std::replace(made->outputs.begin(), made->outputs.end(), from, port.name);
      graph_.replace_uses(from, port.name);
      std::replace(names_.begin(), names_.end(), from, port.name);
      graph_.values.erase(from);
    }
    graph_.values[port.name] = port;
  }
}

void GraphBuilder::run() {
  for (const TracedNode& n : trace_.nodes) {
    lower(n);
    forget_lazy_values();
  }
  finish_outputs();
  for (size_t v = 0; v < names_.size(); ++v)
    if (const double seen = trace_.values[v].amax; seen > 0 && !names_[v].empty())
      graph_.amax[names_[v]] = std::max(graph_.amax[names_[v]], seen);
}

}  // namespace xylem::exporting
