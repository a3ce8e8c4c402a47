// SPDX-License-Identifier: Apache-2.0
#include "models/export/decoder.h"

#include "models/export/lower/cache.h"
#include "models/export/pipeline.h"
#include "models/nn/eval_scope.h"
#include "models/nn/lazy.h"

namespace xylem {

ExportReport export_decoder(LanguageModel& model, const std::string& file, const DecoderOptions& options,
                            std::vector<DecoderCache>* layers) {
  using namespace exporting;
  EvalScope evaluation(model);
  const Device device = model.parameters().front().tensor.device();
  const ExportInput tokens{"input_ids", zeros({2, 2}, i64, device), {{0, "batch"}, {1, "seq"}}};
  auto forward = [&](const Tensors& in) -> Tensors {
    LazyScope scope;
    if (!options.last_token_only) return {model.forward(in[0])};
    return {model.logits(model.hidden(in[0]).slice(1, in[0].size(1) - 1, in[0].size(1)))};
  };
  TracedGraph traced = trace(model, forward, {tokens}, options.onnx.ranges);
  note_ranges(traced, options.onnx.activation_amax);
  std::vector<std::string> notes;
  transpose_weights(traced);

  DecoderInputs cache(options.cache == CacheKind::fixed, options.max_length > 0 ? options.max_length : model.context());
  ExportOptions onnx = options.onnx;
  if (onnx.outputs.empty()) onnx.outputs = {"logits"};
  OnnxGraph graph = empty_graph(traced, {tokens}, onnx);
  const GraphDim batch{-1, "batch"}, seq{-1, "seq"}, past{-1, "past"}, total{-1, "total"};
  if (!cache.fixed()) graph.inputs.push_back({"attention_mask", type::int64, {batch, total}});
  graph.inputs.push_back({"position_ids", type::int64, {batch, seq}});
  // The shapes of the cache are known once every attention has been lowered.
  const size_t fixed_inputs = graph.inputs.size();
  int attentions = 0;
  for (const TracedNode& n : traced.nodes) {
    if (!n.spec->is(OpRole::attention)) continue;
    for (const char* which : {"key", "value"})
      graph.inputs.push_back({"past_key_values." + std::to_string(attentions) + "." + which, type::float32, {}});
    ++attentions;
  }
  GraphBuilder(graph, traced, onnx.profile, &cache, notes).run();
  graph.inputs.resize(fixed_inputs);
  XY_CHECK(!cache.layers().empty(), "the model has no attention to give a cache to");
  if (layers)
    for (const auto& l : cache.layers()) layers->push_back({l.heads, l.size});
  for (size_t i = 0; i < cache.layers().size(); ++i) {
    const GraphDim heads{cache.layers()[i].heads, ""}, size{cache.layers()[i].size, ""}, room{cache.max_length(), ""};
    for (const char* which : {"key", "value"}) {
      const std::string name = std::to_string(i) + "." + which;
      const bool fixed = cache.fixed();
      graph.inputs.push_back({"past_key_values." + name, type::float32, {batch, heads, fixed ? room : past, size}});
      graph.outputs.push_back({"present." + name, type::float32, {batch, heads, fixed ? room : total, size}});
    }
  }
  return finish(graph, std::move(notes), file, onnx, chosen_precision(onnx));
}

}  // namespace xylem
