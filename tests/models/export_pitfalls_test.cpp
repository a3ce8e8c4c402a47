// SPDX-License-Identifier: Apache-2.0
// Quantized models from quantize::prepare() to the file, against what has gone wrong elsewhere. The numbers are those
// of the issues in which it was reported.
#ifdef XY_WITH_ONNX
#include <gmock/gmock.h>

#include <set>

#include "core/random/rng.h"
#include "models/export/import/import.h"
#include "models/export/lint/lint.h"
#include "models/nn/layers.h"
#include "models/quantize/quantize.h"
#include "models/zoo/zoo.h"
#include "tests/models/export_helpers.h"

namespace xylem {
namespace {

using namespace export_tests;
using exporting::GraphNode;
using exporting::OnnxGraph;
namespace type = exporting::type;

constexpr Profile kProfiles[] = {Profile::exact, Profile::trt8, Profile::trt10, Profile::trt11, Profile::ort_cpu};
constexpr Profile kForms[] = {Profile::trt8, Profile::trt10, Profile::ort_cpu};  // one of each form

struct Written {
  std::string file;
  ExportReport report;
  OnnxGraph graph;
};

// A model of the zoo in the state of a trained one that was calibrated for `profile`.
struct Prepared {
  std::unique_ptr<ZooModel> model;
  Tensor x;
  Profile profile;

