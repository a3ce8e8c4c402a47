// SPDX-License-Identifier: Apache-2.0
// Bundles of language models with a key-value cache.
#include <algorithm>
#include <map>
#include <memory>

#include "core/autograd/autograd.h"
#include "core/util/check.h"
#include "models/export/bundle/parts.h"
#include "models/export/import/import.h"
#include "models/export/runtime/ort.h"
#include "models/nn/lazy.h"
#include "ops/ops.h"

namespace xylem {
namespace {

bool is_cache(const std::string& name) { return name.starts_with("past_key_values."); }

// A decoder that is run: in ONNX Runtime, or imported where that has no kernels. It keeps its cache.
class Runner {
 public:
  Runner(const std::string& file, bool imported, bool optimized) {
    if (imported) {
      auto model = std::make_shared<OnnxModule>(import_onnx(file));
      inputs_ = model->input_names(), outputs_ = model->output_names();
      run_ = [model](const Tensors& x) { return no_grad([&] { return (*model)(x); }); };
    } else {
      auto session = std::make_shared<OrtSession>(file, OrtSession::Options{.optimize = optimized});
      for (const auto& p : session->inputs()) inputs_.push_back(p.name);
      for (const auto& p : session->outputs()) outputs_.push_back(p.name);
      run_ = [session](const Tensors& x) { return session->run(x); };
    }
  }
  const std::vector<std::string>& inputs() const { return inputs_; }

  void clear(int64_t batch, const DecoderCache& cache, int64_t room) {
    past_ = 0;
    for (const std::string& name : inputs_)
      if (is_cache(name)) cache_[name] = zeros({batch, cache.heads, room, cache.size});
  }
  // What the graph is fed for the next tokens [batch, n], in the order of its inputs.
  Tensors feed(const Tensor& tokens) const {
    const int64_t batch = tokens.size(0), n = tokens.size(1);
    Tensors in;
    for (const std::string& name : inputs_) {
      if (name == "input_ids")
        in.push_back(tokens);
      else if (name == "position_ids")
        in.push_back((arange(n) + past_).reshape({1, n}).expand({batch, n}).contiguous());
      else if (name == "attention_mask")
        in.push_back(full({batch, past_ + n}, 1, i64));
      else
        in.push_back(cache_.at(name));
    }
    return in;
  }
  Tensors step(const Tensor& tokens) {
    Tensors out = run_(feed(tokens));
    for (size_t i = 0; i < out.size(); ++i)
      if (outputs_[i].starts_with("present."))
        cache_["past_key_values." + outputs_[i].substr(std::string("present.").size())] = out[i];
    past_ += tokens.size(1);
    return out;
  }

 private:
  std::vector<std::string> inputs_, outputs_;
  std::function<Tensors(const Tensors&)> run_;
  std::map<std::string, Tensor> cache_;
  int64_t past_ = 0;
};

Tensor text(int64_t batch, int64_t length, int64_t vocab, int64_t seed) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < batch * length; ++i) tokens.push_back((i * 7919 + seed * 104729 + i * i) % vocab);
  return from_vector(tokens, {batch, length});
}

}  // namespace

BundleReport export_decoder_bundle(LanguageModel& model, const std::string& folder, const BundleOptions& given,
                                   CacheKind cache, int64_t max_length) {
  const bool growing = cache == CacheKind::growing;
  const int64_t context = model.context(), room = max_length > 0 ? max_length : context;
  BundleOptions options = given;
  auto& ranges = options.graph.ranges;
  const int64_t half = std::max<int64_t>(context / 2, 1);
  ranges.try_emplace("batch", DimRange{.min = 1, .opt = 1, .max = 8});
  ranges.try_emplace("seq", DimRange{.min = 1, .opt = 1, .max = std::min(half, room)});
  if (growing) {
    ranges.try_emplace("past", DimRange{.min = 0, .opt = half / 2, .max = context - half});
    ranges.try_emplace("total", DimRange{});  // past + seq
  }
  ranges = complete_ranges({}, ranges);

  std::vector<DecoderCache> layers;
  BundleParts parts;
  parts.write = [&](const std::string& file, const ExportOptions& graph) {
    return export_decoder(model, file, {.cache = cache, .max_length = room, .onnx = graph}, &layers);
  };
  const bool bf16 = options.graph.precision == ExportPrecision::bf16;
  // Three tokens into the text the cache holds something.
  const int64_t before = std::min<int64_t>(3, room - 1);
  parts.reference = [&](const std::string& file) {
    Runner decoder(file, true, false);
    parts.inputs = decoder.inputs();
    Tensor tokens = text(1, before + 1, model.vocab(), 7);
    decoder.clear(1, layers[0], growing ? 0 : room);
    if (before > 0) decoder.step(tokens.narrow(1, 0, before).contiguous());
    Tensor next = tokens.narrow(1, before, 1).contiguous();
    Tensors x = decoder.feed(next);
    return std::pair(x, decoder.step(next));
  };
  parts.verify = [&](const std::string& file, const ExportOptions& graph, bool quantized) {
    std::vector<BundleCheck> checks;
    for (bool optimized : {false, true}) {
      if (bf16 && optimized) break;
      Runner decoder(file, bf16, optimized);
      for (int64_t batch : {ranges.at("batch").min, ranges.at("batch").opt, ranges.at("batch").max}) {
        // The shortest prompt and the longest, then tokens one by one.
        for (int64_t prompt : {ranges.at("seq").min, ranges.at("seq").max}) {
          const int64_t length = std::min({prompt + 3, room, context});
          Tensor tokens = text(batch, length, model.vocab(), batch + prompt);
          Tensor want = no_grad([&] {
            LazyScope scope;
            return model.forward(tokens).to(f32);
          });
          decoder.clear(batch, layers[0], growing ? 0 : room);
          Tensors parts_of_logits;
          for (int64_t at = 0; at < length;) {
            const int64_t n = at == 0 ? std::min(prompt, length) : 1;
            parts_of_logits.push_back(decoder.step(tokens.narrow(1, at, n).contiguous())[0]);
            at += n;
          }
          BundleCheck check = compare({cat(parts_of_logits, 1)}, {want}, limits_of(graph, quantized, optimized));
          check.optimized = optimized;
          check.imported = bf16;
          check.shapes = "batch " + std::to_string(batch) + ", prompt " + std::to_string(prompt) + ", then " +
                         std::to_string(length - std::min(prompt, length)) + " tokens";
          if (std::none_of(checks.begin(), checks.end(),
                           [&](const BundleCheck& c) { return c.shapes == check.shapes && c.optimized == optimized; }))
            checks.push_back(check);
        }
      }
    }
    return checks;
  };
  return write_bundle(parts, folder, options);
}

}  // namespace xylem
