// SPDX-License-Identifier: Apache-2.0
// Muon beside a reference in f64, loop by loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/random/rng.h"
#include "models/nn/layers.h"
#include "models/optim/optimizers.h"
#include "models/zoo/gpt2.h"
#include "models/zoo/llama.h"
#include "models/zoo/resnet.h"
#include "models/zoo/vit.h"
#include "tests/support.h"

namespace xylem {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

struct Matrix {
  int64_t rows, columns;
  std::vector<double> v;
  double& at(int64_t i, int64_t j) { return v[size_t(i * columns + j)]; }
  double at(int64_t i, int64_t j) const { return v[size_t(i * columns + j)]; }
};

Matrix transposed(const Matrix& m) {
  Matrix t{m.columns, m.rows, std::vector<double>(m.v.size())};
  for (int64_t i = 0; i < m.rows; ++i)
    for (int64_t j = 0; j < m.columns; ++j) t.at(j, i) = m.at(i, j);
  return t;
}
Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.columns, std::vector<double>(size_t(a.rows * b.columns))};
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = 0; j < b.columns; ++j)
      for (int64_t k = 0; k < a.columns; ++k) c.at(i, j) += a.at(i, k) * b.at(k, j);
  return c;
}

// x -> 3.4445 x - 4.7750 (x x') x + 2.0315 (x x')^2 x, on the flat side.
Matrix newton_schulz(Matrix x, int iterations) {
  bool tall = x.rows > x.columns;
  if (tall) x = transposed(x);
  double norm = 0;
  for (double v : x.v) norm += v * v;
  for (double& v : x.v) v /= std::sqrt(norm) + 1e-7;
  for (int i = 0; i < iterations; ++i) {
    Matrix a = product(x, transposed(x)), once = product(a, x), twice = product(a, once);
    for (size_t k = 0; k < x.v.size(); ++k) x.v[k] = 3.4445 * x.v[k] - 4.7750 * once.v[k] + 2.0315 * twice.v[k];
  }
  return tall ? transposed(x) : x;
}

struct Net : Module {
  Linear wide{5, 3}, tall{3, 7}, head{7, 2};
  XY_MEMBERS(wide, tall, head)
};

// The gradient of every parameter at a step.
double gradient(const std::string& name, int64_t i, int step) {
  return std::sin(double(i + 1) * double(step) + double(name.size()));
}
void give_gradients(const Net& net, int step) {
  for (const NamedTensor& p : net.parameters()) {
    std::vector<double> g;
    for (int64_t i = 0; i < p.tensor.numel(); ++i) g.push_back(gradient(p.name, i, step));
    sum(p.tensor * from_vector(g, p.tensor.shape()).to(p.tensor.dtype())).backward();
  }
}

double train_and_compare(DType dtype, bool nesterov) {
  rng::seed(3);
  Net net;
  net.to(dtype);
  const double lr = 0.0625, decay = 0.5;
  MuonArgs args{.lr = lr, .momentum = 0.9, .weight_decay = decay, .nesterov = nesterov, .iterations = 4};
  std::map<std::string, std::vector<double>> want, momentum, square;
  for (const NamedTensor& p : net.parameters()) want[p.name] = p.tensor.to_vector<double>();
  Muon opt(net, args);
  double worst = 0;
  for (int step = 1; step <= 3; ++step) {
    opt.zero_grad();
    give_gradients(net, step);
    opt.step();
    for (const NamedTensor& p : net.parameters()) {
      auto &w = want[p.name], &m = momentum[p.name], &v = square[p.name];
      m.resize(w.size()), v.resize(w.size());
      bool hidden = p.name == "wide.weight" || p.name == "tall.weight";
      if (hidden) {
        Matrix d{p.tensor.size(0), p.tensor.size(1), {}};
        for (size_t i = 0; i < w.size(); ++i) {
          double g = gradient(p.name, int64_t(i), step);
          m[i] = 0.9 * m[i] + g;
          d.v.push_back(nesterov ? g + 0.9 * m[i] : m[i]);
        }
        double size = 0.2 * std::sqrt(double(std::max(d.rows, d.columns)));
        d = newton_schulz(d, 4);
        for (size_t i = 0; i < w.size(); ++i) w[i] -= lr * (size * d.v[i] + decay * w[i]);
      } else {
        for (size_t i = 0; i < w.size(); ++i) {
          double g = gradient(p.name, int64_t(i), step);
          m[i] = args.beta1 * m[i] + (1 - args.beta1) * g;
          v[i] = args.beta2 * v[i] + (1 - args.beta2) * g * g;
          if (p.tensor.rank() > 1) w[i] -= lr * decay * w[i];
          w[i] -= lr * m[i] / (1 - std::pow(args.beta1, step)) /
                  (std::sqrt(v[i] / (1 - std::pow(args.beta2, step))) + args.eps);
        }
      }
      auto got = p.tensor.to_vector<double>();
      for (size_t i = 0; i < w.size(); ++i) worst = std::max(worst, std::abs(got[i] - w[i]) / (1 + std::abs(w[i])));
    }
  }
  return worst;
}

