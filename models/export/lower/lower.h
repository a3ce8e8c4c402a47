// SPDX-License-Identifier: Apache-2.0
// From the traced graph to the ONNX graph: the builder that the lowerings of lower_*.cpp write to.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "models/export/onnx/graph.h"
#include "models/export/trace/trace.h"

namespace xylem::exporting {

// A decoder with a key-value cache (decoder.cpp): positions, masks and the cache come from inputs.
struct DecoderContext {
  bool fixed_cache = false;  // [batch, heads, max, size], written at position_ids; else past and present grow
  int64_t max_length = 0;    // of a fixed cache
  std::string position_ids = "position_ids", attention_mask = "attention_mask";
  struct Layer {
    int64_t heads, size;  // of keys and values
  };
  std::vector<Layer> layers = {};
};

class GraphBuilder : public OnnxBuilder {
 public:
  GraphBuilder(Graph& graph, const TracedGraph& trace, Profile profile, DecoderContext* decoder);

  int opset() const override { return graph.opset; }
  std::string node(const std::string& op, const std::vector<std::string>& inputs, const OnnxAttrs& attrs = {},
                   std::optional<DType> type = {}) override;
  std::vector<std::string> nodes(const std::string& op, const std::vector<std::string>& inputs, int outputs,
                                 const OnnxAttrs& attrs = {}, const std::vector<DType>& types = {}) override;
  std::string constant(const Tensor& value, const std::string& name = {}) override;
  // A node whose output is of a type that Xylem does not have.
  std::string typed_node(const std::string& op, const std::vector<std::string>& inputs, const OnnxAttrs& attrs,
                         int type);
  Tensor value_of(const std::string& tensor) const override;
  DType type_of(const std::string& tensor) const override;
  std::string sizes(const std::vector<TracedSize>& sizes) override;
  std::string once(const std::string& key, const std::function<std::string()>& make) override;

  void run();  // lowers every node

  // For the built-in lowerings.
  std::string scalar_of(const std::string& one_element);  // [1] -> []
  std::string initializer(GraphTensor tensor);            // under a free name like the one given
  std::string unique(const std::string& wish);
  GraphNode& last_node() { return graph.nodes.back(); }

  Graph& graph;
  const TracedGraph& trace;
  const Profile profile;
  DecoderContext* decoder;
  std::string scope;       // of the operation being lowered
  bool keep_fp32 = false;  // for the nodes being added
  std::vector<std::string> notes;

 private:
  std::string name_of_value(int value);
  std::string size_rule(const TracedValue& v);
  std::string one_size(const TracedSize& size);
  std::string symbol_size(int symbol);
  void lower(const TracedNode& n);
  void finish_outputs();

  std::vector<std::string> names_;  // of traced values
  std::set<std::string> taken_;
  std::map<std::string, int> counters_;
  std::map<std::string, std::string> once_, constants_;
  std::map<const void*, std::string> by_memory_;
};

// Nodes added inside the scope are computed in float32 in every precision.
class Fp32Island {
 public:
  explicit Fp32Island(OnnxBuilder& onnx)
      : builder_(dynamic_cast<GraphBuilder*>(&onnx)), previous_(builder_ && builder_->keep_fp32) {
    if (builder_) builder_->keep_fp32 = true;
  }
  ~Fp32Island() {
    if (builder_) builder_->keep_fp32 = previous_;
  }
  Fp32Island(const Fp32Island&) = delete;

 private:
  GraphBuilder* builder_;
  bool previous_;
};

// What the lowerings share.
// Whether the operator, which ONNX has since opset `since`, may be used: every runtime of the profile that reads the
// graph's opset has it.
bool has(const OnnxBuilder& onnx, const std::string& op, int since);
std::string reshape_to(OnnxBuilder& onnx, const std::string& x, const std::vector<TracedSize>& from,
                       const std::vector<TracedSize>& to);
std::string transpose(OnnxBuilder& onnx, const std::string& x, const std::vector<int64_t>& order);
std::string unsqueeze(OnnxBuilder& onnx, const std::string& x, const std::vector<int64_t>& axes);
std::string reduce(OnnxBuilder& onnx, const std::string& op, const std::string& x, const std::vector<int64_t>& axes,
                   bool keepdims);

// trace_passes.cpp: rewrites before lowering. `notes` tells what was done and what could not be.
// Ranges of layers (ExportOptions::activation_amax) become those of the values that they read and give.
void note_ranges(TracedGraph& graph, const std::map<std::string, double>& amax);
void fold_batch_norm(TracedGraph& graph, std::vector<std::string>& notes);
void transpose_weights(TracedGraph& graph);
// graph_passes.cpp
void clean_up(Graph& graph);
struct PrecisionPlan {
  int type = type::float16;
  bool by_range = false;  // keep what Graph::amax says is too large in float32
};
void assign_precision(Graph& graph, const PrecisionPlan& plan, std::vector<std::string>& notes);

}  // namespace xylem::exporting
