// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/attention.h"

#include <gmock/gmock.h>

#include "core/util/determinism.h"
#include "tests/ops/helpers.h"

namespace xylem {
namespace {

using testing::HasSubstr;

struct Problem {
  int64_t batch = 2, queries = 5, keys = 5, heads = 2, key_heads = 2, size = 8;
  bool causal = true;
  double spread = 1;
};
std::ostream& operator<<(std::ostream& out, const Problem& p) {
  return out << "B" << p.batch << " S" << p.queries << " T" << p.keys << " H" << p.heads << "/" << p.key_heads << " D"
             << p.size << (p.causal ? " causal" : "");
}

struct Values {
  std::vector<double> out, dq, dk, dv;
};

// Attention and its gradients, one score at a time in f64.
Values expected(const Problem& p, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dout, double scale) {
  auto Q = q.to_vector<double>(), K = k.to_vector<double>(), V = v.to_vector<double>(), G = dout.to_vector<double>();
  Values r{std::vector<double>(Q.size()), std::vector<double>(Q.size()), std::vector<double>(K.size()),
           std::vector<double>(K.size())};
  const int64_t D = p.size, group = p.heads / p.key_heads;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads; ++h)
      for (int64_t i = 0; i < p.queries; ++i) {
        const int64_t seen = p.causal ? std::max<int64_t>(0, i + 1 + p.keys - p.queries) : p.keys;
        if (seen == 0) continue;
        const int64_t qi = ((b * p.queries + i) * p.heads + h) * D;
        auto kj = [&](int64_t j) { return ((b * p.keys + j) * p.key_heads + h / group) * D; };
        std::vector<double> s(seen), dp(seen);
        double top = -1e300, sum = 0, along = 0;
        for (int64_t j = 0; j < seen; ++j) {
          for (int64_t d = 0; d < D; ++d) s[j] += Q[qi + d] * K[kj(j) + d] * scale;
          top = std::max(top, s[j]);
        }
        for (double& x : s) sum += x = std::exp(x - top);
        for (int64_t j = 0; j < seen; ++j) {
          s[j] /= sum;
          for (int64_t d = 0; d < D; ++d) {
            r.out[qi + d] += s[j] * V[kj(j) + d];
            dp[j] += G[qi + d] * V[kj(j) + d];
            r.dv[kj(j) + d] += s[j] * G[qi + d];
          }
          along += s[j] * dp[j];
        }
        for (int64_t j = 0; j < seen; ++j)
          for (int64_t d = 0; d < D; ++d) {
            r.dq[qi + d] += s[j] * (dp[j] - along) * scale * K[kj(j) + d];
            r.dk[kj(j) + d] += s[j] * (dp[j] - along) * scale * Q[qi + d];
          }
      }
  return r;
}

struct Inputs {
  Tensor q, k, v, dout;
  Inputs(const Problem& p, DType dtype, Device device) {
    auto make = [&](int64_t rows, int64_t heads, double spread, uint64_t seed) {
      return sample_normal({p.batch, rows, heads, p.size}, spread, seed).to(dtype).to(device);
    };
    q = make(p.queries, p.heads, p.spread, 1), k = make(p.keys, p.key_heads, p.spread, 2);
    v = make(p.keys, p.key_heads, 1, 3), dout = make(p.queries, p.heads, 1, 4);
  }
};

void check(const Problem& p, DType dtype, Device device, double limit) {
  Inputs in(p, dtype, device);
  Values want = expected(p, in.q, in.k, in.v, in.dout, 1 / std::sqrt(double(p.size)));
  for (const Tensor& t : {in.q, in.k, in.v}) t.set_requires_grad();
  Tensor out = attention(in.q, in.k, in.v, {.causal = p.causal});
  out.backward(in.dout);
  EXPECT_LE(distance(out.to_vector<double>(), want.out), limit) << device << " " << dtype << " " << p;
  EXPECT_LE(distance(in.q.grad().to_vector<double>(), want.dq), limit) << device << " " << dtype << " " << p;
  EXPECT_LE(distance(in.k.grad().to_vector<double>(), want.dk), limit) << device << " " << dtype << " " << p;
  EXPECT_LE(distance(in.v.grad().to_vector<double>(), want.dv), limit) << device << " " << dtype << " " << p;
}

TEST(Attention, LengthsAroundTileEdges) {
  for (Device device : test_devices())
    for (int64_t queries : {1, 31, 33, 63, 65, 127, 129})
      for (int64_t keys : {int64_t(1), queries, int64_t(65), int64_t(130)})
        for (bool causal : {false, true}) {
          Problem p{.batch = 1, .queries = queries, .keys = keys, .size = 16, .causal = causal};
          check(p, f32, device, 2e-5);
          if (device.is_cuda()) check(p, bf16, device, 3e-2);
        }
}

TEST(Attention, HeadSizesAndGroups) {
  for (Device device : test_devices())
    for (int64_t size : {1, 5, 8, 40, 64, 72, 80, 96, 104, 120, 128, 192})
      for (auto [heads, key_heads] : {std::pair<int64_t, int64_t>(2, 2), {6, 2}, {4, 1}}) {
        Problem p{.batch = 2, .queries = 40, .keys = 40, .heads = heads, .key_heads = key_heads, .size = size};
        check(p, f32, device, 2e-5);
        check(p, bf16, device, 5e-2);
        check(p, f16, device, 1e-2);
      }
}

TEST(Attention, LargeScores) {
  for (Device device : test_devices())
    for (DType dtype : {f32, bf16}) {
      Problem p{.batch = 1, .queries = 70, .keys = 70, .size = 64, .spread = 10};  // scores up to several hundred
      Inputs in(p, dtype, device);
      for (const Tensor& t : {in.q, in.k, in.v}) t.set_requires_grad();
      Tensor out = attention(in.q, in.k, in.v, {.causal = true});
      out.backward(in.dout * 1e-3);
      for (const Tensor& t : {out, in.q.grad(), in.k.grad(), in.v.grad()})
        for (double x : t.to_vector<double>()) ASSERT_TRUE(std::isfinite(x)) << device << dtype;
    }
}

TEST(Attention, QueriesWithoutAKeyGiveZero) {
  for (Device device : test_devices())
    for (DType dtype : {f32, bf16}) {
      Inputs in({.batch = 1, .queries = 6, .keys = 4}, dtype, device);
      for (const Tensor& t : {in.q, in.k, in.v}) t.set_requires_grad();
      Tensor out = attention(in.q, in.k, in.v, {.causal = true});
      out.backward(in.dout);
      for (const Tensor& t : {out, in.q.grad()}) {
        auto head = t.slice(1, 0, 2).to_vector<double>();
        EXPECT_EQ(head, std::vector<double>(head.size(), 0)) << device << dtype;
        EXPECT_NE(t.slice(1, 3, 4).to_vector<double>()[0], 0);
      }
      Inputs none({.batch = 1, .queries = 3, .keys = 0}, dtype, device);
      none.q.set_requires_grad();
      Tensor nothing = attention(none.q, none.k, none.v);
      nothing.backward(none.dout);
      EXPECT_EQ(nothing.to_vector<double>(), std::vector<double>(48, 0));
      EXPECT_EQ(none.q.grad().to_vector<double>(), std::vector<double>(48, 0));
    }
}

// q, k and v as slices of one projection, and output gradients that are not laid out like the output.
TEST(Attention, AnyStrides) {
  for (Device device : test_devices())
    for (DType dtype : {f32, bf16}) {
      Problem p{.batch = 2, .queries = 33, .keys = 33, .heads = 3, .key_heads = 3, .size = 16};
      Inputs in(p, dtype, device);
      Tensor packed = stack({in.q, in.k, in.v}, 2);  // [B, S, 3, H, D]
      for (int kind = 0; kind < 3; ++kind) {
        Tensor dout = kind == 0   ? in.dout.permute({0, 2, 1, 3}).contiguous().permute({0, 2, 1, 3})
                      : kind == 1 ? in.dout.slice(1, 0, 1).slice(3, 0, 1).expand(in.dout.shape())
                                  : in.dout;
        Values want = expected(p, in.q, in.k, in.v, dout, 0.3);
        Tensor leaf = packed.detach().clone().set_requires_grad();
        attention(leaf.select(2, 0), leaf.select(2, 1), leaf.select(2, 2), {.causal = true, .scale = 0.3})
            .backward(dout);
        const double limit = dtype == f32 ? 2e-5 : 3e-2;
        EXPECT_LE(distance(leaf.grad().select(2, 0).to_vector<double>(), want.dq), limit) << device << dtype << kind;
        EXPECT_LE(distance(leaf.grad().select(2, 1).to_vector<double>(), want.dk), limit) << device << dtype << kind;
        EXPECT_LE(distance(leaf.grad().select(2, 2).to_vector<double>(), want.dv), limit) << device << dtype << kind;
      }
      // The same shape in another memory order, right after.
      Tensor turned = in.q.permute({0, 2, 1, 3}).contiguous().permute({0, 2, 1, 3});
      EXPECT_EQ(attention(turned, in.k, in.v).to_vector<double>(), attention(in.q, in.k, in.v).to_vector<double>());
    }
}

TEST(Attention, EngineIsNamedWithItsReason) {
  Tensor q = zeros({1, 2, 4, 64});
  EXPECT_EQ(attention_engine(q, q, q).first, "cpu");
  if (!cuda_available()) return;
  auto on = [&](DType t, int64_t size) {
    Tensor x = zeros({1, 2, 4, size}, t, Device::cuda());
    return attention_engine(x, x, x);
  };
  EXPECT_EQ(on(bf16, 64).first, "cudnn");
  EXPECT_EQ(on(f32, 64).first, "composed");
  EXPECT_THAT(on(bf16, 36).second, HasSubstr("36"));
  EXPECT_THAT(on(bf16, 136).second, HasSubstr("136"));
}

// The gradients of a projection's parts are written beside each other, so that nothing is left to copy.
TEST(Attention, PartsOfOneProjectionNeedNoCopy) {
  struct Names : OpObserver {
    std::vector<std::string> names;
    void on_op(const OpSpec& spec, std::span<const Tensor>, std::span<const Tensor>, const Attrs&) override {
      names.push_back(spec.name);
    }
  };
  for (Device device : test_devices())
    for (DType dtype : {f32, bf16})
      for (const Problem& p : {Problem{.queries = 33, .keys = 33, .heads = 3, .key_heads = 3, .size = 16},
                               Problem{.queries = 17, .keys = 17, .heads = 4, .key_heads = 2, .size = 8},
                               Problem{.batch = 1, .queries = 9, .keys = 9, .heads = 4, .key_heads = 1, .size = 8}}) {
        Inputs in(p, dtype, device);
        auto wide = [&](const Tensor& t) { return t.detach().flatten(2); };
        Tensor leaf = cat({wide(in.q), wide(in.k), wide(in.v)}, 2).set_requires_grad();
        Tensor projection = leaf * 1.0, seen;
        projection.register_hook([&](const Tensor& g) {
          seen = g;
          return Tensor();
        });
        const int64_t queries = p.heads * p.size, keys = p.key_heads * p.size;
        Tensors parts = projection.split(std::vector<int64_t>{queries, keys, keys}, -1);
        for (Tensor& t : parts) t = t.reshape({p.batch, p.queries, -1, p.size});
        Tensor out = attention(parts[0], parts[1], parts[2], {.causal = true});
        Names backward;
        out.backward(in.dout);
        EXPECT_THAT(backward.names, testing::Not(testing::Contains("cat"))) << device << dtype << p;
        EXPECT_TRUE(seen.is_contiguous());
        Values want = expected(p, in.q, in.k, in.v, in.dout, 1 / std::sqrt(double(p.size)));
        const double limit = dtype == f32 ? 2e-5 : 3e-2;
        Tensor dq = seen.narrow(2, 0, queries), dk = seen.narrow(2, queries, keys);
        EXPECT_LE(distance(dq.to_vector<double>(), want.dq), limit) << device << dtype << p;
        EXPECT_LE(distance(dk.to_vector<double>(), want.dk), limit) << device << dtype << p;
        EXPECT_LE(distance(seen.narrow(2, queries + keys, keys).to_vector<double>(), want.dv), limit)
            << device << dtype << p;
      }
}

TEST(Attention, RepeatsBitForBit) {
  for (Device device : test_devices()) {
    Problem p{.batch = 2, .queries = 300, .keys = 300, .heads = 4, .key_heads = 2, .size = 64};
    auto run = [&] {
      Inputs in(p, bf16, device);
      for (const Tensor& t : {in.q, in.k, in.v}) t.set_requires_grad();
      attention(in.q, in.k, in.v, {.causal = true}).backward(in.dout);
      return std::vector<std::vector<float>>{in.q.grad().to_vector<float>(), in.k.grad().to_vector<float>(),
                                             in.v.grad().to_vector<float>()};
    };
    auto first = run();
    for (int i = 0; i < 5; ++i) EXPECT_EQ(run(), first) << device;
  }
}

#ifdef XY_WITH_CUDA
// cuDNN really has kernels for what the models use; a silent fall-back would only show as slowness.
TEST(Attention, CudnnTakesWhatModelsUse) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  for (bool ordered : {true, false})
    for (const Problem& p :
         {Problem{.queries = 256, .keys = 256, .heads = 12, .key_heads = 12, .size = 64},
          Problem{.queries = 128, .keys = 128, .heads = 8, .key_heads = 2, .size = 128},
          Problem{.queries = 197, .keys = 197, .heads = 3, .key_heads = 3, .size = 64, .causal = false},
          Problem{.queries = 17, .keys = 64, .heads = 4, .key_heads = 4, .size = 64}}) {
      set_deterministic(ordered);
      Inputs in(p, bf16, Device::cuda());
      Tensor out = empty_like(in.q), lse = empty({p.batch, p.heads, p.queries}, f32, Device::cuda());
      const double scale = 1 / std::sqrt(double(p.size));
      AttentionCall call{in.q, in.k, in.v, out, lse, p.causal, scale};
      EXPECT_EQ(cuda::cudnn_attention_obstacle(call), "") << p;
      cuda::cudnn_attention(call);
      AttentionGrad g{in.q,     in.k, in.v, out, lse, in.dout, empty_like(in.q), empty_like(in.k), empty_like(in.v),
                      p.causal, scale};
      EXPECT_TRUE(cuda::cudnn_attention_backward(g)) << p << ordered;
      Values want = expected(p, in.q, in.k, in.v, in.dout, scale);
      EXPECT_LE(distance(out.to_vector<double>(), want.out), 3e-2) << p;
      EXPECT_LE(distance(g.dq.to_vector<double>(), want.dq), 3e-2) << p << ordered;
      EXPECT_LE(distance(g.dk.to_vector<double>(), want.dk), 3e-2) << p << ordered;
      EXPECT_LE(distance(g.dv.to_vector<double>(), want.dv), 3e-2) << p << ordered;
    }
  set_deterministic(true);
}
#endif

