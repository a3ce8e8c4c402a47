// SPDX-License-Identifier: Apache-2.0
// From the traced graph to the ONNX graph: the builder that the operations' lowerings write to.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/op/lowering.h"
#include "models/export/lower/cache.h"
#include "models/export/onnx/graph.h"
#include "models/export/onnx/profile.h"
#include "models/export/trace/trace.h"

namespace xylem::exporting {

class GraphBuilder : public OnnxBuilder {
 public:
  // `decoder` is null outside of decoders; notes of the lowerings are added to `notes`.
  GraphBuilder(OnnxGraph& graph, const TracedGraph& trace, Profile profile, DecoderInputs* decoder,
               std::vector<std::string>& notes);

  void run();  // lowers every node

  int opset() const override { return graph_.opset; }
  bool has(const std::string& op, int since) const override;
  const OnnxTarget& target() const override { return target_; }
  OnnxDecoder* decoder() override { return decoder_; }
  std::string node(const std::string& op, const OnnxNames& inputs, const OnnxAttrs& attrs = {},
                   std::optional<DType> type = {}) override;
  OnnxNames nodes(const std::string& op, const OnnxNames& inputs, int outputs, const OnnxAttrs& attrs = {},
                  const std::vector<DType>& types = {}) override;
  std::string typed_node(const std::string& op, const OnnxNames& inputs, const OnnxAttrs& attrs,
                         int onnx_type) override;
  std::string constant(const Tensor& value, const std::string& name = {}) override;
  std::string initializer(OnnxTensor tensor) override;
  Tensor derived(const Tensor& source, const Shape& shape, DType dtype,
                 std::function<Tensor(const Tensor&)> f) override;
  Tensor value_of(const std::string& tensor) const override;
  DType type_of(const std::string& tensor) const override;
  Producer producer(const std::string& tensor) const override;
  std::string sizes(const std::vector<TracedSize>& sizes) override;
  std::string once(const std::string& key, const std::function<std::string()>& make,
                   Owner owner = Owner::none) override;
  void note(const std::string& text) override { notes_.push_back(text); }

  // The output of the node added last gets the name of an output of the graph.
  std::string rename_last(const std::string& name);

 private:
  std::string unique(const std::string& wish);
  std::string name_of_value(int value);
  std::string size_rule(const TracedValue& v);
  std::string one_size(const TracedSize& size);
  std::string symbol_size(int symbol);
  void lower(const TracedNode& n);
  void finish_outputs();

  OnnxGraph& graph_;
  const TracedGraph& trace_;
  const Profile profile_;
  const OnnxTarget target_;
  DecoderInputs* decoder_;
  std::vector<std::string>& notes_;
  std::string scope_;               // of the operation being lowered
  std::vector<std::string> names_;  // of traced values
  std::set<std::string> taken_;
  std::map<std::string, int> counters_;
  std::map<std::string, std::string> once_, constants_;
};

}  // namespace xylem::exporting
