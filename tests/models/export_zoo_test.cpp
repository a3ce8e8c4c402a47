// SPDX-License-Identifier: Apache-2.0
// Every model of the zoo at every opset, against ONNX Runtime and the onnx checker.
#ifdef XY_WITH_ONNX
#include "models/export/import/import.h"
#include "models/zoo/zoo.h"
#include "tests/models/zoo_cases.h"

namespace xylem {
namespace {

using namespace export_tests;

TEST(ExportZoo, AgreesWithOnnxRuntimeAtEveryOpsetAndSize) {
  XY_NEEDS_ORT();
  std::vector<std::string> files;
  for (const Case& c : cases()) {
    auto model = zoo::create(c.name, c.options);
    disturb(*model);
    for (int opset : {13, 15, 17, 18, 19, 20, 21, 23, 24}) {
      SCOPED_TRACE(c.name + " at opset " + std::to_string(opset));
      const std::string file = temporary(c.name + "_" + std::to_string(opset) + ".onnx");
      ExportReport report = export_onnx(*model, {traced_input(c)}, file, options_at(opset));
      files.push_back(file);
      EXPECT_EQ(report.opset, opset);
      EXPECT_TRUE(model->training()) << "the training flag was not put back";
      model->eval();
      OrtSession session(file, {.optimize = opset == 17});
      for (auto [batch, length] : {std::pair<int64_t, int64_t>{1, 1}, {2, 4}, {3, 3}, {7, 2}}) {
        Tensor x = input_of(c, batch, length);
        Tensor expected = no_grad([&] { return (*model)(x); });
        EXPECT_LE(distance(session.run({x})[0], expected), 1e-5) << "input " << x.shape();
      }
      model->train();
    }
  }
  const std::string said = python_checker(files);
  if (said.starts_with("skip")) GTEST_LOG_(INFO) << "onnx checker: " << said;
  EXPECT_TRUE(said.empty() || said.starts_with("skip")) << said;
}

// The lowest IR version that an opset can have: too new a one is refused by older runtimes.
TEST(ExportZoo, WritesTheLowestIrVersion) {
  auto model = zoo::create("mlp", cases()[0].options);
  const std::pair<int, int> expected[] = {{13, 7},  {15, 8},  {18, 8},  {19, 9}, {20, 9},
                                          {21, 10}, {22, 10}, {23, 11}, {24, 12}};
  for (auto [opset, ir] : expected)
    EXPECT_EQ(export_onnx(*model, {traced_input(cases()[0])}, temporary("ir.onnx"), options_at(opset)).ir_version, ir);
}

TEST(ExportZoo, FoldsEveryBatchNormAndNamesThingsAfterTheModule) {
  auto model = zoo::create("resnet_small", cases()[1].options);
  disturb(*model);
  const std::string file = temporary("folded.onnx");
  export_onnx(*model, {traced_input(cases()[1])}, file);
  exporting::OnnxGraph g = exporting::read_graph(file);
  EXPECT_EQ(count_nodes(g, "BatchNormalization"), 0);
  EXPECT_EQ(count_nodes(g, "Identity"), 0);
  EXPECT_TRUE(g.initializers.contains("layer2.0.conv1.weight"));
  EXPECT_TRUE(g.initializers.contains("fc.bias"));
  std::vector<std::string> names;
  for (const auto& n : g.nodes) names.push_back(n.name);
  EXPECT_NE(std::find(names.begin(), names.end(), "/layer2/0/conv1/Conv"), names.end());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end()) << "two nodes of one name";
}

// A weight that two layers share is stored once (pytorch#108342), one that is merely equal twice (genai#2306).
TEST(ExportZoo, TiedWeightsAreOneInitializer) {
  Case c = cases()[4];
  auto gpt = zoo::create("gpt2", c.options);
  ExportReport report = export_onnx(*gpt, {traced_input(c)}, temporary("tied.onnx"));
  int64_t bytes = 0;
  for (const NamedTensor& p : gpt->parameters()) bytes += int64_t(p.tensor.nbytes());
  exporting::OnnxGraph g = exporting::read_graph(temporary("tied.onnx"));
  int64_t weights = 0;
  for (const auto& [name, t] : g.initializers)
    if (name.find("transformer") == 0) weights += int64_t(t.data.nbytes());
  EXPECT_EQ(weights, bytes);

  c = cases()[5];
  auto llama = zoo::create("llama", c.options);  // untied
  auto params = llama->parameters();
  Tensor embedding, head;
  for (const NamedTensor& p : params) {
    if (p.name == "model.embed_tokens.weight") embedding = p.tensor;
    if (p.name == "lm_head.weight") head = p.tensor;
  }
  head.detach().copy_(embedding.detach());
  export_onnx(*llama, {traced_input(c)}, temporary("untied.onnx"));
  g = exporting::read_graph(temporary("untied.onnx"));
  EXPECT_TRUE(g.initializers.contains("model.embed_tokens.weight"));
  EXPECT_TRUE(g.initializers.contains("lm_head.weight_t"));
}

TEST(ExportZoo, NoConstantExceeds32BitsAndNormsStayOneNode) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    auto model = zoo::create(c.name, c.options);
    const std::string file = temporary("norms.onnx");
    export_onnx(*model, {traced_input(c)}, file, options_at(c.name == "llama" ? 23 : 17));
    exporting::OnnxGraph g = exporting::read_graph(file);
    if (c.name == "vit" || c.vocab) {
      EXPECT_GE(count_nodes(g, c.name == "llama" ? "RMSNormalization" : "LayerNormalization"), 5);
    }
    for (const auto& n : g.nodes)
      if (n.op == "LayerNormalization") {
        ASSERT_TRUE(n.find("stash_type"));
        EXPECT_EQ(std::get<int64_t>(*n.find("stash_type")), 1);
      }
    for (const auto& [name, t] : g.initializers) {
      if (t.type != exporting::type::int64) continue;
      for (int64_t v : t.data.to_vector<int64_t>()) EXPECT_LE(std::abs(v), (int64_t(1) << 31) - 1) << name;
    }
  }
}

