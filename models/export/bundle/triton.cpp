// SPDX-License-Identifier: Apache-2.0
#include "models/export/bundle/triton.h"

#include <algorithm>
#include <sstream>

#include "core/util/check.h"
#include "models/export/bundle/pbtxt.h"

namespace xylem::triton {
namespace {

std::string type_name(DType t) {
  switch (t) {
    case f64:
      return "TYPE_FP64";
    case f32:
      return "TYPE_FP32";
    case f16:
      return "TYPE_FP16";
    case i64:
      return "TYPE_INT64";
    case i32:
      return "TYPE_INT32";
    case i8:
      return "TYPE_INT8";
    case u8:
      return "TYPE_UINT8";
    case boolean:
      return "TYPE_BOOL";
    default:
      XY_FAIL("Triton's ONNX Runtime backend cannot carry ", name_of(t), " inputs or outputs; keep them in f32");
  }
}

int64_t size_at(const Model& m, const Port& p, size_t dim, At at) {
  if (p.shape[dim] >= 0) return p.shape[dim];
  auto it = m.ranges.find(p.symbols[dim]);
  DimRange r = it == m.ranges.end() ? DimRange{} : it->second;
  return at == At::min ? r.min : at == At::opt ? r.opt : r.max;
}

std::string joined(const std::vector<int64_t>& v, const char* by) {
  std::string s;
  for (size_t i = 0; i < v.size(); ++i) s += (i ? by : "") + std::to_string(v[i]);
  return s;
}

// The dimensions that a request states: without the batch axis.
std::vector<int64_t> request_dims(const Port& p, bool batched) {
  return {p.shape.begin() + (batched ? 1 : 0), p.shape.end()};
}

void port(std::ostream& out, const Port& p, bool batched) {
  std::vector<int64_t> dims = request_dims(p, batched);
  out << "  {\n    name: \"" << p.name << "\"\n    data_type: " << type_name(p.dtype) << "\n";
  if (dims.empty())  // empty dims are not allowed
    out << "    dims: [ 1 ]\n    reshape: { shape: [ ] }\n";
  else
    out << "    dims: [ " << joined(dims, ", ") << " ]\n";
  out << "  }";
}

void ports(std::ostream& out, const char* kind, const std::vector<Port>& list, bool batched) {
  out << kind << " [\n";
  for (size_t i = 0; i < list.size(); ++i) {
    port(out, list[i], batched);
    out << (i + 1 < list.size() ? ",\n" : "\n");
  }
  out << "]\n";
}

void warm_up(std::ostream& out, const Model& m, const std::string& name, int64_t batch, At at, bool batched) {
  out << "  {\n    name: \"" << name << "\"\n    batch_size: " << batch << "\n";
  for (const Port& p : m.inputs) {
    std::vector<int64_t> dims;
    for (size_t d = batched ? 1 : 0; d < p.shape.size(); ++d) dims.push_back(size_at(m, p, d, at));
    if (dims.empty()) dims = {1};
    out << "    inputs {\n      key: \"" << p.name << "\"\n      value: { data_type: " << type_name(p.dtype)
        << " dims: [ " << joined(dims, ", ") << " ] " << (is_float(p.dtype) ? "random_data" : "zero_data")
        << ": true }\n    }\n";
  }
  out << "  }";
}

void parameter(std::ostream& out, const char* key, const std::string& value) {
  out << "        parameters { key: \"" << key << "\" value: \"" << value << "\" }\n";
}

void accelerator(std::ostream& out, const Model& m) {
  out << "optimization {\n  execution_accelerators {\n    gpu_execution_accelerator: [\n      {\n        name: "
         "\"tensorrt\"\n";
  // A model with Q/DQ pairs runs in int8 without a calibration table, which would make the session fail.
  parameter(out, "precision_mode", m.quantized ? "INT8" : m.half ? "FP16" : "FP32");
  parameter(out, "max_workspace_size_bytes", "4294967296");
  parameter(out, "trt_engine_cache_enable", "1");
  parameter(out, "trt_engine_cache_path", "/tmp/engines/" + m.name);
  parameter(out, "trt_timing_cache_enable", "1");
  // Without a profile an engine is built again for every new shape.
  parameter(out, "trt_profile_min_shapes", shapes(m, At::min));
  parameter(out, "trt_profile_opt_shapes", shapes(m, At::opt));
  parameter(out, "trt_profile_max_shapes", shapes(m, At::max));
  out << "      }\n    ]\n  }\n}\n";
}

}  // namespace

std::string batch_symbol(const Model& m) {
  std::string symbol = m.inputs.empty() || m.inputs[0].symbols.empty() ? "" : m.inputs[0].symbols[0];
  for (const auto* list : {&m.inputs, &m.outputs})
    for (const Port& p : *list) {
      if (p.symbols.empty() || p.symbols[0] != symbol) return "";
      // A batch size elsewhere too ("past" of a cache may equal it) is no axis that requests can be joined along.
      if (std::count(p.symbols.begin(), p.symbols.end(), symbol) != 1) return "";
    }
  return symbol;
}

std::vector<int64_t> sizes(const Model& m, const Port& port, At at) {
  std::vector<int64_t> dims;
  for (size_t d = 0; d < port.shape.size(); ++d) dims.push_back(size_at(m, port, d, at));
  return dims;
}

std::string shapes(const Model& m, At at) {
  std::string out;
  for (const Port& p : m.inputs)
    if (std::string dims = joined(sizes(m, p, at), "x"); !dims.empty())
      out += (out.empty() ? "" : ",") + p.name + ":" + dims;
  return out;
}

std::string config(const Model& m) {
  std::ostringstream out;
  std::string batch = batch_symbol(m);
  DimRange range = batch.empty() || !m.ranges.contains(batch) ? DimRange{} : m.ranges.at(batch);
  out << "name: \"" << m.name << "\"\nbackend: \"onnxruntime\"\n";
  out << "max_batch_size: " << (batch.empty() ? 0 : range.max) << "\n";
  ports(out, "input", m.inputs, !batch.empty());
  ports(out, "output", m.outputs, !batch.empty());
  if (!batch.empty()) out << "dynamic_batching { max_queue_delay_microseconds: 100 }\n";
  out << "instance_group [ { count: " << (m.tensorrt ? "2 kind: KIND_GPU" : "1 kind: KIND_CPU") << " } ]\n";
  out << "version_policy { latest { num_versions: 1 } }\n";
  if (m.tensorrt) accelerator(out, m);
  out << "model_warmup [\n";
  warm_up(out, m, "smallest", batch.empty() ? 0 : range.min, At::min, !batch.empty());
  out << ",\n";
  warm_up(out, m, "largest", batch.empty() ? 0 : range.max, At::max, !batch.empty());
  out << "\n]\n";
  return out.str();
}

std::vector<LintFinding> check_config(const std::string& text, const Model& m) {
  std::vector<LintFinding> out;
  auto complain = [&](const std::string& what, const std::string& message) {
    out.push_back({"T1", LintSeverity::error, what, message});
  };
  std::vector<pbtxt::Field> fields = pbtxt::parse(text);
  const pbtxt::Field* max_batch = pbtxt::find(fields, "max_batch_size");
  bool batched = max_batch && max_batch->value != "0";
  std::string batch = batch_symbol(m);
  if (batched && batch.empty())
    complain("max_batch_size",
             "is " + max_batch->value +
                 ", but not every input and output has the same dynamic axis in front; it must be 0.");
  for (bool inputs : {true, false}) {
    const std::vector<Port>& ports = inputs ? m.inputs : m.outputs;
    std::vector<const pbtxt::Field*> stated = pbtxt::find_all(fields, inputs ? "input" : "output");
    for (const Port& p : ports) {
      const pbtxt::Field* entry = nullptr;
      for (const auto* f : stated)
        if (const auto* n = pbtxt::find(f->fields, "name"); n && n->value == p.name) entry = f;
      if (!entry) {
        complain(p.name, "is not in the configuration.");
        continue;
      }
      const pbtxt::Field* type = pbtxt::find(entry->fields, "data_type");
      if (!type || type->value != type_name(p.dtype))
        complain(p.name, "is " + type_name(p.dtype) + " in the model and " + (type ? type->value : "untyped") +
                             " in the configuration.");
      std::vector<int64_t> dims, want = request_dims(p, batched && !batch.empty());
      for (const auto* d : pbtxt::find_all(entry->fields, "dims")) dims.push_back(std::atoll(d->value.c_str()));
      if (want.empty()) want = {1};
      if (dims != want) {
        bool with_batch = batched && dims.size() == want.size() + 1;
        complain(p.name, "has dims [" + joined(dims, ", ") + "], but the model needs [" + joined(want, ", ") + "]" +
                             (with_batch ? "; the batch axis is not part of dims." : "."));
      }
    }
    for (const auto* f : stated)
      if (const auto* n = pbtxt::find(f->fields, "name");
          n && std::none_of(ports.begin(), ports.end(), [&](const Port& p) { return p.name == n->value; }))
        complain(n->value, "is in the configuration, but the model has no such tensor.");
  }
  return out;
}

}  // namespace xylem::triton
