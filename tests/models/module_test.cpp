// SPDX-License-Identifier: Apache-2.0
#include "models/nn/module.h"

#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <memory>
#include <optional>

#include "core/random/rng.h"
#include "models/nn/eval_scope.h"
#include "models/nn/init.h"
#include "models/nn/layers.h"
#include "models/nn/sequential.h"
#include "tests/support.h"

namespace xylem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> names(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> all;
  for (const NamedTensor& t : tensors) all.push_back(t.name);
  return all;
}

struct Everything : Module {
  Tensor scale_ = parameter(ones({2}));
  Tensor absent;
  Buffer count{zeros({1})};
  Linear plain{2, 3}, without_bias{3, 2, false};
  std::vector<Linear> list;
  std::array<Linear, 2> pair{Linear(1, 1, false), Linear(1, 2, false)};
  std::optional<BatchNorm2d> none, some;
  std::unique_ptr<LayerNorm> pointer = std::make_unique<LayerNorm>(4);
  std::vector<std::unique_ptr<Linear>> pointers;
  Everything() {
    list.emplace_back(1, 1);
    list.emplace_back(1, 1, false);
    some.emplace(5);
    pointers.push_back(std::make_unique<Linear>(1, 1, false));
  }
  // Two lines on purpose: the names come from this text.
  XY_MEMBERS(scale_, absent, count, plain, without_bias, list, pair, none, some, pointer, pointers)
};

TEST(Module, NamesParametersInOrderOfTheMemberList) {
  Everything m;
  EXPECT_THAT(names(m.parameters()),
              ElementsAre("scale", "plain.weight", "plain.bias", "without_bias.weight", "list.0.weight", "list.0.bias",
                          "list.1.weight", "pair.0.weight", "pair.1.weight", "some.weight", "some.bias",
                          "pointer.weight", "pointer.bias", "pointers.0.weight"));
  EXPECT_THAT(names(m.buffers()), ElementsAre("count", "some.running_mean", "some.running_var"));
  EXPECT_EQ(state_dict(m).size(), m.parameters().size() + m.buffers().size());
  EXPECT_EQ(m.num_parameters(), 2 + 6 + 3 + 6 + 2 + 1 + 1 + 2 + 10 + 8 + 1);
}

struct AnyName : Module {  // members may be called what the macro calls its own variables
  Linear out{1, 1, false}, names{1, 1, false}, members{1, 1, false};
  XY_MEMBERS(out, names, members)
};

TEST(Module, MembersMayHaveAnyName) {
  AnyName m;
  EXPECT_THAT(names(m.parameters()), ElementsAre("out.weight", "names.weight", "members.weight"));
}

TEST(Module, ListsModulesWithTheirNames) {
  Everything m;
  std::vector<std::string> found;
  for (auto& [name, module] : m.modules()) found.push_back(name);
  EXPECT_THAT(found, ElementsAre("", "plain", "without_bias", "list.0", "list.1", "pair.0", "pair.1", "some", "pointer",
                                 "pointers.0"));
}

TEST(Module, ReachesMovedModules) {
  Everything m;
  Tensor before = m.plain.weight;
  Everything moved = std::move(m);
  EXPECT_TRUE(moved.plain.weight.same_as(before));
  EXPECT_EQ(names(moved.parameters()).size(), 14u);
}

struct Tied : Module {
  Embedding embed{7, 3};
  Linear head{3, 7, false};
  Tied() { head.weight = embed.weight; }
  XY_MEMBERS(embed, head)
};

TEST(Module, CountsATiedTensorOnce) {
  Tied m;
  EXPECT_THAT(names(m.parameters()), ElementsAre("embed.weight"));
  EXPECT_EQ(m.num_parameters(), 21);
}

TEST(Module, LoadsATiedTensorUnderEitherName) {
  Tied m;
  Tensor value = full({7, 3}, 4);
  load_state_dict(m, {{"head.weight", value}});
  EXPECT_EQ(m.embed.weight.to_vector<float>(), value.to_vector<float>());
  load_state_dict(m, {{"embed.weight", ones({7, 3})}, {"head.weight", ones({7, 3})}});
  EXPECT_EQ(m.head.weight.to_vector<float>(), std::vector<float>(21, 1));
}

TEST(Module, CastsInPlaceButKeepsNormsInF32) {
  Everything m;
  Tensor weight = m.plain.weight;
  double before = weight.select(0, 0).select(0, 0).item();
  m.to(bf16);
  EXPECT_TRUE(weight.same_as(m.plain.weight));
  EXPECT_EQ(weight.dtype(), bf16);
  EXPECT_TRUE(weight.requires_grad() && weight.is_leaf());
  EXPECT_NEAR(weight.select(0, 0).select(0, 0).item(), before, std::abs(before) / 128);
  EXPECT_EQ(m.some->weight.dtype(), f32);
  EXPECT_EQ(m.some->running_var.tensor.dtype(), f32);
  EXPECT_EQ(m.pointer->bias.dtype(), f32);
  m.to(f64);
  EXPECT_EQ(m.some->weight.dtype(), f64);
  EXPECT_EQ(m.plain.bias.dtype(), f64);
  EXPECT_EQ(m.some->running_var.tensor.dtype(), f32);
}