TEST(ExportZoo, LowPrecisionStaysClose) {
  XY_NEEDS_ORT();
  for (const Case& c : cases()) {
    auto model = zoo::create(c.name, c.options);
    SCOPED_TRACE(c.name);
    const std::string file = temporary(c.name + "_fp16.onnx");
    ExportOptions o = options_at(c.name == "resnet_small" ? 17 : 19);
    o.precision = ExportPrecision::fp16;
    export_onnx(*model, {traced_input(c)}, file, o);
    exporting::OnnxGraph g = exporting::read_graph(file);
    int64_t half = 0;
    for (const auto& [name, t] : g.initializers) half += t.type == exporting::type::float16;
    EXPECT_GT(half, 0);
    EXPECT_EQ(g.outputs[0].type, exporting::type::float32);
    model->eval();
    Tensor x = input_of(c, 3, 3);
    EXPECT_LE(distance(run_onnx(file, {x})[0], no_grad([&] { return (*model)(x); }), 5e-3), 1e-2);
  }
}

// ONNX Runtime has few bf16 kernels on CPUs, so import, which computes in float32 with the rounded weights, stands in.
TEST(ExportZoo, Bfloat16IsValidAndClose) {
  std::vector<std::string> files;
  for (const Case& c : cases()) {
    auto model = zoo::create(c.name, c.options);
    model->eval();
    for (int opset : {0, 24}) {
      SCOPED_TRACE(c.name + " at opset " + std::to_string(opset));
      files.push_back(temporary(c.name + std::to_string(opset) + "_bf16.onnx"));
      ExportOptions o = options_at(opset);
      o.precision = ExportPrecision::bf16;
      EXPECT_EQ(export_onnx(*model, {traced_input(c)}, files.back(), o).opset, opset ? opset : 22);
      exporting::OnnxGraph g = exporting::read_graph(files.back());
      int64_t half = 0, whole = 0;
      for (const auto& [name, t] : g.initializers) {
        half += t.type == exporting::type::bfloat16 ? t.data.numel() : 0;
        whole += t.type == exporting::type::float32 ? t.data.numel() : 0;
      }
      EXPECT_GT(half, 10 * whole);
      EXPECT_EQ(g.outputs[0].type, exporting::type::float32);
      Tensor x = input_of(c, 3, 3);
      OnnxModule back = import_onnx(files.back());
      EXPECT_LE(distance(no_grad([&] { return back(x); }), no_grad([&] { return (*model)(x); }), 2e-2), 2e-2);
    }
  }
  const std::string said = python_checker(files);
  EXPECT_TRUE(said.empty() || said.starts_with("skip")) << said;
  auto model = zoo::create(cases()[1].name, cases()[1].options);
  ExportOptions old = options_at(21);
  old.precision = ExportPrecision::bf16;
  EXPECT_THROW(export_onnx(*model, {traced_input(cases()[1])}, temporary("old.onnx"), old), Error);
}

