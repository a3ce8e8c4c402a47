// SPDX-License-Identifier: Apache-2.0
#include "models/zoo/zoo.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/autograd/autograd.h"
#include "core/random/rng.h"
#include "models/checkpoint/safetensors.h"
#include "models/zoo/gpt2.h"
#include "models/zoo/llama.h"
#include "models/zoo/resnet.h"
#include "models/zoo/unet.h"
#include "models/zoo/vit.h"
#include "ops/ops.h"
#include "tests/support.h"

namespace xylem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using zoo::Options;

std::map<std::string, Shape> shapes(const Module& m) {
  std::map<std::string, Shape> found;
  for (const NamedTensor& t : state_dict(m)) found[t.name] = t.tensor.shape();
  return found;
}

Options small_options(const std::string& name) {
  using I = int64_t;
  if (name == "gpt2") return {{"vocab", I(17)}, {"context", I(12)}, {"layers", I(2)}, {"heads", I(2)}, {"width", I(8)}};
  if (name == "llama")
    return {{"vocab", I(17)},   {"context", I(12)}, {"layers", I(2)}, {"heads", I(4)},
            {"kv_heads", I(2)}, {"width", I(16)},   {"hidden", I(24)}};
  if (name == "vit")
    return {{"image", I(8)}, {"patch", I(4)}, {"classes", I(5)}, {"layers", I(2)}, {"heads", I(2)}, {"width", I(8)}};
  if (name == "unet") return {{"width", I(4)}, {"depth", I(2)}, {"classes", I(5)}};
  if (name == "mlp") return {{"in", I(3 * 8 * 8)}, {"hidden", I(16)}, {"classes", I(5)}};
  if (name == "mobilenet_small") return {{"channels", I(3)}, {"width", I(4)}, {"blocks", I(1)}, {"classes", I(5)}};
  if (name == "resnet_small") return {{"channels", I(3)}, {"width", I(4)}, {"classes", I(5)}};
  return {{"width", I(4)}, {"classes", I(5)}, {"small_images", true}};
}

struct Example {
  Tensor input, target;
  Shape output;
};
Example example_for(const ZooModel& model) {
  if (model.task() == RecordSpec::Task::language_modelling) {
    Tensor tokens = sample_index({2, 9}, 17);
    return {tokens.slice(1, 0, 8), tokens.slice(1, 1, 9), {2, 8, 17}};
  }
  Tensor images = sample_normal({2, 3, 8, 8}).to(f32);
  if (model.task() == RecordSpec::Task::segmentation) return {images, sample_index({2, 8, 8}, 5), {2, 5, 8, 8}};
  return {images, sample_index({2}, 5), {2, 5}};
}

class EveryModel : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Zoo, EveryModel, ::testing::ValuesIn(zoo::names()), [](const auto& i) { return i.param; });

TEST_P(EveryModel, TrainsEveryParameter) {
  rng::seed(2);
  auto model = zoo::create(GetParam(), small_options(GetParam()));
  Example e = example_for(*model);
  EXPECT_EQ(model->forward(e.input).shape(), e.output);
  double first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    model->zero_grad();
    Tensor loss = model->loss(e.input, e.target);
    loss.backward();
    (step == 0 ? first : last) = loss.item();
    for (const NamedTensor& p : model->parameters()) {
      ASSERT_TRUE(p.tensor.grad().defined()) << p.name;
      EXPECT_TRUE(std::isfinite(sum(p.tensor.grad()).item())) << p.name;
      no_grad([&] { return p.tensor.add_(p.tensor.grad(), -0.05).defined(); });
    }
  }
  EXPECT_LT(last, 0.9 * first);
}

TEST_P(EveryModel, DescribesItself) {
  auto model = zoo::create(GetParam(), small_options(GetParam()));
  model->eval();
  const Tensor input = model->example();
  EXPECT_EQ(input.size(0), 1);
  const Tensor logits = model->classes_last(model->forward(input));
  EXPECT_EQ(logits.size(-1), model->classes());
  Shape targets = logits.shape();
  targets.erase(targets.rank() - 1);
  EXPECT_EQ(targets.rank(), model->task() == RecordSpec::Task::classification       ? 1
                            : model->task() == RecordSpec::Task::language_modelling ? 2
                                                                                    : 3);
  // The loss takes what cross-entropy takes.
  const Tensor target = zeros(targets, i64);
  const double plain = model->loss(input, target).item();
  EXPECT_NE(model->loss(input, target, {.label_smoothing = 0.5}).item(), plain);
  EXPECT_EQ(model->loss(input, target, {.ignore_index = 0}).item(), 0);
}

