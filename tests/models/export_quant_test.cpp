// SPDX-License-Identifier: Apache-2.0
// Simulated quantization in graphs: the profiles, the exact fold of batch norm, low-bit formats.
#ifdef XY_WITH_ONNX
#include "models/export/import/import.h"
#include "models/nn/layers.h"
#include "models/quantize/quantize.h"
#include "models/zoo/zoo.h"
#include "ops/quant/quant.h"
#include "tests/models/export_helpers.h"

namespace xylem {
namespace {

using namespace export_tests;
using exporting::OnnxGraph;
namespace type = exporting::type;

// The scale of each channel's largest value, or of the whole tensor's.
Tensor scale_of(const Tensor& t, int axis, double levels = 127) {
  return abs_max(t.detach(), axis).reshape({axis < 0 ? 1 : t.size(axis)}) * (1 / levels);
}

// conv, norm, relu, pooling, a residual, a matrix product: each with its weights and inputs quantized.
struct Net : Module {
  Conv2d conv1, conv2;
  BatchNorm2d bn1, bn2;
  Linear fc;
  double act = 0.031;
  Net() : conv1(3, 8, 3, {.padding = 1, .bias = false}), conv2(8, 8, 3, {.padding = 1}), bn1(8), bn2(8), fc(8, 4) {
    uint64_t seed = 5;
    for (BatchNorm2d* bn : {&bn1, &bn2}) {
      NoGrad guard;
      bn->weight.detach().copy_(sample_normal({8}, 1, ++seed).to(f32));  // negative gains too
      bn->bias.detach().copy_(sample_normal({8}, 0.3, ++seed).to(f32));
      bn->running_mean.tensor.copy_(sample_normal({8}, 0.3, ++seed).to(f32));
      bn->running_var.tensor.copy_(sample_uniform({8}, 0.3, 2, ++seed).to(f32));
    }
    bn1.weight.detach().narrow(0, 3, 1).fill_(0);  // a channel that the gain switches off
  }
  XY_MEMBERS(conv1, conv2, bn1, bn2, fc)

