// SPDX-License-Identifier: Apache-2.0
// What layers read and give, and what an export in mixed precision makes of it.
#include "models/nn/ranges.h"

#include <gmock/gmock.h>

#include "models/nn/layers.h"
#include "models/quantize/quantize.h"
#include "models/zoo/zoo.h"
#include "tests/models/export_helpers.h"

namespace xylem {
namespace {

using export_tests::distance;
using export_tests::run_onnx;
using export_tests::temporary;
using testing::Contains;
using testing::HasSubstr;

// Adds what grows to what it was made of, as the blocks of a transformer do.
struct Residual : Module {
  Linear grow{16, 16}, head{16, 4};
  LayerNorm norm{16};
  XY_MEMBERS(grow, head, norm)
  Tensor operator()(const Tensor& x) { return head(norm(x + relu(grow(x)))); }
};

double largest(const Tensor& t) {
  double top = 0;
  for (double v : t.to_vector<double>()) top = std::max(top, std::abs(v));
  return top;
}
void scale(const Tensor& weight, double factor) {
  NoGrad guard;
  weight.detach().copy_(weight * factor);
}

TEST(Ranges, AreWhatLayersReadAndGive) {
  Residual model;
  NoGrad guard;
  Tensor a = sample_normal({5, 16}).to(f32), b = a * -3;
  RangeObserver observer(model);
  model(a), model(b);
  LayerRanges seen = observer.ranges();
  EXPECT_EQ(seen.size(), 6u);
  Tensor grown = cat({model.grow(a), model.grow(b)}, 0), x = cat({a, b}, 0);
  EXPECT_FLOAT_EQ(seen.at("grow:input"), largest(b));
  EXPECT_FLOAT_EQ(seen.at("grow"), largest(grown));
  EXPECT_FLOAT_EQ(seen.at("norm:input"), largest(x + relu(grown)));
  EXPECT_FLOAT_EQ(seen.at("head:input"), seen.at("norm"));
  EXPECT_FLOAT_EQ(seen.at("head"), largest(model.head(model.norm(x + relu(grown)))));

  std::map<std::string, std::string> extra{{"samples", "16"}};
  put_ranges(seen, extra);
  LayerRanges again = ranges_in(extra);
  ASSERT_EQ(again.size(), seen.size());
  for (auto& [key, value] : seen) EXPECT_NEAR(again.at(key), value, 1e-5 * value) << key;
}

TEST(Ranges, QuantizedWeightsAreNoActivations) {
  auto model = zoo::create("mlp", {{"in", 32}, {"hidden", 32}, {"layers", 1}, {"classes", 16}});
  Tensor x = sample_normal({8, 32}).to(f32);
  auto run = [&] { no_grad([&] { return (*model)(x); }); };
  quantize::prepare(*model, run);
  quantize::calibrate(*model, run);
  for (const NamedTensor& p : model->parameters())
    if (p.name == "layers.0.weight") scale(p.tensor, 100);
  model->eval();
  RangeObserver observer(*model);
  run();
  LayerRanges seen = observer.ranges();
  EXPECT_NEAR(seen.at("layers.0:input"), largest(x), largest(x) / 100);  // as it is quantized
  EXPECT_GT(seen.at("layers.0"), 100);
}

#ifdef XY_WITH_ONNX
// The sum of a block exceeds what fp16 holds, though all layers before it are small: the ranges that were seen keep it,
// and what reads it, in fp32.
TEST(Ranges, MixedPrecisionKeepsWhatWasSeenToBeLarge) {
  XY_NEEDS_ORT();
  Residual model;
  model.eval();
  scale(model.grow.weight, 400000);
  Tensor x = sample_normal({4, 16}).to(f32);
  Tensor want = no_grad([&] { return model(x); });
  RangeObserver observer(model);
  no_grad([&] { return model(x); });
  ExportOptions options{.profile = Profile::trt10, .activation_amax = observer.ranges()};
  ASSERT_GT(options.activation_amax.at("norm:input"), 65504);
  const std::string file = temporary("ranges.onnx");
  auto write = [&] {
    return export_onnx(
        model, [&](const Tensors& in) -> Tensors { return {model(in[0])}; }, {{"x", x, {{0, "batch"}}}}, file, options);
  };
  ExportReport report = write();
  EXPECT_EQ(report.precision, ExportPrecision::mixed);
  EXPECT_LE(distance(run_onnx(file, {x})[0], want, 5e-3), 1e-2);
  exporting::OnnxGraph g = exporting::read_graph(file);
  EXPECT_TRUE(g.initializers.contains("grow.weight"));  // f32
  EXPECT_TRUE(g.initializers.contains("head.weight_fp16"));
  const std::string sum =
      std::find_if(g.nodes.begin(), g.nodes.end(), [](auto& n) { return n.op == "Add"; })->outputs[0];
  EXPECT_EQ(g.type_of(sum), exporting::type::float32);
  EXPECT_NEAR(std::stod(g.metadata.at("xylem.amax." + sum)), options.activation_amax.at("norm:input"), 1);
  EXPECT_THAT(report.notes, Contains(HasSubstr("stays in float32")));

  options.activation_amax.clear();
  write();
  EXPECT_EQ(exporting::read_graph(file).type_of(sum), exporting::type::float16);
}
#endif

}  // namespace
}  // namespace xylem