TEST(Module, CastingDropsGradientsOfTheOldType) {
  Linear m(2, 1);
  sum(m(ones({1, 2}))).backward();
  ASSERT_TRUE(m.weight.grad().defined());
  m.to(f64);
  sum(m(ones({1, 2}, f64))).backward();
  EXPECT_EQ(m.weight.grad().dtype(), f64);
  EXPECT_EQ(m.weight.grad().to_vector<double>(), (std::vector<double>{1, 1}));
}

TEST(Module, TrainAndEvalReachEveryModule) {
  Everything m;
  EXPECT_TRUE(m.some->training());
  m.eval();
  for (auto& [name, module] : m.modules()) EXPECT_FALSE(module->training()) << name;
  m.train();
  EXPECT_TRUE(m.pointers[0]->training());
}

TEST(Module, EvalScopeReturnsEveryModuleToItsOwnMode) {
  Everything m;
  m.some->eval();  // a norm that stays frozen while the rest trains
  {
    EvalScope evaluation(m);
    for (auto& [name, module] : m.modules()) EXPECT_FALSE(module->training()) << name;
  }
  EXPECT_TRUE(m.training());
  EXPECT_TRUE(m.plain.training());
  EXPECT_FALSE(m.some->training());
}

TEST(Module, FreezesAndClearsGradients) {
  Linear m(2, 1);
  m.requires_grad(false);
  EXPECT_FALSE(m(ones({1, 2})).requires_grad());
  m.requires_grad(true);
  for (int i = 0; i < 2; ++i) {
    m.zero_grad();
    sum(m(ones({1, 2}))).backward();
    EXPECT_EQ(m.weight.grad().to_vector<float>(), (std::vector<float>{1, 1}));
  }
}

TEST(StateDict, CopiesAModelAndCasts) {
  rng::seed(3);
  Linear a(4, 5), b(4, 5);
  ASSERT_NE(a.weight.to_vector<float>(), b.weight.to_vector<float>());
  load_state_dict(b, state_dict(a));
  EXPECT_EQ(a.weight.to_vector<float>(), b.weight.to_vector<float>());
  EXPECT_EQ(a.bias.to_vector<float>(), b.bias.to_vector<float>());
  Linear c(4, 5);
  c.to(bf16);
  load_state_dict(c, state_dict(a));
  EXPECT_EQ(c.weight.dtype(), bf16);
  EXPECT_EQ(c.weight.to_vector<float>(), a.weight.to(bf16).to_vector<float>());
}

TEST(StateDict, ListsEveryDifferenceAndChangesNothing) {
  Everything m;
  auto before = m.plain.bias.to_vector<float>();
  std::vector<NamedTensor> given;
  for (const NamedTensor& t : state_dict(m)) {
    if (t.name == "scale" || t.name == "some.running_var") continue;
    given.push_back({t.name, t.name == "plain.weight" ? zeros({3, 3}) : full(t.tensor.shape(), 9)});
  }
  given.push_back({"head.weight", zeros({1})});
  given.push_back({"some.num_batches_tracked", zeros({}, i64)});  // PyTorch's counter has no counterpart
  std::string error = error_of([&] { load_state_dict(m, given); });
  EXPECT_THAT(error, HasSubstr("missing (2):\n    scale\n    some.running_var"));
  EXPECT_THAT(error, HasSubstr("unexpected (1):\n    head.weight"));
  EXPECT_THAT(error, HasSubstr("plain.weight: the model has [3, 2], the state dict [3, 3]"));
  EXPECT_THAT(error, Not(HasSubstr("num_batches_tracked")));
  EXPECT_EQ(m.plain.bias.to_vector<float>(), before);

  std::string shape_only = error_of([&] { load_state_dict(m, given, false); });
  EXPECT_THAT(shape_only, Not(HasSubstr("missing")));
  EXPECT_THAT(shape_only, HasSubstr("plain.weight"));
  std::erase_if(given, [](const NamedTensor& t) { return t.name == "plain.weight"; });
  load_state_dict(m, given, false);
  EXPECT_EQ(m.plain.bias.to_vector<float>(), std::vector<float>(3, 9));
}

TEST(StateDict, RejectsANameGivenTwice) {
  Linear m(1, 1, false);
  EXPECT_THAT(error_of([&] {
                load_state_dict(m, {{"weight", ones({1, 1})}, {"weight", ones({1, 1})}});
              }),
              HasSubstr("'weight' twice"));
}

TEST(Sequential, NumbersFunctionsLikePyTorchDoes) {
  Sequential net(Linear(2, 3), relu, Linear(3, 1, false), [](const Tensor& x) { return x * 2; });
  EXPECT_EQ(net.size(), 4u);
  EXPECT_EQ(net[1], nullptr);
  EXPECT_THAT(names(net.parameters()), ElementsAre("0.weight", "0.bias", "2.weight"));
  load_state_dict(net, {{"0.weight", full({3, 2}, -1)}, {"0.bias", full({3}, 5)}, {"2.weight", ones({1, 3})}});
  // relu(5 - x0 - x1) three times, summed and doubled.
  EXPECT_EQ(net(from_vector<float>({1, 2, 3, 4}, {2, 2})).to_vector<float>(), (std::vector<float>{12, 0}));
  Sequential moved = std::move(net);
  EXPECT_EQ(moved(from_vector<float>({1, 1}, {1, 2})).item(), 18);
}