  Prepared(const std::string& name, const zoo::Options& options, const Tensor& x, Profile profile,
           const std::function<void(Module&)>& before = {})
      : x(x), profile(profile) {
    rng::seed(11);
    model = zoo::create(name, options);
    uint64_t seed = 40;
    for (const NamedTensor& t : state_dict(*model)) {  // statistics and gains other than those of a new model
      NoGrad guard;
      if (t.name.ends_with("running_var"))
        t.tensor.detach().add_(sample_uniform(t.tensor.shape(), -0.5, 2, ++seed).to(f32));
      if (t.name.ends_with("running_mean"))
        t.tensor.detach().add_(sample_normal(t.tensor.shape(), 0.2, ++seed).to(f32));
    }
    if (before) before(*model);
    model->eval();
    auto run = [&] { (*model)(this->x); };
    const auto placement = profile == Profile::ort_cpu ? quantize::Placement::ort : quantize::Placement::trt;
    quantize::prepare(*model, run, {.placement = placement, .small_layers = true});
    quantize::calibrate(*model, run);
  }
  Written write(ExportPrecision precision = ExportPrecision::fp32) {
    quantize::freeze(*model);
    const std::string file = temporary(std::string("pitfall_") + name_of(profile) + ".onnx");
    ExportReport report = export_onnx(
        *model, {{"x", x, {{0, "batch"}}}}, file,
        {.profile = profile, .precision = precision, .ranges = {{"batch", {.min = 1, .opt = 2, .max = 4}}}});
    return {file, report, exporting::read_graph(file)};
  }
};
Prepared resnet(Profile profile, const std::function<void(Module&)>& before = {}) {
  return {"resnet_small", {{"width", int64_t(16)}, {"stages", int64_t(2)}}, floats({4, 1, 12, 12}, 3), profile, before};
}
Prepared unet(Profile profile) {
  return {"unet", {{"width", int64_t(16)}, {"depth", int64_t(1)}}, floats({2, 3, 8, 8}, 3), profile};
}

std::string target_of(Profile p) {
  return p == Profile::trt8 ? "trt8.6" : p == Profile::trt10 ? "trt10.9" : p == Profile::trt11 ? "trt11.0" : "ort-cpu";
}
std::vector<std::string> findings(const Written& w, Profile p, const std::set<std::string>& ids) {
  std::vector<std::string> out;
  for (const LintFinding& f : lint_onnx(w.file, target_of(p)).findings)
    if (ids.contains(f.id)) out.push_back(f.id + " " + f.node + ": " + f.message);
  return out;
}
using testing::IsEmpty;

const GraphNode* maker(const OnnxGraph& g, const std::string& tensor) { return g.producer(tensor); }
bool made_by(const OnnxGraph& g, const std::string& tensor, const char* op) {
  const GraphNode* n = maker(g, tensor);
  return n && n->op == op;
}

// onnx-tensorrt#764, TensorRT#2664: a filter that is all zero, in training too; every scale of every profile is a
// positive number.
TEST(ExportPitfalls, AZeroFilterTrainsAndLeavesNoScaleThatIsNotPositive) {
  XY_NEEDS_ORT();
  for (Profile profile : kProfiles) {
    SCOPED_TRACE(name_of(profile));
    Prepared p = resnet(profile, [](Module& m) {
      for (const NamedTensor& t : m.parameters())
        if (t.name == "layer1.0.conv1.weight" || t.name == "layer2.0.bn1.weight")
          t.tensor.detach().narrow(0, 2, 1).zero_();
    });
    p.model->train();
    p.model->loss(p.x, sample_index({4}, 10)).backward();
    for (const NamedTensor& t : p.model->parameters()) {
      ASSERT_TRUE(t.tensor.grad().defined()) << t.name;
      EXPECT_TRUE(std::isfinite(sum(t.tensor.grad()).item())) << t.name;
    }
    p.model->eval();
    Written w = p.write(ExportPrecision::automatic);
    int scales = 0;
    for (const GraphNode& n : w.graph.nodes) {
      if (n.op != "QuantizeLinear" && n.op != "DequantizeLinear") continue;
      const auto& scale = w.graph.initializers.at(n.inputs[1]);
      if (profile == Profile::exact || profile == Profile::trt8 || profile == Profile::ort_cpu) {
        EXPECT_EQ(scale.type, type::float32);
      }
      for (double s : scale.data.to_vector<double>()) {
        EXPECT_TRUE(std::isfinite(s) && s > 0) << n.name << ": " << s;
        ++scales;
      }
    }
    EXPECT_GT(scales, 100);
    EXPECT_THAT(findings(w, profile, {"Q1", "Q2", "Q3", "Q4", "Q9"}), IsEmpty());
    Tensor expected = no_grad([&] { return (*p.model)(p.x); });
    EXPECT_LE(distance(run_onnx(w.file, {p.x})[0], expected), 2e-2);
  }
}

// TensorRT#1992: the addition of every residual block. For TensorRT the skip branch alone is quantized, and nothing
// stands between the convolution and the sum; ONNX Runtime wants both.
TEST(ExportPitfalls, EveryResidualAdditionIsQuantizedAsItsRuntimeFusesIt) {
  for (Profile profile : kForms) {
    SCOPED_TRACE(name_of(profile));
    Written w = resnet(profile).write();
    int blocks = 0;
    for (const GraphNode& n : w.graph.nodes) {
      if (n.op != "Add" || w.graph.is_initializer(n.inputs[0]) || w.graph.is_initializer(n.inputs[1])) continue;
      ++blocks;
      const int quantized =
          made_by(w.graph, n.inputs[0], "DequantizeLinear") + made_by(w.graph, n.inputs[1], "DequantizeLinear");
      const int convolutions = made_by(w.graph, n.inputs[0], "Conv") + made_by(w.graph, n.inputs[1], "Conv");
      EXPECT_EQ(quantized, profile == Profile::ort_cpu ? 2 : 1) << n.name;
      EXPECT_EQ(convolutions, profile == Profile::ort_cpu ? 0 : 1) << n.name;
    }
    EXPECT_EQ(blocks, 2);
    EXPECT_THAT(findings(w, profile, {"Q5", "Q8"}), IsEmpty());
  }
}

// TensorRT#4412, #3197, #2204: no layer in floating point between integer ones, and few conversions.
TEST(ExportPitfalls, NoLayerOfAQuantizedNetworkIsAnIsland) {
  for (Profile profile : kForms) {
    SCOPED_TRACE(name_of(profile));
    Written w = resnet(profile).write();
    for (const GraphNode& n : w.graph.nodes)
      if (n.op == "Conv" || n.op == "Gemm") {
        EXPECT_TRUE(made_by(w.graph, n.inputs[0], "DequantizeLinear")) << n.name;
        EXPECT_TRUE(made_by(w.graph, n.inputs[1], "DequantizeLinear")) << n.name;
      }
    LintReport report = lint_onnx(w.file, target_of(profile));
    EXPECT_EQ(report.totals.at("macs_int8_percent"), 100);
    EXPECT_EQ(report.totals.at("conversions"), 0) << report.text();
    for (const std::string& f : findings(w, profile, {"Q6"})) EXPECT_NE(f.find("too small"), std::string::npos) << f;
  }
}

// TensorRT#4366: a quantizer that is hoisted over a Concat must be one for all its inputs. TensorRT#2380, #1694, #1699:
// runtimes disagree on the axis of a transposed convolution's scales, so that it has one.
TEST(ExportPitfalls, ConcatsShareAScaleAndTransposedConvolutionsHaveOne) {
  XY_NEEDS_ORT();
  for (Profile profile : kForms) {
    SCOPED_TRACE(name_of(profile));
    Prepared p = unet(profile);
    Written w = p.write();
    int concats = 0, transposed = 0;
    for (const GraphNode& n : w.graph.nodes) {
      if (n.op == "Concat") {
        ++concats;
        std::set<double> scales;
        for (const std::string& in : n.inputs)
          if (const GraphNode* dq = maker(w.graph, in); dq && dq->op == "DequantizeLinear")
            scales.insert(w.graph.initializers.at(dq->inputs[1]).data.to(f64).item());
        EXPECT_LE(scales.size(), 1u);
        for (const GraphNode& reader : w.graph.nodes)
          if (std::find(reader.inputs.begin(), reader.inputs.end(), n.outputs[0]) != reader.inputs.end()) {
            EXPECT_EQ(reader.op, "QuantizeLinear");
          }
      }
      if (n.op != "ConvTranspose") continue;
      ++transposed;
      const GraphNode* dq = maker(w.graph, n.inputs[1]);
      ASSERT_TRUE(dq && dq->op == "DequantizeLinear");
      EXPECT_TRUE(w.graph.initializers.at(dq->inputs[1]).dims.empty()) << "a scale per channel";
    }
    EXPECT_EQ(concats, 1);
    EXPECT_EQ(transposed, 1);
    EXPECT_THAT(findings(w, profile, {"Q4", "Q10"}), IsEmpty());
    EXPECT_LE(distance(run_onnx(w.file, {p.x})[0], no_grad([&] { return (*p.model)(p.x); })), 2e-2);
  }
}

// onnxruntime#19694: who asks for a scale per output channel of a transposed convolution gets axis 1, which ONNX
// Runtime takes, optimized or not.
TEST(ExportPitfalls, AScalePerOutputOfATransposedConvolutionIsAlongAxis1) {
  XY_NEEDS_ORT();
  struct Up : Module {
    ConvTranspose2d up{4, 6, 2, {.stride = 2}};
    XY_MEMBERS(up)
  } up;
  Tensor scale = abs_max(up.up.weight.detach(), 1).reshape({6}) * (1.0 / 127);
  auto forward = [&](const Tensors& in) -> Tensors {
    Tensor w = fake_quantize(up.up.weight, scale, {.axis = 1, .low = -127});
    return {conv_transpose2d(fake_quantize(in[0], full({1}, 0.03)), w, up.up.bias, up.up.args)};
  };
  const std::string file = temporary("per_channel_up.onnx");
  export_onnx(up, forward, {{"x", floats({2, 4, 3, 3}), {{0, "batch"}}}}, file, {.profile = Profile::ort_cpu});
  Tensor x = floats({3, 4, 3, 3}, 4), expected = no_grad([&] { return forward({x})[0]; });
  EXPECT_LE(distance(run_onnx(file, {x})[0], expected), 1e-5);
  EXPECT_LE(distance(run_onnx(file, {x}, true)[0], expected), 1e-2);
  for (const GraphNode& n : exporting::read_graph(file).nodes)
    if (n.op == "DequantizeLinear" && n.find("axis")) {
      EXPECT_EQ(std::get<int64_t>(*n.find("axis")), 1);
    }
}

// TensorRT#3104, onnxsim#297: a batch norm before a convolution cannot be folded; the export and the lint say so.
TEST(ExportPitfalls, ABatchNormBeforeItsConvolutionIsReported) {
  struct Before : Module {
    BatchNorm2d bn{4};
    Conv2d conv{4, 8, 3};
    XY_MEMBERS(bn, conv)
    Tensor operator()(const Tensor& x) const { return conv(bn(x)); }
  } net;
  const std::string file = temporary("before.onnx");
  ExportReport report = export_onnx(net, {{"x", floats({2, 4, 5, 5})}}, file);
  EXPECT_THAT(report.notes, testing::Contains(testing::HasSubstr("'bn' was not folded")));
  LintReport lint = lint_onnx(file, "trt8.6");
  EXPECT_THAT(lint.text(), testing::HasSubstr("Q7"));
  EXPECT_THAT(lint.text(), testing::HasSubstr("does not follow a convolution"));
}

// TensorRT#4698, onnxruntime#12072: pairs of QuantizeLinear and DequantizeLinear and nothing else. pytorch#167063:
// weights within [-127, 127], scales that are constants. pytorch#123628: in one byte each, the bias in floating point.
TEST(ExportPitfalls, WeightsAreOneByteInANarrowRangeBetweenPairsAlone) {
  for (Profile profile : kForms) {
    SCOPED_TRACE(name_of(profile));
    Written w = resnet(profile).write(ExportPrecision::automatic);
    const bool in_float = profile == Profile::exact || profile == Profile::trt8;
    int64_t weights = 0, bytes = 0;
    for (const GraphNode& n : w.graph.nodes) {
      for (const char* banned : {"Dynamic", "QLinear", "Integer"})
        EXPECT_EQ(n.op.find(banned), std::string::npos) << n.op;
      if (n.op != "Conv" && n.op != "Gemm") continue;
      if (n.inputs.size() > 2) {
        EXPECT_TRUE(w.graph.is_initializer(n.inputs[2])) << n.name;
        EXPECT_TRUE(is_onnx_float(w.graph.type_of(n.inputs[2]))) << n.name;
      }
      const GraphNode* dq = maker(w.graph, n.inputs[1]);
      std::string stored = dq->inputs[0];
      if (in_float) stored = maker(w.graph, stored)->inputs[0];
      const auto& t = w.graph.initializers.at(stored);
      EXPECT_EQ(t.type, in_float ? type::float32 : type::int8) << stored;
      weights += t.data.numel(), bytes += int64_t(t.data.nbytes());
      const std::vector<double> v = t.data.to_vector<double>(),
                                s = w.graph.initializers.at(dq->inputs[1]).data.to_vector<double>();
      const size_t row = v.size() / size_t(t.dims[0]);
      for (size_t i = 0; i < v.size(); ++i)
        EXPECT_LE(std::abs(std::nearbyint(in_float ? v[i] / s[i / row] : v[i])), 127) << stored << " at " << i;
    }
    EXPECT_EQ(bytes, weights * (in_float ? 4 : 1));
  }
}

// Scales that still move are written as they are at that moment.
TEST(ExportPitfalls, AModelThatIsNotFrozenIsWrittenAsOneThatIs) {
  Prepared p = resnet(Profile::trt10);
  export_onnx(*p.model, {{"x", p.x, {{0, "batch"}}}}, temporary("moving.onnx"), {.profile = Profile::trt10});
  quantize::freeze(*p.model);
  export_onnx(*p.model, {{"x", p.x, {{0, "batch"}}}}, temporary("frozen.onnx"), {.profile = Profile::trt10});
  EXPECT_EQ(read_file(temporary("moving.onnx")), read_file(temporary("frozen.onnx")));
}

// A quantized network goes back into training: the same numbers, quantizers in place, a step that lowers the loss, and
// out again with the same pairs.
TEST(ExportPitfalls, QuantizedNetworksTrainOnFromTheirFiles) {
  for (Profile profile : kForms) {
    for (bool image : {false, true}) {
      SCOPED_TRACE(std::string(name_of(profile)) + (image ? " unet" : " resnet"));
      Prepared p = image ? unet(profile) : resnet(profile);
      Written w = p.write();
      Tensor expected = no_grad([&] { return (*p.model)(p.x); });
      OnnxModule back = import_onnx(w.file);
      EXPECT_LE(distance(no_grad([&] { return back(p.x); }), expected), 2e-2);
      auto loss = [&] { return mean(pow(back(p.x), 2.0)); };
      Tensor before = loss();
      before.backward();
      double squares = 0;
      for (const NamedTensor& t : back.parameters()) {
        ASSERT_TRUE(t.tensor.grad().defined()) << t.name;
        squares += sum(pow(t.tensor.grad(), 2.0)).item();
      }
      for (const NamedTensor& t : back.parameters())
        t.tensor.detach().add_(t.tensor.grad(), -0.05 * before.item() / squares);
      EXPECT_LT(no_grad(loss).item(), before.item());
      const std::string again = temporary("again.onnx");
      export_onnx(back, {{"x", p.x, {{0, "batch"}}}}, again, {.profile = profile, .precision = ExportPrecision::fp32});
      OnnxGraph g = exporting::read_graph(again);
      for (const char* op : {"QuantizeLinear", "DequantizeLinear", "Conv", "Add"})
        EXPECT_EQ(count_nodes(g, op), count_nodes(w.graph, op)) << op;
    }
  }
}

// onnxruntime#6004, #14642, #5849: uint8 times int8 saturates on CPUs without VNNI where both use their whole range.
// With the session option that the lint names, the optimized graph rounds as the plain one does.
TEST(ExportPitfalls, OptimizedIntegerKernelsAreWithinOneStep) {
  XY_NEEDS_ORT();
  struct Saturating : Module {
    Conv2d conv{16, 8, 3};
    XY_MEMBERS(conv)
  } net;
  net.conv.weight.detach().copy_(sample_uniform(net.conv.weight.shape(), 0.9, 1, 3).to(f32));
  const double step = 1.5;
  auto forward = [&](const Tensors& in) -> Tensors {
    Tensor w = fake_quantize(net.conv.weight, full({8}, 1 / 127.0), {.axis = 0, .low = -127});
    Tensor y = conv2d(fake_quantize(in[0], full({1}, 1 / 127.0)), w, net.conv.bias, net.conv.args);
    return {fake_quantize(relu(y), full({1}, step))};
  };
  const std::string file = temporary("saturating.onnx"), fused = temporary("saturating_fused.onnx");
  export_onnx(net, forward, {{"x", floats({2, 16, 5, 5}), {{0, "batch"}}}}, file, {.profile = Profile::ort_cpu});
  EXPECT_THAT(lint_onnx(file, "ort-cpu").text(), testing::HasSubstr("session.x64quantprecision"));
  Tensor x = sample_uniform({64, 16, 5, 5}, -0.2, 1, 9).to(f32);
  const std::vector<double> a = run_onnx(file, {x})[0].to_vector<double>();
  OrtSession session(file, {.optimize = true, .x64_quant_precision = true, .save_optimized = fused});
  EXPECT_EQ(count_nodes(exporting::read_graph(fused), "QLinearConv"), 1);
  const std::vector<double> b = session.run({x})[0].to_vector<double>();
  int64_t over = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double steps = std::abs(a[i] - b[i]) / step;
    EXPECT_LE(steps, 1.001) << i;
    over += steps > 0.5;
  }
  EXPECT_LE(double(over), 1e-3 * double(a.size()));
}

// What ort-cpu is for: ONNX Runtime's optimized graph computes every weighted layer and every sum in whole numbers, and
// no profile of TensorRT does that there.
TEST(ExportPitfalls, OrtCpuRunsOnIntegerKernels) {
  XY_NEEDS_ORT();
  for (Profile profile : {Profile::ort_cpu, Profile::trt8}) {
    Written w = resnet(profile).write();
    const std::string fused = temporary("fused.onnx");
    OrtSession session(w.file, {.save_optimized = fused});
    OnnxGraph g = exporting::read_graph(fused);
    const int convolutions = count_nodes(w.graph, "Conv");
    EXPECT_EQ(convolutions, 6);
    if (profile == Profile::ort_cpu) {
      EXPECT_EQ(count_nodes(g, "QLinearConv"), convolutions);
      EXPECT_EQ(count_nodes(g, "QLinearAdd"), 2);
      EXPECT_EQ(count_nodes(g, "QLinearGlobalAveragePool"), 1);
      EXPECT_EQ(count_nodes(g, "QGemm"), 1);
      EXPECT_EQ(count_nodes(g, "Conv") + count_nodes(g, "FusedConv") + count_nodes(g, "Gemm"), 0);
    } else {
      EXPECT_LT(count_nodes(g, "QLinearConv"), convolutions);
    }
  }
}

// So do depthwise convolutions and every matrix product with weights of a transformer.
TEST(ExportPitfalls, OrtCpuRunsDepthwiseNetworksAndTransformersOnIntegerKernels) {
  XY_NEEDS_ORT();
  const std::string fused = temporary("fused_others.onnx");
  auto optimized = [&](Prepared p) {
    OrtSession session(p.write().file, {.save_optimized = fused});
    return exporting::read_graph(fused);
  };
  OnnxGraph depthwise = optimized({"mobilenet_small",
                                   {{"width", int64_t(16)}, {"blocks", int64_t(1)}},
                                   floats({4, 1, 12, 12}, 3),
                                   Profile::ort_cpu});
  EXPECT_GE(count_nodes(depthwise, "QLinearConv"), 7);
  EXPECT_EQ(count_nodes(depthwise, "QGemm"), 1);
  EXPECT_EQ(count_nodes(depthwise, "Conv") + count_nodes(depthwise, "FusedConv") + count_nodes(depthwise, "Gemm"), 0);
  OnnxGraph transformer = optimized({"gpt2",
                                     {{"vocab", int64_t(32)},
                                      {"context", int64_t(16)},
                                      {"layers", int64_t(2)},
                                      {"heads", int64_t(2)},
                                      {"width", int64_t(32)}},
                                     sample_index({3, 7}, 32, 4),
                                     Profile::ort_cpu});
  // Four in each block; the products of attention stay in floating point, as does the head that shares the embedding.
  EXPECT_GE(count_nodes(transformer, "MatMulIntegerToFloat"), 8);
}

}  // namespace
}  // namespace xylem
#endif