// What it has: embeddings, layer norms and what moves values.
TEST(ExportZoo, Bfloat16RunsInOnnxRuntimeWhereItHasKernels) {
  XY_NEEDS_ORT();
  Tensor table = floats({17, 8}, 2), gain = floats({8}, 3), bias = floats({8}, 4);
  auto forward = [&](const Tensors& in) -> Tensors {
    return {layer_norm(embedding(in[0], table), gain, bias).transpose(0, 1).reshape({in[0].size(1), -1, 2, 4})};
  };
  Module nothing;
  const std::string file = temporary("moves_bf16.onnx");
  Tensor x = sample_index({2, 5}, 17);
  export_onnx(nothing, forward, {{"x", x, {{0, "batch"}, {1, "seq"}}}}, file, {.precision = ExportPrecision::bf16});
  EXPECT_EQ(exporting::read_graph(file).opset, 22);
  Tensor y = sample_index({3, 4}, 17, 9);
  EXPECT_LE(distance(run_onnx(file, {y})[0], no_grad([&] { return forward({y})[0]; }), 1e-2), 1e-2);
}

// Layers whose range was seen to exceed what fp16 resolves well, or whose weights exceed it, keep fp32.
TEST(ExportZoo, MixedPrecisionFollowsTheRanges) {
  XY_NEEDS_ORT();
  const Case& c = cases()[0];
  auto model = zoo::create("mlp", c.options);
  ExportOptions o{.precision = ExportPrecision::mixed, .activation_amax = {{"layers.1", 1000}}};
  const std::string file = temporary("mixed.onnx");
  ExportReport report = export_onnx(*model, {traced_input(c)}, file, o);
  exporting::OnnxGraph g = exporting::read_graph(file);
  EXPECT_TRUE(g.initializers.contains("layers.0.weight_fp16"));
  EXPECT_TRUE(g.initializers.contains("layers.1.weight"));
  EXPECT_NE(report.notes.back().find("float32"), std::string::npos);
  for (const NamedTensor& p : model->parameters())
    if (p.name == "layers.0.weight") p.tensor.detach().add_(full({8, 12}, 70000));
  export_onnx(*model, {traced_input(c)}, file, {.precision = ExportPrecision::fp16});
  g = exporting::read_graph(file);
  EXPECT_TRUE(g.initializers.contains("layers.0.weight")) << "70000 is beyond fp16";
  model->eval();
  Tensor x = input_of(c, 2, 1);
  EXPECT_LE(distance(run_onnx(file, {x})[0], no_grad([&] { return (*model)(x); }), 5e-3), 1e-2);
}

TEST(ExportZoo, LargeWeightsLieBesideTheModelOnPages) {
  XY_NEEDS_ORT();
  const Case& c = cases()[1];
  auto model = zoo::create(c.name, c.options);
  const std::string file = temporary("external.onnx");
  ExportOptions o;
  o.external_over = 1024;
  o.metadata = {{"accuracy", "0.97"}};
  o.ranges = {{"batch", {1, 8, 64}}};
  export_onnx(*model, {traced_input(c)}, file, o);
  const std::string weights = temporary("external.weights.bin");
  ASSERT_TRUE(std::filesystem::exists(weights));
  EXPECT_FALSE(std::filesystem::exists(weights + ".tmp"));
  OrtSession session(file);
  EXPECT_EQ(session.metadata("accuracy"), "0.97");
  EXPECT_EQ(session.metadata("xylem.range.batch"), "1,8,64");
  EXPECT_EQ(session.metadata("xylem.weights_sha256").size(), 64u);
  model->eval();
  Tensor x = input_of(c, 2, 1);
  EXPECT_LE(distance(session.run({x})[0], no_grad([&] { return (*model)(x); })), 1e-5);
  std::filesystem::resize_file(weights, 4096);
  EXPECT_THROW(exporting::read_graph(file), Error);
  std::filesystem::remove(weights);
  EXPECT_THROW(exporting::read_graph(file), Error);
}

}  // namespace
}  // namespace xylem
#endif