TEST_P(EveryModel, RunsInBf16AndF64) {
  rng::seed(2);
  auto model = zoo::create(GetParam(), small_options(GetParam()));
  Example e = example_for(*model);
  model->eval();
  auto exact = model->forward(e.input).to_vector<double>();
  double largest = 1;
  for (double v : exact) largest = std::max(largest, std::abs(v));
  for (DType t : {f64, bf16}) {
    model->to(t);
    Tensor y = model->forward(e.input);
    EXPECT_EQ(y.dtype(), t);
    auto got = y.to_vector<double>();
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], exact[i], (t == f64 ? 1e-4 : 6e-2) * largest);
    model->loss(e.input, e.target).backward();
  }
}

TEST_P(EveryModel, RoundTripsThroughItsPublishersFormat) {
  rng::seed(2);
  auto a = zoo::create(GetParam(), small_options(GetParam())), b = zoo::create(GetParam(), small_options(GetParam()));
  Example e = example_for(*a);
  a->eval(), b->eval();
  EXPECT_NE(a->forward(e.input).to_vector<float>(), b->forward(e.input).to_vector<float>());
  Scratch dir;
  const std::string path = dir / "model.safetensors";
  save_pretrained(*a, path);
  load_pretrained(*b, path);
  EXPECT_EQ(a->forward(e.input).to_vector<float>(), b->forward(e.input).to_vector<float>());
}

TEST_P(EveryModel, DescribesItsOptions) {
  std::string help = zoo::options_help(GetParam());
  for (const auto& [key, value] : small_options(GetParam())) EXPECT_THAT(help, HasSubstr(key + " = "));
}

TEST(Zoo, NamesTheNearestModelAndOption) {
  EXPECT_THAT(error_of([] { zoo::create("gtp2"); }), AllOf(HasSubstr("'gtp2'"), HasSubstr("'gpt2'")));
  EXPECT_THAT(error_of([] { zoo::create("resnet_smal"); }), HasSubstr("'resnet_small'"));
  EXPECT_THAT(error_of([] {
                zoo::create("gpt2", {{"layer", int64_t(2)}});
              }),
              AllOf(HasSubstr("'layer'"), HasSubstr("'layers'")));
  EXPECT_THAT(error_of([] {
                zoo::create("gpt2", {{"layers", std::string("two")}});
              }),
              AllOf(HasSubstr("'layers'"), HasSubstr("an integer"), HasSubstr("\"two\"")));
  EXPECT_THAT(error_of([] { zoo::create("gpt2", {{"layers", 2.5}}); }), HasSubstr("an integer"));
  EXPECT_THAT(error_of([] { zoo::create("gpt2", {{"recompute", int64_t(1)}}); }), HasSubstr("true or false"));
  Options options = small_options("gpt2");
  options["dropout"] = int64_t(0);  // an integer where a number is wanted
  zoo::create("gpt2", options);
}

TEST(Zoo, NamesImpossibleConfigurations) {
  using I = int64_t;
  EXPECT_THAT(error_of([] {
                zoo::create("gpt2", {{"width", I(10)}, {"heads", I(3)}, {"vocab", I(5)}});
              }),
              HasSubstr("a width of 10 cannot be split into 3 heads"));
  EXPECT_THAT(error_of([] { zoo::create("llama", {{"heads", I(12)}, {"kv_heads", I(5)}}); }), HasSubstr("5 kv_heads"));
  EXPECT_THAT(error_of([] { zoo::create("vit", {{"image", I(30)}, {"patch", I(16)}}); }), HasSubstr("patches of 16"));
  auto unet = zoo::create("unet", small_options("unet"));
  EXPECT_THAT(error_of([&] {
                unet->forward(zeros({1, 3, 6, 8}));
              }),
              AllOf(HasSubstr("multiples of 4"), HasSubstr("[1, 3, 6, 8]")));
  auto gpt = zoo::create("gpt2", small_options("gpt2"));
  EXPECT_THAT(error_of([&] { gpt->forward(zeros({1, 13}, i64)); }), HasSubstr("13 tokens exceeds the context of 12"));
}

