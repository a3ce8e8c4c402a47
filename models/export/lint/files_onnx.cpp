// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "models/export/lint/rules_onnx.h"

namespace xylem::lint {
namespace {

using onnx::TensorProto;

void external(const Rules& r, const TensorProto& t) {
  if (t.data_location() != TensorProto::EXTERNAL) return;
  for (const auto& e : t.external_data()) {
    if (e.key() == "location" && (e.value().starts_with("/") || e.value().find("..") != std::string::npos ||
                                  e.value().find('\\') != std::string::npos))
      r.error("F1", t.name(), "external data at '", e.value(),
              "': runtimes take a plain file name beside the model alone.");
    if (e.key() == "offset" && std::atoll(e.value().c_str()) % 4096 != 0)
      r.warning("F1", t.name(), "external data at offset ", e.value(),
                ", which is not a multiple of 4096: it cannot be memory mapped.");
  }
}

void duplicates(const Rules& r) {
  std::map<size_t, std::vector<const TensorProto*>> by_content;
  for (const auto& t : r.graph.graph.initializer()) {
    if (t.raw_data().size() <= (1u << 20)) continue;
    auto& same = by_content[std::hash<std::string>()(t.raw_data())];
    for (const TensorProto* other : same)
      if (other->raw_data() == t.raw_data()) {
        r.warning("F2", t.name(), "holds the same ", t.raw_data().size() >> 20, " MiB as ", other->name(),
                  " (tied weights?). Use one initializer.");
        break;
      }
    same.push_back(&t);
  }
}

bool legal(const std::string& name) { return name.find_first_of(":, \t\n") == std::string::npos && !name.empty(); }

void names(const Rules& r) {
  std::map<std::string, int> nodes, tensors;
  for (const Node* n : r.graph.nodes()) {
    if (!n->name().empty() && ++nodes[n->name()] == 2)
      r.error("F3", n->name(), "two nodes have this name: ONNX Runtime refuses the model.");
    for (const auto& o : n->output())
      if (!o.empty() && ++tensors[o] == 2) r.error("F3", o, "two nodes write this tensor.");
  }
  for (const auto& t : r.graph.graph.initializer())
    if (r.graph.is_output(t.name()))
      r.error("F3", t.name(), "an initializer must not be an output; put an Identity between.");
  for (const auto* list : {&r.graph.graph.input(), &r.graph.graph.output()})
    for (const auto& v : *list)
      if (!legal(v.name()))
        r.error("F3", v.name(),
                "the name of an input or output must not hold ':', ',' or spaces: trtexec and Triton "
                "separate by them.");
}

}  // namespace

void check_files(const Rules& r) {
  names(r);
  duplicates(r);
  size_t inline_bytes = 0;
  for (const auto& t : r.graph.graph.initializer()) {
    external(r, t);
    if (t.data_location() != TensorProto::EXTERNAL) inline_bytes += t.raw_data().size();
  }
  if (inline_bytes >= (size_t(2) << 30))
    r.error("F1", "model", inline_bytes >> 20,
            " MiB of weights inside the file: protobuf reads up to 2 GiB. Export with "
            "external data.");
}

}  // namespace xylem::lint
