// SPDX-License-Identifier: Apache-2.0
#include "models/export/lint/rules_onnx.h"
#include "models/export/runtime/tensorrt.h"

namespace xylem::lint {
namespace {

// Of every dynamic dimension its range, or 1 where none is known.
tensorrt::Sizes sizes_of(const Rules& r, const onnx::ValueInfoProto& input) {
  tensorrt::Sizes sizes;
  const TensorType& type = r.graph.type(input.name());
  if (!type.shape) return sizes;
  for (const Dim& d : *type.shape) {
    std::vector<int64_t> range(3, d.fixed() ? d.value : 1);
    if (auto known = r.graph.ranges.find(d.symbol); !d.fixed() && known != r.graph.ranges.end())
      range = known->second;
    else if (!d.fixed())
      r.info("B2", input.name(), "the engine was built for ", d.symbol.empty() ? "a dimension" : "'" + d.symbol + "'",
             " of 1 alone: its sizes are not known. Give --range ", d.symbol.empty() ? "NAME" : d.symbol,
             "=MIN:OPT:MAX.");
    sizes.min.push_back(range[0]);
    sizes.opt.push_back(range[1]);
    sizes.max.push_back(range[2]);
  }
  return sizes;
}

std::string place(const tensorrt::Message& m) { return m.node.empty() ? "model" : m.node; }

}  // namespace

void check_build(const Rules& r, const std::string& model_file) {
  tensorrt::BuildOptions options;
  for (const auto& input : r.graph.graph.input())
    if (!r.graph.constant(input.name())) options.sizes[input.name()] = sizes_of(r, input);
  const tensorrt::Build build = tensorrt::build(model_file, options);
  const std::string who = tensorrt::version();
  bool told = false;
  for (const tensorrt::Message& m : build.messages) {
    const bool error = m.severity == tensorrt::Message::Severity::error && !build.built();
    told |= error;
    if (error)
      r.error("B1", place(m), who, " refuses ", m.op.empty() ? "the model" : m.op, ": ", m.text);
    else
      r.warning("B1", place(m), who, ": ", m.text);
  }
  if (!build.built() && !told) r.error("B1", "model", who, build.parsed ? " builds no engine" : " refuses the model");
}

}  // namespace xylem::lint