// Counts and names of torchvision 0.x, timm and transformers for the published sizes.
TEST(Zoo, ResNet18HasTorchvisionsTensors) {
  zoo::ResNet model(zoo::resnet18_config());
  EXPECT_EQ(model.num_parameters(), 11'689'512);
  auto s = shapes(model);
  EXPECT_EQ(s.size(), 122u - 20u);  // torchvision also counts batches, once per norm
  EXPECT_EQ(s.at("conv1.weight"), (Shape{64, 3, 7, 7}));
  EXPECT_EQ(s.at("bn1.running_mean"), (Shape{64}));
  EXPECT_EQ(s.at("layer1.0.conv1.weight"), (Shape{64, 64, 3, 3}));
  EXPECT_EQ(s.at("layer2.0.downsample.0.weight"), (Shape{128, 64, 1, 1}));
  EXPECT_EQ(s.at("layer2.0.downsample.1.running_var"), (Shape{128}));
  EXPECT_EQ(s.at("layer4.1.bn2.bias"), (Shape{512}));
  EXPECT_EQ(s.at("fc.weight"), (Shape{1000, 512}));
  EXPECT_FALSE(s.contains("layer1.0.downsample.0.weight"));
  EXPECT_EQ(model.forward(sample_normal({1, 3, 64, 64}).to(f32)).shape(), (Shape{1, 1000}));
}

TEST(Zoo, ResNet50HasTorchvisionsTensors) {
  zoo::ResNet model(zoo::resnet50_config());
  EXPECT_EQ(model.num_parameters(), 25'557'032);
  auto s = shapes(model);
  EXPECT_EQ(s.size(), 320u - 53u);
  EXPECT_EQ(s.at("layer1.0.downsample.0.weight"), (Shape{256, 64, 1, 1}));
  EXPECT_EQ(s.at("layer3.0.conv2.weight"), (Shape{256, 256, 3, 3}));
  EXPECT_EQ(s.at("layer4.2.conv3.weight"), (Shape{2048, 512, 1, 1}));
  EXPECT_EQ(model.layer3[0].conv2.args.stride[0], 2);  // v1.5
  EXPECT_EQ(model.layer3[0].conv1.args.stride[0], 1);
}

TEST(Zoo, Gpt2HasHuggingFacesTensors) {
  zoo::Gpt2 model(zoo::Gpt2Config{});
  EXPECT_EQ(model.num_parameters(), 124'439'808);
  std::map<std::string, Shape> s;
  for (const NamedTensor& t : model.to_pretrained(state_dict(model))) s[t.name] = t.tensor.shape();
  EXPECT_EQ(s.size(), 148u);
  EXPECT_EQ(s.at("transformer.wte.weight"), (Shape{50257, 768}));
  EXPECT_EQ(s.at("transformer.h.0.attn.c_attn.weight"), (Shape{768, 2304}));  // Conv1D: [in, out]
  EXPECT_EQ(s.at("transformer.h.11.mlp.c_fc.weight"), (Shape{768, 3072}));
  EXPECT_EQ(s.at("transformer.h.11.mlp.c_proj.weight"), (Shape{3072, 768}));
  EXPECT_EQ(s.at("transformer.ln_f.bias"), (Shape{768}));
}

TEST(Zoo, LlamaHasHuggingFacesTensors) {
  auto model = zoo::create("llama", small_options("llama"));
  auto s = shapes(*model);
  EXPECT_EQ(s.size(), 1 + 2 * 9 + 1 + 1u);
  EXPECT_EQ(s.at("model.embed_tokens.weight"), (Shape{17, 16}));
  EXPECT_EQ(s.at("model.layers.1.self_attn.q_proj.weight"), (Shape{16, 16}));
  EXPECT_EQ(s.at("model.layers.1.self_attn.k_proj.weight"), (Shape{8, 16}));
  EXPECT_EQ(s.at("model.layers.0.mlp.down_proj.weight"), (Shape{16, 24}));
  EXPECT_EQ(s.at("model.layers.0.post_attention_layernorm.weight"), (Shape{16}));
  EXPECT_EQ(s.at("model.norm.weight"), (Shape{16}));
  EXPECT_EQ(s.at("lm_head.weight"), (Shape{17, 16}));
}

TEST(Zoo, VitHasTimmsTensors) {
  zoo::Vit model(zoo::VitConfig{});
  EXPECT_EQ(model.num_parameters(), 86'567'656);
  auto s = shapes(model);
  EXPECT_EQ(s.size(), 152u);
  EXPECT_EQ(s.at("pos_embed"), (Shape{1, 197, 768}));
  EXPECT_EQ(s.at("patch_embed.proj.weight"), (Shape{768, 3, 16, 16}));
  EXPECT_EQ(s.at("blocks.11.attn.qkv.weight"), (Shape{2304, 768}));
  EXPECT_EQ(s.at("head.bias"), (Shape{1000}));
}

// Recomputing gives the same gradients, dropout included, and keeps fewer tensors.
class Recompute : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Zoo, Recompute, ::testing::Values("gpt2", "llama", "vit"),
                         [](const auto& i) { return i.param; });