TEST(Attention, Errors) {
  Tensor q = zeros({1, 2, 4, 8});
  EXPECT_THAT(error_of([&] {
                attention(q, zeros({1, 2, 3, 8}), zeros({1, 2, 3, 8}));
              }),
              AllOf(HasSubstr("4 heads"), HasSubstr("3")));
  EXPECT_THAT(error_of([&] { attention(q, zeros({1, 2, 4, 6}), zeros({1, 2, 4, 6})); }), HasSubstr("[1, 2, 4, 6]"));
  EXPECT_THAT(error_of([&] { attention(q, q, q.to(bf16)); }), HasSubstr("bf16"));
}

TEST(Rotary, TurnsPairsByPositionTimesFrequency) {
  for (Device device : test_devices()) {
    Tensor x = sample_normal({2, 5, 3, 6}).to(f32).to(device), y = rotary(x, 100, 7);
    auto a = x.to_vector<double>(), b = y.to_vector<double>();
    for (int64_t row = 0; row < 2 * 5 * 3; ++row)
      for (int64_t i = 0; i < 3; ++i) {
        const double angle = double(row / 3 % 5 + 7) * std::pow(100.0, -2.0 * double(i) / 6);
        const double u = a[row * 6 + i], w = a[row * 6 + i + 3];
        EXPECT_NEAR(b[row * 6 + i], u * std::cos(angle) - w * std::sin(angle), 1e-5);
        EXPECT_NEAR(b[row * 6 + i + 3], w * std::cos(angle) + u * std::sin(angle), 1e-5);
      }
  }
}