TEST(Muon, FollowsTheFormula) {
  for (bool nesterov : {false, true}) {
    EXPECT_LE(train_and_compare(f64, nesterov), 1e-12) << nesterov;
    EXPECT_LE(train_and_compare(f32, nesterov), 2e-5) << nesterov;
    EXPECT_LE(train_and_compare(bf16, nesterov), 2e-2) << nesterov;  // of a parameter's own rounding; masters hide more
  }
}

// Singular values of what moves the weights, of a matrix whose own are 1 and 0.01, come near to one another.
TEST(Muon, StepsAreNearlyOrthogonal) {
  Linear layer(2, 2, false), head(2, 1);
  struct Pair : Module {
    Linear &a, &b;
    Pair(Linear& a, Linear& b) : a(a), b(b) {}
    XY_MEMBERS(a, b)
  } net(layer, head);
  no_grad([&] { layer.weight.zero_(); });
  Muon opt(net, {.lr = 1, .weight_decay = 0});
  layer.weight.set_grad(from_vector<float>({1, 0, 0, 0.01f}, {2, 2}));
  opt.step();
  auto w = layer.weight.to_vector<double>();
  for (double s : {w[0], w[3]}) {
    EXPECT_LT(-s, 1.3 * 0.2 * std::sqrt(2));
    EXPECT_GT(-s, 0.3 * 0.2 * std::sqrt(2));
  }
  EXPECT_NEAR(w[1], 0, 1e-6);
}

// What has a momentum of its own, by the name of the parameter.
std::vector<std::string> orthogonal_ones(Muon& opt) {
  std::vector<std::string> names;
  for (const NamedTensor& t : opt.state())
    if (t.name.starts_with("momentum.")) names.push_back(t.name.substr(9));
  return names;
}

TEST(Muon, TablesHeadsAndVectorsAreAdamWs) {
  zoo::Gpt2 gpt2({.vocab = 31, .context = 6, .layers = 1, .heads = 2, .width = 12});
  Muon of_gpt2(gpt2);
  EXPECT_EQ(orthogonal_ones(of_gpt2).size(), 4u);  // of the block; the tied table is the head
  zoo::Llama llama({.vocab = 31, .context = 6, .layers = 1, .heads = 2, .kv_heads = 2, .width = 12, .hidden = 16});
  Muon of_llama(llama);
  for (const std::string& name : orthogonal_ones(of_llama)) {
    EXPECT_EQ(name.find("embed"), std::string::npos) << name;
    EXPECT_EQ(name.find("head"), std::string::npos) << name;
  }
  EXPECT_GE(orthogonal_ones(of_llama).size(), 6u);
  Net net;
  Muon opt(net);
  EXPECT_THAT(orthogonal_ones(opt), UnorderedElementsAre("wide.weight", "tall.weight"));
}

TEST(Muon, GroupsChooseTheRule) {
  Net net;
  auto rule = [](std::string name, std::string rule) {
    return FlatOptions{
        .group = [=](const NamedTensor& p) { return p.name == name ? ParamOptions{.rule = rule} : default_group(p); }};
  };
  Muon opt(net, {}, rule("wide.weight", "adamw"));
  EXPECT_THAT(orthogonal_ones(opt), UnorderedElementsAre("tall.weight"));
  Net other;
  Muon with_head(other, {}, rule("head.weight", "orthogonal"));
  EXPECT_THAT(orthogonal_ones(with_head), UnorderedElementsAre("wide.weight", "tall.weight", "head.weight"));
  Net third;
  EXPECT_THAT(error_of([&] { Muon(third, {}, rule("head.bias", "orthogonal")); }),
              AllOf(HasSubstr("'head.bias'"), HasSubstr("no matrix")));
}

TEST(Muon, FrozenMatricesStayAsTheyAre) {
  Net net;
  Muon opt(net, {.lr = 0.1});
  auto step = [&](int number) {
    opt.zero_grad();
    give_gradients(net, number);
    opt.step();
  };
  step(1);
  net.wide.requires_grad(false);
  auto wide = net.wide.weight.to_vector<float>(), tall = net.tall.weight.to_vector<float>();
  opt.zero_grad();
  sum(net.tall.weight).backward();
  opt.step();
  EXPECT_EQ(net.wide.weight.to_vector<float>(), wide);
  EXPECT_NE(net.tall.weight.to_vector<float>(), tall);
  net.wide.requires_grad(true);
  step(2);
  EXPECT_NE(net.wide.weight.to_vector<float>(), wide);
}

TEST(MuonCuda, FollowsTheCpu) {
  if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  std::vector<std::vector<double>> values;
  for (Device device : {Device::cpu(), Device::cuda()}) {
    rng::seed(3);
    Net net;
    net.to(device);
    Muon opt(net, {.lr = 0.01});
    for (int step = 1; step <= 3; ++step) {
      opt.zero_grad();
      for (const NamedTensor& p : net.parameters()) (sum(p.tensor * p.tensor) * double(step)).backward();
      opt.step();
    }
    values.push_back(net.tall.weight.to_vector<double>());
  }
  for (size_t i = 0; i < values[0].size(); ++i) EXPECT_NEAR(values[0][i], values[1][i], 1e-3);  // bf16 there
}

}  // namespace
}  // namespace xylem