  Tensor weight(const Tensor& w) const {
    return fake_quantize(w, scale_of(w, 0), {.axis = 0, .low = -127, .high = 127});
  }
  Tensor input(const Tensor& x) const { return fake_quantize(x, full({1}, act)); }
  Tensor operator()(const Tensor& x) const {
    Tensor a = relu(bn1(conv2d(input(x), weight(conv1.weight), conv1.bias, conv1.args)));
    Tensor q = input(a);
    Tensor b = bn2(conv2d(q, weight(conv2.weight), conv2.bias, conv2.args));
    Tensor pooled = adaptive_avg_pool2d(relu(b + q), {1, 1}).flatten(1);
    return linear(input(pooled), weight(fc.weight), fc.bias);
  }
};

const ExportInput kImages{"x", floats({2, 3, 6, 6}), {{0, "batch"}}};

OnnxGraph exported(Net& net, Profile profile, ExportPrecision precision = ExportPrecision::fp32, int opset = 0) {
  const std::string file = temporary(std::string("quant_") + name_of(profile) + ".onnx");
  export_onnx(net, {kImages}, file, {.opset = opset, .profile = profile, .precision = precision});
  return exporting::read_graph(file);
}
std::string file_of(Profile profile) { return temporary(std::string("quant_") + name_of(profile) + ".onnx"); }

TEST(ExportQuant, ProfilesAgreeWithTraining) {
  XY_NEEDS_ORT();
  Net net;
  Tensor x = floats({5, 3, 6, 6}, 8);
  net.eval();
  Tensor expected = no_grad([&] { return net(x); });
  for (Profile p : {Profile::exact, Profile::trt8, Profile::trt10, Profile::trt11}) {
    SCOPED_TRACE(name_of(p));
    exported(net, p);
    EXPECT_LE(distance(run_onnx(file_of(p), {x})[0], expected), 2e-5);
  }
  // Behind a ReLU uint8 reaches twice as far: values that int8 clipped differ, and come closer to the unquantized ones.
  net.act = 0.06;  // nothing is clipped
  expected = no_grad([&] { return net(x); });
  exported(net, Profile::ort_cpu);
  EXPECT_LE(distance(run_onnx(file_of(Profile::ort_cpu), {x})[0], expected), 2e-5);
}

// q keeps the bytes that training found; scales take over |gain|/sigma; rows of negative gains turn round.
TEST(ExportQuant, BatchNormFoldsExactlyIntoQuantizedConvolutions) {
  Net net;
  OnnxGraph g = exported(net, Profile::trt10, ExportPrecision::fp32, 19);
  EXPECT_EQ(count_nodes(g, "BatchNormalization"), 0);
  Tensor w = net.conv1.weight.detach(), scale = scale_of(w, 0), gain = net.bn1.weight;
  const auto& stored = g.initializers.at("conv1.weight.quantized");
  EXPECT_EQ(stored.type, type::int8);
  std::vector<int64_t> q = stored.data.to_vector<int64_t>();
  auto values = w.to_vector<float>(), scales = scale.to_vector<float>(), gains = gain.detach().to_vector<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t c = i / 27;
    const double sign = gains[c] > 0 ? 1 : gains[c] < 0 ? -1 : 0;
    EXPECT_EQ(double(q[i]), sign * std::nearbyint(values[i] / scales[c])) << i;
  }
  // TensorRT refuses scales that are not positive (onnx-tensorrt#764): a dead channel has the scale 1.
  for (double s : g.initializers.at("conv1.weight.scale").data.to_vector<double>()) EXPECT_GT(s, 0);
  EXPECT_EQ(g.initializers.at("conv1.weight.scale").data.to_vector<double>()[3], 1);
}

TEST(ExportQuant, ZeroPointsAreZeroAndInt8ForTensorRt) {
  Net net;
  for (Profile p : {Profile::exact, Profile::trt8, Profile::trt10, Profile::trt11}) {
    OnnxGraph g = exported(net, p);
    for (const auto& n : g.nodes) {
      if (n.op != "QuantizeLinear" && n.op != "DequantizeLinear") continue;
      ASSERT_EQ(n.inputs.size(), 3u) << "without a zero point ONNX means uint8 and TensorRT int8";
      const auto& zero = g.initializers.at(n.inputs[2]);
      EXPECT_EQ(zero.type, type::int8);
      for (int64_t z : zero.data.to_vector<int64_t>()) EXPECT_EQ(z, 0);
      EXPECT_EQ(zero.dims, g.initializers.at(n.inputs[1]).dims);
    }
    for (const auto& n : g.nodes) {
      EXPECT_EQ(n.op.find("Dynamic"), std::string::npos);
      EXPECT_EQ(n.op.find("QLinear"), std::string::npos);
      if (n.op != "Conv" && n.op != "Gemm") continue;
      ASSERT_EQ(n.inputs.size(), 3u);
      EXPECT_TRUE(g.is_initializer(n.inputs[2])) << "the bias must not be quantized (onnxruntime#14229)";
      EXPECT_EQ(g.producer(n.inputs[1])->op, "DequantizeLinear");
    }
    EXPECT_EQ(count_nodes(g, "QuantizeLinear"), p == Profile::exact || p == Profile::trt8 ? 6 : 3);
  }
}

TEST(ExportQuant, Int8InFp16NeedsAndGetsOpset19) {
  XY_NEEDS_ORT();
  Net net;
  OnnxGraph g = exported(net, Profile::trt10, ExportPrecision::automatic);
  EXPECT_EQ(g.opset, 19);
  EXPECT_EQ(g.initializers.at("conv1.weight.quantized").type, type::int8);
  EXPECT_TRUE(g.initializers.contains("conv1.weight.scale_fp16"));
  for (const auto& n : g.nodes) {
    if (n.op != "DequantizeLinear") continue;
    EXPECT_EQ(g.type_of(n.outputs[0]), type::float16) << n.name;
  }
  net.eval();
  Tensor x = floats({3, 3, 6, 6}, 8);
  EXPECT_LE(distance(run_onnx(file_of(Profile::trt10), {x})[0], no_grad([&] { return net(x); }), 1e-2), 5e-2);
}

// Two Linears of a transformer: their weights are stored as [in, out] with the scale on the other axis.
TEST(ExportQuant, MatMulWeightsAreScaledAlongTheirOutputs) {
  XY_NEEDS_ORT();
  struct Rows : Module {
    Linear a{6, 5};
    XY_MEMBERS(a)
  } rows;
  auto forward = [&](const Tensors& in) -> Tensors {
    return {linear(fake_quantize(in[0], full({1}, 0.03)),
                   fake_quantize(rows.a.weight, scale_of(rows.a.weight, 0), {.axis = 0, .low = -127}), rows.a.bias)};
  };
  Tensor x = floats({2, 3, 6}, 4);
  for (Profile p : {Profile::exact, Profile::trt11, Profile::ort_cpu}) {
    const std::string file = temporary("rows.onnx");
    export_onnx(rows, forward, {{"x", floats({2, 3, 6}), {{0, "batch"}, {1, "seq"}}}}, file,
                {.profile = p, .precision = ExportPrecision::fp32});
    OnnxGraph g = exporting::read_graph(file);
    EXPECT_EQ(count_nodes(g, "Transpose"), 0);
    for (const auto& n : g.nodes) {
      if (n.op == "DequantizeLinear" && n.find("axis")) {
        EXPECT_EQ(std::get<int64_t>(*n.find("axis")), 1);
      }
    }
    EXPECT_LE(distance(run_onnx(file, {x})[0], no_grad([&] { return forward({x})[0]; })), 1e-5);
  }
}

TEST(ExportQuant, Fp8AndInt4WeightsRunInOnnxRuntime) {
  XY_NEEDS_ORT();
  struct Wide : Module {
    Linear a{32, 6, false};
    XY_MEMBERS(a)
  } wide;
  struct Format {
    const char* name;
    FakeQuantizeArgs args;
    Tensor scale;
    int opset;
  };
  Tensor w = wide.a.weight;
  const std::vector<Format> formats = {
      {"fp8", {.format = QuantFormat::fp8, .axis = 0}, scale_of(w, 0, 448), 19},
      {"int4 by channel", {.format = QuantFormat::int4, .axis = 0, .low = -7, .high = 7}, scale_of(w, 0, 7), 21},
      {"int4 in blocks",
       {.format = QuantFormat::int4, .low = -7, .high = 7, .block = 16},
       abs_max(w.detach(), -1, 16) * (1.0 / 7),
       21}};
  for (const Format& f : formats) {
    SCOPED_TRACE(f.name);
    auto forward = [&](const Tensors& in) -> Tensors { return {linear(in[0], fake_quantize(w, f.scale, f.args))}; };
    const std::string file = temporary("low_bit.onnx");
    ExportReport report = export_onnx(wide, forward, {{"x", floats({2, 32}), {{0, "batch"}}}}, file,
                                      {.profile = Profile::trt11, .precision = ExportPrecision::fp32});
    EXPECT_GE(report.opset, f.opset);
    Tensor x = floats({3, 32}, 4);
    Tensor expected = no_grad([&] { return forward({x})[0]; });
    EXPECT_LE(distance(run_onnx(file, {x})[0], expected), 1e-5);
    OnnxModule back = import_onnx(file);
    EXPECT_LE(distance(no_grad([&] { return back(x); }), expected), 1e-5);
    mean(pow(back(x), 2.0)).backward();
    ASSERT_EQ(back.parameters().size(), 1u);
    EXPECT_GT(sum(pow(back.parameters()[0].tensor.grad(), 2.0)).item(), 0);
    EXPECT_THROW(export_onnx(wide, forward, {{"x", floats({2, 32})}}, file, {.opset = f.opset - 1}), Error);
  }
}

// What ort-cpu is for: integer kernels in the optimized graph, and the same numbers from them.
TEST(ExportQuant, OrtCpuFusesToIntegerKernels) {
  XY_NEEDS_ORT();
  Net net;
  net.act = 0.06;
  exported(net, Profile::ort_cpu);
  const std::string fused = temporary("fused.onnx");
  OrtSession session(file_of(Profile::ort_cpu), {.save_optimized = fused});
  OnnxGraph g;
  try {
    g = exporting::read_graph(fused);
  } catch (const Error& e) {
    GTEST_SKIP() << "the optimized graph can not be read back: " << e.what();
  }
  EXPECT_GE(count_nodes(g, "QLinearConv"), 1);
  Tensor x = floats({5, 3, 6, 6}, 8);
  net.eval();
  EXPECT_LE(distance(session.run({x})[0], no_grad([&] { return net(x); }), 0), 0.05);
}

// From quantize::prepare() to each profile: what training rounds, the runtime rounds.
TEST(ExportQuant, PreparedModelsExportForEveryProfile) {
  XY_NEEDS_ORT();
  struct Case {
    const char* name;
    zoo::Options options;
    Tensor x;
  };
  const std::vector<Case> cases = {
      {"resnet_small", {{"width", int64_t(8)}, {"stages", int64_t(2)}}, floats({4, 1, 12, 12}, 3)},
      {"gpt2",
       {{"vocab", int64_t(19)},
        {"context", int64_t(16)},
        {"layers", int64_t(1)},
        {"heads", int64_t(2)},
        {"width", int64_t(16)}},
       sample_index({3, 7}, 19, 4)}};
  for (const Case& c : cases) {
    for (Profile p : {Profile::exact, Profile::trt8, Profile::trt10, Profile::ort_cpu}) {
      SCOPED_TRACE(std::string(c.name) + " for " + name_of(p));
      auto model = zoo::create(c.name, c.options);
      model->eval();
      auto run = [&] { (*model)(c.x); };
      quantize::prepare(*model, run,
                        {.placement = p == Profile::ort_cpu ? quantize::Placement::ort : quantize::Placement::trt,
                         .small_layers = true});
      quantize::calibrate(*model, run);
      quantize::freeze(*model);
      const std::string file = temporary("prepared.onnx");
      std::map<int, std::string> dynamic{{0, "batch"}};
      if (c.name == std::string("gpt2")) dynamic[1] = "seq";
      export_onnx(*model, {{"x", c.x, dynamic}}, file, {.profile = p, .precision = ExportPrecision::fp32});
      OnnxGraph g = exporting::read_graph(file);
      EXPECT_GE(count_nodes(g, "DequantizeLinear"), 4);
      EXPECT_EQ(count_nodes(g, "BatchNormalization"), 0);
      EXPECT_LE(distance(run_onnx(file, {c.x})[0], no_grad([&] { return (*model)(c.x); })), 2e-2);
    }
  }
}

TEST(ExportQuant, TransposedConvolutionsMayHaveOneScale) {
  XY_NEEDS_ORT();
  struct Up : Module {
    ConvTranspose2d up{4, 3, 2, {.stride = 2}};
    BatchNorm2d bn{3};
    XY_MEMBERS(up, bn)
  } up;
  auto forward = [&](const Tensors& in) -> Tensors {
    Tensor w = fake_quantize(up.up.weight, scale_of(up.up.weight, -1), {.low = -127});
    return {up.bn(conv_transpose2d(fake_quantize(in[0], full({1}, 0.03)), w, up.up.bias, up.up.args))};
  };
  const std::string file = temporary("up.onnx");
  ExportReport report = export_onnx(up, forward, {{"x", floats({2, 4, 3, 3}), {{0, "batch"}}}}, file);
  bool told = false;
  for (const std::string& note : report.notes) told = told || note.find("'bn' was not folded") != std::string::npos;
  EXPECT_TRUE(told);
  Tensor x = floats({3, 4, 3, 3}, 4);
  up.eval();
  EXPECT_LE(distance(run_onnx(file, {x})[0], no_grad([&] { return forward({x})[0]; })), 1e-5);
}

}  // namespace
}  // namespace xylem
#endif