TEST(Rotary, ScoresDependOnDistanceAlone) {
  Tensor q = sample_normal({1, 1, 1, 32}, 1, 1), k = sample_normal({1, 1, 1, 32}, 1, 2);
  auto score = [&](int64_t i, int64_t j) { return sum(rotary(q, 10000, i) * rotary(k, 10000, j)).item(); };
  EXPECT_NEAR(score(3, 1), score(1002, 1000), 1e-9);
  EXPECT_GT(std::abs(score(3, 1) - score(3, 2)), 1e-3);
}

// The table of a first call is used by later ones, whatever positions they need.
TEST(Rotary, PositionsFromAKeptTableAreThoseOfAFreshOne) {
  for (Device device : test_devices()) {
    auto turn = [&](int64_t length, int64_t offset) {
      return rotary(ones({1, length, 1, 24}, f32, device), 777, offset).to_vector<float>();
    };
    auto late = turn(2, 61), first = turn(3, 0), all = turn(300, 0);
    EXPECT_EQ(late, std::vector<float>(all.begin() + 61 * 24, all.begin() + 63 * 24)) << device;
    EXPECT_EQ(first, std::vector<float>(all.begin(), all.begin() + 3 * 24)) << device;
    EXPECT_EQ(turn(2, 61), late) << device;
  }
}

TEST(Rotary, TakesSlicesOfAProjection) {
  for (Device device : test_devices())
    for (DType dtype : {f32, bf16}) {
      Tensor packed = sample_normal({2, 9, 3, 4, 16}).to(dtype).to(device);
      EXPECT_EQ(rotary(packed.select(2, 1)).to_vector<float>(),
                rotary(packed.select(2, 1).contiguous()).to_vector<float>());
    }
}

}  // namespace
}  // namespace xylem
