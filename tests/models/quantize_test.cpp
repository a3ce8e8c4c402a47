// SPDX-License-Identifier: Apache-2.0
#include "models/quantize/quantize.h"

#include <gmock/gmock.h>

#include <cmath>

#include "core/autograd/autograd.h"
#include "core/random/rng.h"
#include "models/nn/sequential.h"
#include "models/optim/optimizers.h"
#include "models/quantize/fake_quantizer.h"
#include "models/zoo/llama.h"
#include "models/zoo/mobilenet.h"
#include "models/zoo/resnet.h"
#include "models/zoo/unet.h"
#include "models/zoo/vit.h"
#include "tests/support.h"

namespace xylem {
namespace {

using quantize::FakeQuantizer;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

Tensor images(const Shape& shape, uint64_t seed = 3) { return sample_normal(shape, 1, seed).to(f32); }

// Gives batch norms the statistics and gains of a trained network, negative and zero gains among them.
void age(Module& model) {
  uint64_t seed = 100;
  for (auto& [name, m] : model.modules())
    if (auto* norm = dynamic_cast<BatchNorm2d*>(m)) {
      norm->running_mean.tensor.copy_(sample_normal(norm->weight.shape(), 0.5, seed++));
      norm->running_var.tensor.copy_(sample_uniform(norm->weight.shape(), 0.2, 3, seed++));
      no_grad([&] {
        norm->weight.copy_(sample_normal(norm->weight.shape(), 1, seed++));
        norm->bias.copy_(sample_normal(norm->weight.shape(), 0.3, seed++));
        norm->weight.narrow(0, 0, 1).fill_(0);
      });
    }
}

double largest_difference(const Tensor& a, const Tensor& b) {
  return abs_max(a.detach().to(f64) - b.detach().to(f64)).item();
}

std::vector<std::string> names(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> all;
  for (const NamedTensor& t : tensors) all.push_back(t.name);
  return all;
}

zoo::ResNet small_resnet() {
  rng::seed(5);
  zoo::ResNet model({.blocks = {1, 1}, .small_images = true, .channels = 3, .classes = 20, .width = 16});
  age(model);
  return model;
}

TEST(FoldBatchNorms, ChangesNothingBeyondRounding) {
  rng::seed(5);
  Tensor x = images({2, 3, 16, 16});
  auto check = [&](auto& model, int norms) {
    age(model);
    model.eval();
    Tensor before = model(x);
    EXPECT_EQ(quantize::fold_batch_norms(model, [&] { model(x); }), norms);
    Tensor after = model(x);
    EXPECT_LT(largest_difference(before, after), 1e-5 * (1 + abs_max(before).item()));
    EXPECT_THAT(names(state_dict(model)), Not(Contains(HasSubstr("running"))));
  };
  zoo::ResNet resnet({.blocks = {1, 1}, .small_images = true, .channels = 3, .classes = 20, .width = 16});
  check(resnet, 6);  // stem, two blocks of two, one shortcut
  zoo::MobileNet mobile({.channels = 3, .width = 8, .blocks = 1, .stages = 2});
  check(mobile, 5);
  zoo::Unet unet({.channels = 3, .width = 8, .depth = 2});
  check(unet, 10);
  Sequential grouped(ConvTranspose2d(3, 12, 3, {.groups = 3}), BatchNorm2d(12), relu,
                     ConvTranspose2d(12, 4, 2, {.bias = false}), BatchNorm2d(4));
  check(grouped, 2);
  Sequential flat([](const Tensor& t) { return t.flatten(1); }, Linear(768, 12), BatchNorm2d(12));
  check(flat, 1);
}

TEST(FoldBatchNorms, LeavesWhatOthersRead) {
  struct Net : Module {
    Conv2d conv{3, 8, 3};
    BatchNorm2d norm{8}, first{3};
    XY_MEMBERS(conv, norm, first)
    Tensor operator()(const Tensor& x) const {
      Tensor y = conv(first(x));
      return norm(y) + y;
    }
  } net;
  age(net);
  net.eval();
  Tensor x = images({1, 3, 6, 6}), before = net(x);
  EXPECT_EQ(quantize::fold_batch_norms(net, [&] { net(x); }), 0);
  EXPECT_EQ(largest_difference(before, net(x)), 0);
}

TEST(Prepare, IsFreeUntilCalibration) {
  auto model = small_resnet();
  model.eval();
  Tensor x = images({2, 3, 16, 16});
  auto before = model(x).to_vector<float>();
  auto parameters = names(model.parameters());
  auto summary = quantize::prepare(model, [&] { model(x); }, {.batch_norms = quantize::BatchNorms::train});
  EXPECT_GT(summary.quantizers, 0);
  EXPECT_EQ(model(x).to_vector<float>(), before);
  EXPECT_EQ(names(model.parameters()), parameters);
  quantize::calibrate(model, [&] { model(x); });
  EXPECT_NE(model(x).to_vector<float>(), before);
  quantize::enable(model, false);
  EXPECT_EQ(model(x).to_vector<float>(), before);
  EXPECT_THAT(error_of([&] { quantize::prepare(model, [&] { model(x); }); }), HasSubstr("has quantizers already"));
}

TEST(Prepare, PlacesQuantizersAsTensorRtWantsThem) {
  auto model = small_resnet();
  Tensor x = images({2, 3, 16, 16});
  auto summary = quantize::prepare(model, [&] { model(x); });
  EXPECT_EQ(summary.folded, 6);
  const zoo::ResNet::Block &plain = model.layer1[0], &down = model.layer2[0];
  for (const Conv2d* conv : std::initializer_list<const Conv2d*>{&model.conv1, &plain.conv1, &plain.conv2, &down.conv1,
                                                                 &down.conv2, &down.downsample->first}) {
    EXPECT_TRUE(conv->input_quantizer);
    EXPECT_TRUE(conv->weight_quantizer);
  }
  EXPECT_TRUE(plain.add.skip_quantizer);
  EXPECT_FALSE(plain.add.branch_quantizer);  // nothing between convolution and sum
  EXPECT_TRUE(model.pool.input_quantizer);
  EXPECT_TRUE(model.fc.weight_quantizer);
  // One quantizer for a tensor that several layers read.
  EXPECT_EQ(plain.conv1.input_quantizer.quantizer, plain.add.skip_quantizer.quantizer);
  EXPECT_EQ(down.conv1.input_quantizer.quantizer, down.downsample->first.input_quantizer.quantizer);
  EXPECT_NE(down.conv1.input_quantizer.quantizer, down.add.skip_quantizer.quantizer);
  auto& weight = dynamic_cast<FakeQuantizer&>(*plain.conv1.weight_quantizer);
  EXPECT_EQ(weight.scale.tensor.shape(), Shape({16}));
  EXPECT_EQ(weight.options().args.low, -127);
  auto& input = dynamic_cast<FakeQuantizer&>(*plain.conv1.input_quantizer);
  EXPECT_EQ(input.scale.tensor.shape(), Shape());
  EXPECT_EQ(input.options().args.low, -128);

  auto other = small_resnet();
  quantize::prepare(other, [&] { other(x); }, {.placement = quantize::Placement::ort});
  EXPECT_TRUE(other.layer1[0].add.branch_quantizer);
}

TEST(Prepare, LeavesSmallAndExcludedLayers) {
  rng::seed(1);
  zoo::MobileNet model({.channels = 3, .width = 16, .blocks = 1, .stages = 2});
  Tensor x = images({2, 3, 16, 16});
  auto summary = quantize::prepare(model, [&] { model(x); }, {.exclude = {"blocks.1.*", "pool"}});
  EXPECT_THAT(summary.layers, ElementsAre("stem", "blocks.0.depthwise", "blocks.0.pointwise"));
  EXPECT_THAT(summary.skipped,
              ElementsAre(Pair("blocks.1.depthwise", "excluded"), Pair("blocks.1.pointwise", "excluded"),
                          Pair("pool", "excluded"), Pair("head", HasSubstr("too small"))));
  EXPECT_FALSE(model.head.input_quantizer);

  rng::seed(1);
  zoo::MobileNet all({.channels = 3, .width = 4, .blocks = 1, .stages = 2});
  EXPECT_EQ(quantize::prepare(all, [&] { all(x); }, {.small_layers = true}).skipped.size(), 0u);
  EXPECT_TRUE(all.head.weight_quantizer);
}

TEST(Prepare, RefusesFormatsThatDoNotGoTogether) {
  Sequential model(Linear(32, 32));
  auto run = [&] { model(ones({2, 32})); };
  EXPECT_THAT(error_of([&] { quantize::prepare(model, run, {.weights = QuantFormat::int4}); }),
              HasSubstr("int4 is for weights alone"));
  EXPECT_THAT(error_of([&] { quantize::prepare(model, run, {.weights = QuantFormat::fp8}); }),
              HasSubstr("do not go together"));
  EXPECT_THAT(error_of([&] { quantize::calibrate(model, run); }), HasSubstr("no quantizers"));
}

// The layer's arithmetic, from the scales that calibration found: whole numbers times scales.
TEST(Calibrate, AQuantizedConvolutionIsOneOfWholeNumbers) {
  rng::seed(9);
  Sequential model(Conv2d(4, 8, 3));
  auto& conv = dynamic_cast<Conv2d&>(*model[0]);
  no_grad([&] { conv.weight.narrow(0, 2, 1).fill_(0); });  // a dead channel
  Tensor x = images({2, 4, 9, 9});
  auto run = [&] { model(x); };
  quantize::prepare(model, run, {.small_layers = true});
  quantize::calibrate(model, run);
  quantize::freeze(model);
  auto& in = dynamic_cast<FakeQuantizer&>(*conv.input_quantizer);
  auto& weight = dynamic_cast<FakeQuantizer&>(*conv.weight_quantizer);
  double s = in.scale.tensor.item();
  EXPECT_NEAR(s, abs_max(x).item() / 127, 1e-3 * s);
  EXPECT_EQ(s, full({}, s).to(f16).to(f64).item());
  auto ws = weight.scale.tensor.to_vector<double>();
  auto tops = abs_max(conv.weight, 0).to_vector<double>();
  for (size_t k = 0; k < 8; ++k) {
    EXPECT_NEAR(ws[k], k == 2 ? 1 : tops[k] / 127, 1e-3 * ws[k]);
    EXPECT_EQ(ws[k], full({}, ws[k]).to(f16).to(f64).item());
  }
  auto integers = [](const Tensor& t, const std::vector<double>& scales, int64_t per, double low) {
    auto v = t.to_vector<float>();
    std::vector<double> q(v.size());
    for (size_t i = 0; i < v.size(); ++i)
      q[i] = std::clamp(std::nearbyint(v[i] / float(scales[i / size_t(per) % scales.size()])), float(low), 127.f);
    return from_vector(q, t.shape());
  };
  Tensor qx = integers(x, {s}, 1, -128), qw = integers(conv.weight, ws, 36, -127);
  EXPECT_EQ(abs_max(qw).item(), 127);
  Tensor sums = conv2d(qx, qw);  // exact in f64
  Tensor want = sums * (from_vector(ws, {8, 1, 1}) * s) + conv.bias.detach().to(f64).reshape({8, 1, 1});
  EXPECT_LT(largest_difference(model(x), want), 1e-5 * abs_max(want).item());
}

TEST(Calibrate, ObserversAgreeWithTheirDefinition) {
  Tensor x = sample_normal({64, 512}, 1, 21).to(f32), y = sample_normal({64, 512}, 1.5, 22).to(f32);
  auto threshold = [&](quantize::Observer observer, double percentile = 99.9) {
    struct Net : Module {
      MatMul product;
      XY_MEMBERS(product)
    } net;
    Tensor w = sample_normal({512, 16}).to(f32);
    auto run = [&] { net.product(x, w); };
    quantize::prepare(net, run, {.observer = observer, .percentile = percentile, .momentum = 0.25});
    quantize::calibrate(net, [&] { net.product(x, w), net.product(y, w); });
    return dynamic_cast<FakeQuantizer&>(*net.product.a_quantizer).amax.tensor.item();
  };
  double a = abs_max(x).item(), b = abs_max(y).item();
  EXPECT_EQ(threshold(quantize::Observer::minmax), std::max(a, b));
  EXPECT_NEAR(threshold(quantize::Observer::moving_average), 0.75 * a + 0.25 * b, 1e-5);

  std::vector<double> all;
  for (const Tensor& t : {x, y})
    for (double v : t.to_vector<double>()) all.push_back(std::abs(v));
  std::sort(all.begin(), all.end());
  double width = 8.0 / 2048;  // the largest value lies in (4, 8)
  EXPECT_NEAR(threshold(quantize::Observer::percentile, 99.9), all[size_t(0.999 * double(all.size()))], 2 * width);
  EXPECT_NEAR(threshold(quantize::Observer::percentile, 90), all[size_t(0.9 * double(all.size()))], 2 * width);

  auto error_at = [&](double t) {
    double scale = t / 127, error = 0;
    for (double v : all) {
      double d = v - std::min(std::nearbyint(v / scale), 127.0) * scale;
      error += d * d;
    }
    return error;
  };
  double best = INFINITY;
  for (double t = 0.01 * all.back(); t <= all.back(); t += 0.002 * all.back()) best = std::min(best, error_at(t));
  double mse = threshold(quantize::Observer::mse);
  EXPECT_LT(error_at(mse), 1.02 * best);
  double entropy = threshold(quantize::Observer::entropy);
  EXPECT_GT(entropy, all[size_t(0.99 * double(all.size()))]);
  EXPECT_LE(entropy, all.back() + width);
}

TEST(Histogram, DoublesItsRangeWithoutLosingCounts) {
  quantize::Histogram in_order, backwards, whole;
  std::vector<Tensor> parts;
  for (int i = 0; i < 5; ++i) parts.push_back(sample_normal({300}, std::ldexp(1.0, i), uint64_t(i + 1)).to(f32));
  for (int i = 0; i < 5; ++i) in_order.add(parts[size_t(i)]), backwards.add(parts[size_t(4 - i)]);
  whole.add(cat(parts));
  EXPECT_EQ(in_order.counts(), whole.counts());
  EXPECT_EQ(backwards.counts(), whole.counts());
  EXPECT_EQ(whole.total(), 1500);
  quantize::Histogram left, right;
  left.add(parts[0]), right.add(cat({parts[1], parts[2], parts[3], parts[4]}));
  left.add(right);
  EXPECT_EQ(left.counts(), whole.counts());
  EXPECT_EQ(left.exponent(), whole.exponent());
  EXPECT_THAT(error_of([&] { left.add(full({3}, INFINITY)); }), HasSubstr("not finite"));
}

// A two-sided exponential clips far below its largest value; a uniform distribution does not clip at all.
TEST(Histogram, EntropyClipsLongTailsOnly) {
  std::vector<float> tail, flat;
  for (int i = 0; i < 200000; ++i) {
    double u = (i + 0.5) / 200000;
    tail.push_back(float(-std::log(u)));
    flat.push_back(float(u));
  }
  quantize::Histogram h, even;
  h.add(from_vector(tail, {200000})), even.add(from_vector(flat, {200000}));
  double top = *std::max_element(tail.begin(), tail.end());
  EXPECT_LT(quantize::entropy_threshold(h), 0.9 * top);
  EXPECT_GT(quantize::entropy_threshold(h), 0.3 * top);
  EXPECT_GT(quantize::entropy_threshold(even), 0.98);
  EXPECT_LT(quantize::mse_threshold(h, QuantFormat::int8), top);
  EXPECT_EQ(quantize::percentile_threshold(quantize::Histogram(), 99), 0);
}

TEST(Quantized, StateDictRestoresTheModel) {
  Tensor x = images({4, 3, 16, 16});
  auto a = small_resnet();
  auto prepare = [&](zoo::ResNet& m) { quantize::prepare(m, [&] { m(x); }, {.learned = true}); };
  prepare(a);
  quantize::calibrate(a, [&] { a(x); });
  quantize::freeze(a);
  a.eval();
  rng::seed(77);
  zoo::ResNet b({.blocks = {1, 1}, .small_images = true, .channels = 3, .classes = 20, .width = 16});
  prepare(b);
  load_state_dict(b, state_dict(a));
  quantize::restore(b, true);
  b.eval();
  EXPECT_EQ(a(x).to_vector<float>(), b(x).to_vector<float>());
  EXPECT_THAT(names(state_dict(a)), Contains("layer1.0.conv1.input_quantizer.scale"));
  EXPECT_THAT(names(state_dict(a)), Contains("layer1.0.conv1.weight_quantizer.log_scale"));
}

TEST(Quantized, SixteenBitModelsKeepTheirScales) {
  auto model = small_resnet();
  Tensor x = images({2, 3, 16, 16});
  quantize::prepare(model, [&] { model(x); });
  model.to(bf16);
  model.eval();
  Tensor exact = model(x);
  quantize::calibrate(model, [&] { model(x); });
  Tensor y = model(x);
  EXPECT_EQ(y.dtype(), bf16);
  EXPECT_EQ(dynamic_cast<FakeQuantizer&>(*model.conv1.weight_quantizer).scale.tensor.dtype(), f32);
  EXPECT_LT(largest_difference(y, exact), 0.2 * abs_max(exact).item());
}

// Gradients reach weights and learned scales; the frozen scale is the learned one.
TEST(Quantized, TrainsWeightsAndScales) {
  for (bool learned : {false, true}) {
    rng::seed(4);
    Sequential model(Linear(32, 64), relu, Linear(64, 16));
    Tensor x = sample_normal({64, 32}, 1, 5).to(f32), target = sample_normal({64, 16}, 1, 6).to(f32);
    quantize::prepare(model, [&] { model(x); }, {.learned = learned});
    quantize::calibrate(model, [&] { model(x); });
    auto& first = dynamic_cast<Linear&>(*model[0]);
    auto& q = dynamic_cast<FakeQuantizer&>(*first.weight_quantizer);
    auto scale_before = q.scale.tensor.to_vector<double>();
    AdamW optimizer(model, {.lr = 1e-2});
    double begin = 0, end = 0;
    for (int step = 0; step < 60; ++step) {
      optimizer.zero_grad();
      Tensor loss = mse_loss(model(x), target);
      loss.backward();
      for (const NamedTensor& p : model.parameters()) ASSERT_FALSE(p.tensor.grad_stale()) << p.name;
      optimizer.step();
      (step == 0 ? begin : end) = loss.item();
    }
    EXPECT_LT(end, 0.7 * begin);
    EXPECT_EQ(q.log_scale.defined(), learned);
    model.eval();
    Tensor before = model(x);
    quantize::freeze(model);
    EXPECT_LT(largest_difference(before, model(x)), 2e-2 * abs_max(before).item());
    EXPECT_NE(q.scale.tensor.to_vector<double>(), scale_before);
    if (learned) {
      EXPECT_LT(largest_difference(q.scale, exp(q.log_scale)), 1e-3 * abs_max(q.scale).item());
    } else {
      EXPECT_LT(largest_difference(q.scale.tensor * 127, abs_max(first.weight, 0)),
                1e-3 * abs_max(first.weight).item());
    }
  }
}

TEST(Quantized, Int4AndFp8WeightsAlone) {
  rng::seed(4);
  auto check = [&](QuantFormat format, const Shape& scales, double worst) {
    Sequential model(Linear(96, 24));
    auto& layer = dynamic_cast<Linear&>(*model[0]);
    Tensor x = sample_normal({8, 96}, 1, 5).to(f32), exact = model(x);
    auto run = [&] { model(x); };
    quantize::prepare(model, run, {.weights = format, .activations = {}});
    EXPECT_FALSE(layer.input_quantizer);
    quantize::calibrate(model, run);
    quantize::freeze(model);
    auto& q = dynamic_cast<FakeQuantizer&>(*layer.weight_quantizer);
    EXPECT_EQ(q.scale.tensor.shape(), scales);
    double error = largest_difference(model(x), exact) / abs_max(exact).item();
    EXPECT_LT(error, worst);
    EXPECT_GT(error, 1e-4);
    return q.options().args.block;
  };
  EXPECT_EQ(check(QuantFormat::int4, {24, 3}, 0.25), 32);  // 128 and 64 do not divide 96
  check(QuantFormat::fp8, {24}, 0.1);
  check(QuantFormat::int8, {24}, 0.02);
}

TEST(Quantized, AttentionProductByProductEqualsTheFusedOne) {
  Tensor q = images({2, 5, 4, 16}, 1), k = images({2, 9, 2, 16}, 2), v = images({2, 9, 2, 16}, 3);
  for (bool causal : {false, true}) {
    AttentionProducts products;
    Tensor fused = products(q, k, v, {.causal = causal});
    struct Nothing : Quantizer {
      Tensor operator()(const Tensor& x) const override { return x; }
    };
    products.p_quantizer = {std::make_shared<Nothing>()};
    EXPECT_LT(largest_difference(products(q, k, v, {.causal = causal}), fused), 1e-5);
  }
}

TEST(Quantized, TransformersWithTheirAttention) {
  rng::seed(4);
  zoo::Vit vit({.image = 16, .patch = 4, .classes = 16, .layers = 1, .heads = 2, .width = 32});
  zoo::Llama llama({.vocab = 40, .context = 16, .layers = 1, .heads = 4, .kv_heads = 2, .width = 64, .hidden = 96});
  Tensor x = images({2, 3, 16, 16}), tokens = sample_index({2, 12}, 40);
  auto check = [&](auto& model, const Tensor& in, AttentionProducts& products) {
    model.eval();
    Tensor exact = model(in);
    auto run = [&] { model(in); };
    quantize::prepare(model, run, {.attention = true});
    EXPECT_TRUE(products.p_quantizer);
    quantize::calibrate(model, run);
    EXPECT_NEAR(dynamic_cast<FakeQuantizer&>(*products.p_quantizer).scale.tensor.item(), 1.0 / 127, 1e-5);
    double error = largest_difference(model(in), exact) / abs_max(exact).item();
    EXPECT_LT(error, 0.1);
    EXPECT_GT(error, 0);
  };
  check(vit, x, vit.blocks[0].attn.products);
  check(llama, tokens, llama.model.layers[0].self_attn.products);
  const auto& attn = llama.model.layers[0].self_attn;
  EXPECT_EQ(attn.q_proj.input_quantizer.quantizer, attn.v_proj.input_quantizer.quantizer);
}

TEST(Sensitivity, FindsTheLayerThatCosts) {
  rng::seed(4);
  Sequential model(Linear(32, 32), Linear(32, 32), Linear(32, 32));
  auto &first = dynamic_cast<Linear&>(*model[0]), &bad = dynamic_cast<Linear&>(*model[1]);
  no_grad([&] {  // large weights of an input that is always 0 leave few steps for the others
    first.weight.narrow(0, 0, 1).fill_(0);
    first.bias.narrow(0, 0, 1).fill_(0);
    bad.weight.narrow(1, 0, 1).fill_(20);
  });
  Tensor x = sample_normal({64, 32}, 1, 5).to(f32), exact = model(x);
  auto run = [&] { model(x); };
  quantize::prepare(model, run, {.exclude = {"2"}});
  quantize::calibrate(model, run);
  auto metric = [&] { return -mse_loss(model(x), exact).item(); };
  auto report = quantize::sensitivity(model, metric);
  ASSERT_EQ(report.layers.size(), 2u);
  EXPECT_EQ(report.float_metric, 0);
  EXPECT_EQ(report.layers[0].layer, "1");
  EXPECT_GT(report.layers[0].drop, 2 * report.layers[1].drop);
  EXPECT_TRUE(report.excluded.empty());
  EXPECT_LT(report.quantized_metric, 0);

  auto kept = quantize::sensitivity(model, metric, 2 * report.layers[1].drop);
  EXPECT_THAT(kept.excluded, ElementsAre("1"));
  EXPECT_FALSE(bad.weight_quantizer.on);
  EXPECT_DOUBLE_EQ(metric(), kept.final_metric);
  EXPECT_THAT(kept.table(), HasSubstr("excluded"));
  EXPECT_THAT(kept.json(), HasSubstr("\"excluded\": [\n    \"1\"\n  ]"));
}

}  // namespace
}  // namespace xylem