TEST_P(Recompute, GivesTheSameGradients) {
  Options options = small_options(GetParam());
  if (GetParam() != "llama") options["dropout"] = 0.3;
  std::vector<std::vector<double>> gradients[2];
  for (bool on : {false, true}) {
    options["recompute"] = on;
    rng::seed(7);
    auto model = zoo::create(GetParam(), options);
    model->to(f64);
    rng::next_step();
    Example e = example_for(*model);
    model->loss(e.input, e.target).backward();
    for (const NamedTensor& p : model->parameters()) gradients[on].push_back(p.tensor.grad().to_vector<double>());
  }
  ASSERT_EQ(gradients[0].size(), gradients[1].size());
  for (size_t i = 0; i < gradients[0].size(); ++i)
    for (size_t j = 0; j < gradients[0][i].size(); ++j) ASSERT_NEAR(gradients[0][i][j], gradients[1][i][j], 1e-12);
}

struct Copying : LanguageModel {  // always expects the token after the last one
  Tensor table;
  Copying() {
    std::vector<float> rows(25, 0.f);
    for (int i = 0; i < 5; ++i) rows[size_t(i * 5 + (i + 1) % 5)] = 10.f;
    table = parameter(from_vector(rows, {5, 5}));
  }
  XY_MEMBERS(table)
  int64_t vocab() const override { return 5; }
  int64_t context() const override { return 3; }
  Tensor hidden(const Tensor& tokens) override {
    EXPECT_LE(tokens.size(1), 3);
    EXPECT_FALSE(training());
    return embedding(tokens, table);
  }
  Tensor logits(const Tensor& hidden) const override { return hidden; }
};

TEST(Generate, FollowsTheModelBeyondItsContext) {
  Copying model;
  EXPECT_EQ(generate(model, {3}, {.max_tokens = 7, .temperature = 0}), (std::vector<int64_t>{4, 0, 1, 2, 3, 4, 0}));
  EXPECT_EQ(generate(model, {0}, {.max_tokens = 6, .temperature = 100, .top_k = 1}),
            (std::vector<int64_t>{1, 2, 3, 4, 0, 1}));
  EXPECT_TRUE(model.training());
  int seen = 0;
  auto stop = [&](int64_t) { return ++seen < 3; };
  EXPECT_EQ(generate(model, {0}, {.max_tokens = 50, .temperature = 0, .on_token = stop}).size(), 3u);
}

TEST(Generate, SamplesByTheSeedAndInProportion) {
  Copying model;
  no_grad([&] { return model.table.copy_(log(from_vector<float>({.1f, .2f, .3f, .4f, 1e-9f}, {1, 5}))).defined(); });
  GenerateOptions options{.max_tokens = 4000, .seed = 5};
  auto a = generate(model, {0}, options);
  EXPECT_EQ(a, generate(model, {0}, options));
  options.seed = 6;
  EXPECT_NE(a, generate(model, {0}, options));
  for (int t = 0; t < 5; ++t)
    EXPECT_NEAR(double(std::count(a.begin(), a.end(), t)) / 4000, t == 4 ? 0 : 0.1 * (t + 1), 0.03);
  options.top_k = 2;
  for (int64_t t : generate(model, {0}, options)) EXPECT_TRUE(t == 2 || t == 3);
}

TEST(Generate, ChecksThePrompt) {
  Copying model;
  EXPECT_THAT(error_of([&] { generate(model, {}); }), HasSubstr("at least one token"));
  EXPECT_THAT(error_of([&] { generate(model, {1, 5}); }), HasSubstr("token 5"));
}

TEST(Zoo, LastTokenLogitsAreThoseOfTheWholeSequence) {
  for (const char* name : {"gpt2", "llama"}) {
    auto model = zoo::create(name, small_options(name));
    auto& lm = dynamic_cast<LanguageModel&>(*model);
    Tensor tokens = sample_index({2, 6}, 17);
    auto whole = lm.forward(tokens).select(1, 5).to_vector<double>(), last = lm.next_logits(tokens).to_vector<double>();
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], last[i], 1e-5);
  }
}

TEST(Zoo, CausalModelsDoNotSeeTheFuture) {
  for (const char* name : {"gpt2", "llama"}) {
    auto model = zoo::create(name, small_options(name));
    Tensor tokens = sample_index({1, 8}, 17), changed = tokens.clone();
    changed.slice(1, 5, 8).fill_(3);
    tokens.slice(1, 5, 8).fill_(4);
    auto a = model->forward(tokens).slice(1, 0, 5).to_vector<float>();
    EXPECT_EQ(a, model->forward(changed).slice(1, 0, 5).to_vector<float>()) << name;
  }
}

}  // namespace
}  // namespace xylem