// Mean and spread of PyTorch's defaults: uniform in +-1/sqrt(fan in), whose variance is 1/(3 fan in).
void expect_uniform(const Tensor& t, double fan_in) {
  auto v = t.to_vector<double>();
  double bound = 1 / std::sqrt(fan_in), sum = 0, squares = 0, largest = 0;
  for (double x : v) sum += x, squares += x * x, largest = std::max(largest, std::abs(x));
  EXPECT_LE(largest, bound * (1 + 1e-6));
  EXPECT_GT(largest, 0.9 * bound);
  EXPECT_NEAR(sum / double(v.size()), 0, 0.1 * bound);
  EXPECT_NEAR(squares / double(v.size()) * 3 * fan_in, 1, 0.15);
  EXPECT_TRUE(t.requires_grad());
}

TEST(Layers, InitialiseAsPyTorchDoes) {
  rng::seed(1);
  Linear linear(50, 40);
  expect_uniform(linear.weight, 50);
  Conv2d conv(8, 32, 3, {.groups = 2});
  EXPECT_EQ(conv.weight.shape(), (Shape{32, 4, 3, 3}));
  expect_uniform(conv.weight, 4 * 9);
  ConvTranspose2d transposed(8, 32, 3, {.groups = 2});
  EXPECT_EQ(transposed.weight.shape(), (Shape{8, 16, 3, 3}));
  expect_uniform(transposed.weight, 16 * 9);
  EXPECT_EQ(transposed.bias.shape(), (Shape{32}));

  Embedding embed(100, 50);
  auto v = embed.weight.to_vector<double>();
  double squares = 0;
  for (double x : v) squares += x * x;
  EXPECT_NEAR(squares / double(v.size()), 1, 0.1);

  BatchNorm2d bn(3);
  EXPECT_EQ(bn.running_var.tensor.to_vector<float>(), std::vector<float>(3, 1));
  EXPECT_EQ(bn.running_mean.tensor.to_vector<float>(), std::vector<float>(3, 0));
  EXPECT_FALSE(bn.running_var.tensor.requires_grad());
}

TEST(Layers, BatchNormFollowsTrainingMode) {
  BatchNorm2d bn(1);
  Tensor x = from_vector<float>({1, 3, 5, 7}, {4, 1, 1, 1});  // mean 4, unbiased variance 20/3
  bn(x);
  EXPECT_NEAR(bn.running_mean.tensor.item(), 0.4, 1e-6);
  EXPECT_NEAR(bn.running_var.tensor.item(), 0.9 + 0.1 * 20 / 3, 1e-6);
  bn.eval();
  double expected = (1 - 0.4) / std::sqrt(0.9 + 2.0 / 3 + 1e-5);
  EXPECT_NEAR(bn(x).to_vector<double>()[0], expected, 1e-5);
  EXPECT_NEAR(bn.running_mean.tensor.item(), 0.4, 1e-6);
}

TEST(Layers, DropoutActsOnlyInTraining) {
  rng::seed(1);
  Dropout drop(0.5);
  Tensor x = ones({1000});
  double kept = sum(drop(x)).item() / 2000;
  EXPECT_GT(kept, 0.4);
  EXPECT_LT(kept, 0.6);
  drop.eval();
  EXPECT_TRUE(drop(x).same_as(x));
}

TEST(Layers, SelfAttentionIsTheFormula) {
  rng::seed(5);
  SelfAttention attn(4, 2, {.causal = true});
  attn.to(f64);
  Tensor x = randn({1, 3, 4}, f64);
  Tensor qkv = attn.qkv(x);  // [1, 3, 12]
  auto v = qkv.to_vector<double>();
  std::vector<double> expected(12, 0);
  for (int h = 0; h < 2; ++h)
    for (int s = 0; s < 3; ++s) {
      double total = 0;
      std::vector<double> weights;
      for (int t = 0; t <= s; ++t) {
        double dot = 0;
        for (int d = 0; d < 2; ++d) dot += v[s * 12 + h * 2 + d] * v[t * 12 + 4 + h * 2 + d];
        weights.push_back(std::exp(dot / std::sqrt(2.0)));
        total += weights.back();
      }
      for (int t = 0; t <= s; ++t)
        for (int d = 0; d < 2; ++d) expected[s * 4 + h * 2 + d] += weights[t] / total * v[t * 12 + 8 + h * 2 + d];
    }
  auto got = packed_attention(qkv, 2, true).to_vector<double>();
  for (int i = 0; i < 12; ++i) EXPECT_NEAR(got[i], expected[i], 1e-12);
  EXPECT_THAT(error_of([] { SelfAttention(5, 2); }), HasSubstr("5 cannot be split into 2 heads"));
}

}  // namespace
}  // namespace xylem
