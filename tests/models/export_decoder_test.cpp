// SPDX-License-Identifier: Apache-2.0
// Decoders with a key-value cache: reading a prompt, then one token at a time, gives what the whole text gives.
#ifdef XY_WITH_ONNX
#include "models/export/decoder.h"
#include "models/export/import/import.h"
#include "models/zoo/zoo.h"
#include "tests/models/export_helpers.h"

namespace xylem {
namespace {

using namespace export_tests;

std::unique_ptr<ZooModel> small(const std::string& name) {
  zoo::Options o{{"vocab", int64_t(17)},
                 {"context", int64_t(16)},
                 {"layers", int64_t(2)},
                 {"heads", int64_t(4)},
                 {"width", int64_t(16)}};
  if (name == "llama") o.insert({{"kv_heads", int64_t(2)}, {"hidden", int64_t(24)}});
  auto model = zoo::create(name, o);
  uint64_t seed = 7;
  for (const NamedTensor& p : model->parameters())
    p.tensor.detach().add_(sample_normal(p.tensor.shape(), 0.2, ++seed).to(f32));
  model->eval();
  return model;
}

class ExportDecoder : public testing::TestWithParam<std::string> {};

Tensors feed(const OrtSession& session, std::map<std::string, Tensor> by_name) {
  Tensors in;
  for (const auto& port : session.inputs()) in.push_back(by_name.at(port.name));
  return session.run(in);
}

TEST_P(ExportDecoder, AGrowingCacheContinuesTheText) {
  XY_NEEDS_ORT();
  auto model = small(GetParam());
  auto& language = dynamic_cast<LanguageModel&>(*model);
  const int64_t batch = 2, kv = GetParam() == "llama" ? 2 : 4, size = 4, length = 7;
  Tensor tokens = sample_index({batch, length}, 17, 5);
  Tensor expected = no_grad([&] { return language.forward(tokens); });
  for (int opset : {13, 17, 23}) {
    SCOPED_TRACE(opset);
    const std::string file = temporary("decoder.onnx");
    export_decoder(language, file, {.onnx = {.opset = opset}});
    OrtSession session(file, {.optimize = false});
    ASSERT_EQ(session.outputs()[0].name, "logits");
    std::map<std::string, Tensor> in;
    for (const auto& p : session.inputs())
      if (p.name.starts_with("past_key_values")) in[p.name] = zeros({batch, kv, 0, size});
    ASSERT_EQ(in.size(), 4u);
    int64_t past = 0;
    for (int64_t step : {3, 1, 2, 1}) {
      in["input_ids"] = tokens.narrow(1, past, step).contiguous();
      in["position_ids"] = (arange(step) + past).reshape({1, step}).expand({batch, step}).contiguous();
      in["attention_mask"] = full({batch, past + step}, 1, i64);
      Tensors out = feed(session, in);
      EXPECT_LE(distance(out[0], expected.narrow(1, past, step)), 1e-5) << "tokens from " << past;
      past += step;
      for (size_t i = 1; i < out.size(); ++i) {
        EXPECT_EQ(out[i].shape(), Shape({batch, kv, past, size}));
        std::string name = session.outputs()[i].name;
        in["past_key_values" + name.substr(std::string("present").size())] = out[i];
      }
    }
    exporting::OnnxGraph g = exporting::read_graph(file);
    for (const auto& [name, t] : g.initializers) {
      if (t.type != exporting::type::int64) continue;
      for (int64_t v : t.data.to_vector<int64_t>()) EXPECT_LE(std::abs(v), INT32_MAX) << name;
    }
    for (const auto& n : g.nodes) {
      if (n.op != "Attention") continue;
      EXPECT_EQ(n.outputs.size(), 1u);  // TensorRT#4738
      EXPECT_FALSE(n.find("is_causal"));
    }
  }
  const std::string said = python_checker({temporary("decoder.onnx")});
  EXPECT_TRUE(said.empty() || said.starts_with("skip")) << said;
}

TEST_P(ExportDecoder, AFixedCacheKeepsItsShape) {
  XY_NEEDS_ORT();
  auto model = small(GetParam());
  auto& language = dynamic_cast<LanguageModel&>(*model);
  const int64_t batch = 2, kv = GetParam() == "llama" ? 2 : 4, size = 4, room = 9, length = 7;
  Tensor tokens = sample_index({batch, length}, 17, 5);
  Tensor expected = no_grad([&] { return language.forward(tokens); });
  for (int opset : {17, 24}) {
    SCOPED_TRACE(opset);
    const std::string file = temporary("fixed.onnx");
    export_decoder(language, file, {.cache = CacheKind::fixed, .max_length = room, .onnx = {.opset = opset}});
    OrtSession session(file, {.optimize = false});
    std::map<std::string, Tensor> in;
    for (const auto& p : session.inputs())
      if (p.name.starts_with("past_key_values")) {
        EXPECT_EQ(p.shape, (std::vector<int64_t>{-1, kv, room, size}));
        in[p.name] = zeros({batch, kv, room, size});
      }
    int64_t past = 0;
    for (int64_t step : {4, 1, 2}) {
      in["input_ids"] = tokens.narrow(1, past, step).contiguous();
      in["position_ids"] = (arange(step) + past).reshape({1, step}).expand({batch, step}).contiguous();
      Tensors out = feed(session, in);
      EXPECT_LE(distance(out[0], expected.narrow(1, past, step)), 1e-5) << "tokens from " << past;
      past += step;
      for (size_t i = 1; i < out.size(); ++i)
        in["past_key_values" + session.outputs()[i].name.substr(std::string("present").size())] = out[i];
    }
  }
}

TEST_P(ExportDecoder, PaddingIsNotSeenAndTheLastTokenIsEnough) {
  XY_NEEDS_ORT();
  auto model = small(GetParam());
  auto& language = dynamic_cast<LanguageModel&>(*model);
  const int64_t kv = GetParam() == "llama" ? 2 : 4;
  const std::string file = temporary("padded.onnx");
  export_decoder(language, file, {.last_token_only = true});
  OrtSession session(file);
  Tensor tokens = sample_index({1, 4}, 17, 5);
  Tensor expected = no_grad([&] { return language.forward(tokens); }).narrow(1, 3, 1);
  std::map<std::string, Tensor> in;  // two tokens of padding on the left
  for (const auto& p : session.inputs())
    if (p.name.starts_with("past_key_values")) in[p.name] = zeros({1, kv, 0, 4});
  in["input_ids"] = cat({full({1, 2}, 3, i64), tokens}, 1);
  in["position_ids"] = from_vector<int64_t>({0, 0, 0, 1, 2, 3}, {1, 6});
  in["attention_mask"] = from_vector<int64_t>({0, 0, 1, 1, 1, 1}, {1, 6});
  EXPECT_LE(distance(feed(session, in)[0], expected), 1e-5);
}

// Caches that grow and caches that are written in place come back as modules: the same outputs token by token, and a
// step of training through the cache.
TEST_P(ExportDecoder, ComesBackThroughImport) {
  auto model = small(GetParam());
  auto& language = dynamic_cast<LanguageModel&>(*model);
  const int64_t batch = 2, kv = GetParam() == "llama" ? 2 : 4, size = 4, room = 9, length = 6;
  Tensor tokens = sample_index({batch, length}, 17, 5);
  Tensor expected = no_grad([&] { return language.forward(tokens); });
  for (CacheKind cache : {CacheKind::growing, CacheKind::fixed}) {
    for (int opset : {17, 23, 24}) {
      SCOPED_TRACE(std::string(cache == CacheKind::fixed ? "fixed" : "growing") + " cache, opset " +
                   std::to_string(opset));
      const std::string file = temporary("decoder_back.onnx");
      export_decoder(language, file, {.cache = cache, .max_length = room, .onnx = {.opset = opset}});
      if (cache == CacheKind::fixed && opset == 24) {
        EXPECT_EQ(count_nodes(exporting::read_graph(file), "TensorScatter"), 4);
      }
      OnnxModule back = import_onnx(file);
      std::map<std::string, Tensor> in;
      for (const std::string& name : back.input_names())
        if (name.starts_with("past_key_values"))
          in[name] = zeros({batch, kv, cache == CacheKind::fixed ? room : 0, size});
      ASSERT_EQ(in.size(), 4u);
      Tensors out;
      int64_t past = 0;
      for (int64_t step : {3, 1, 2}) {
        in["input_ids"] = tokens.narrow(1, past, step).contiguous();
        in["position_ids"] = (arange(step) + past).reshape({1, step}).expand({batch, step}).contiguous();
        in["attention_mask"] = full({batch, past + step}, 1, i64);
        Tensors fed;
        for (const std::string& name : back.input_names()) fed.push_back(in.at(name));
        out = back(fed);
        EXPECT_LE(distance(out[0], expected.narrow(1, past, step)), 1e-5) << "tokens from " << past;
        past += step;
        for (size_t i = 1; i < out.size(); ++i)
          in["past_key_values" + back.output_names()[i].substr(std::string("present").size())] = out[i];
      }
      mean(pow(out[0], 2.0)).backward();
      for (const NamedTensor& p : back.parameters()) {
        ASSERT_TRUE(p.tensor.grad().defined()) << p.name;
        EXPECT_TRUE(std::isfinite(sum(p.tensor.grad()).item())) << p.name;
      }
      const std::string said = python_checker({file});
      EXPECT_TRUE(said.empty() || said.starts_with("skip")) << said;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExportDecoder, testing::Values("gpt2", "llama"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace xylem
#endif
