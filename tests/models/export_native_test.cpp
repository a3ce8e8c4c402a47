// SPDX-License-Identifier: Apache-2.0
// Operators that ONNX has for a whole layer are used from their opset on, where every runtime of the profile that reads
// that opset has them; elsewhere the layer is composed of smaller ones. Both compute the same in ONNX Runtime, and both
// come back through import.
#ifdef XY_WITH_ONNX
#include "models/export/decoder.h"
#include "models/export/import/import.h"
#include "models/zoo/zoo.h"
#include "tests/models/export_helpers.h"

namespace xylem {
namespace {

using namespace export_tests;
using exporting::OnnxGraph;

constexpr Profile kProfiles[] = {Profile::exact, Profile::trt8, Profile::trt10, Profile::trt11, Profile::ort_cpu};

// PyTorch's definition, in double precision: a gain and a bias for every channel.
Tensor group_norm_by_formula(const Tensor& x, int64_t groups, const Tensor& gain, const Tensor& bias, double eps) {
  const int64_t n = x.size(0), c = x.size(1), inner = x.numel() / (n * c), per = c / groups;
  std::vector<double> in = x.to_vector<double>(), g = gain.to_vector<double>(), b = bias.to_vector<double>(), out = in;
  for (int64_t i = 0; i < n * groups; ++i) {
    const int64_t begin = i * per * inner, count = per * inner;
    double mean = 0, variance = 0;
    for (int64_t k = 0; k < count; ++k) mean += in[begin + k] / double(count);
    for (int64_t k = 0; k < count; ++k) variance += std::pow(in[begin + k] - mean, 2) / double(count);
    for (int64_t k = 0; k < count; ++k) {
      const int64_t channel = (i % groups) * per + k / inner;
      out[begin + k] = (in[begin + k] - mean) / std::sqrt(variance + eps) * g[channel] + b[channel];
    }
  }
  return from_vector(out, x.shape()).to(f32);
}

OnnxGraph exported(const ExportForward& forward, const std::vector<ExportInput>& inputs, Profile profile, int opset,
                   const std::string& file, ExportPrecision precision = ExportPrecision::fp32) {
  Module nothing;
  export_onnx(nothing, forward, inputs, file, {.opset = opset, .profile = profile, .precision = precision});
  return exporting::read_graph(file);
}

// TensorRT#4336, #4313, #3094: GroupNormalization has a gain per group before opset 21. TensorRT#4756: one group is
// computed wrongly by TensorRT 10.16.
TEST(ExportNative, GroupNormIsOneNodeFromOpset21ExceptForOneGroup) {
  XY_NEEDS_ORT();
  Tensor gain = floats({6}, 2), bias = floats({6}, 3);
  std::vector<std::string> files;
  for (int opset : {13, 17, 18, 20, 21, 23, 24}) {
    for (Profile profile : kProfiles) {
      for (int groups : {1, 2, 6}) {
        SCOPED_TRACE(std::string(name_of(profile)) + ", opset " + std::to_string(opset) + ", groups " +
                     std::to_string(groups));
        const std::string file = temporary("group_norm_" + std::to_string(files.size()) + ".onnx");
        auto forward = [&](const Tensors& in) -> Tensors { return {group_norm(in[0], groups, gain, bias, 1e-3)}; };
        OnnxGraph g = exported(forward, {{"x", floats({2, 6, 3, 5}), {{0, "batch"}}}}, profile, opset, file);
        const bool native = opset >= 21 && groups > 1 && profile != Profile::trt8;
        EXPECT_EQ(count_nodes(g, "GroupNormalization"), native);
        EXPECT_EQ(count_nodes(g, "InstanceNormalization"), !native);
        Tensor x = floats({3, 6, 3, 5}, 7) * 4.0 + 2.0;
        Tensor expected = group_norm_by_formula(x, groups, gain, bias, 1e-3);
        EXPECT_LE(distance(run_onnx(file, {x})[0], expected), 1e-5);
        EXPECT_LE(distance(no_grad([&] { return import_onnx(file)(x); }), expected), 1e-5);
        files.push_back(file);
      }
    }
  }
  const std::string said = python_checker(files);
  EXPECT_TRUE(said.empty() || said.starts_with("skip")) << said;
}

// In half precision the statistics stay in float32: |x| of 300 has squares that fp16 does not hold.
TEST(ExportNative, GroupNormInHalfPrecisionKeepsItsStatistics) {
  XY_NEEDS_ORT();
  Tensor gain = floats({6}, 2), bias = floats({6}, 3);
  auto forward = [&](const Tensors& in) -> Tensors { return {relu(group_norm(relu(in[0]), 2, gain, bias, 1e-3))}; };
  for (int opset : {20, 21}) {
    const std::string file = temporary("group_norm_half.onnx");
    exported(forward, {{"x", floats({2, 6, 4, 4})}}, Profile::exact, opset, file, ExportPrecision::fp16);
    Tensor x = floats({2, 6, 4, 4}, 7) * 300.0;
    EXPECT_LE(distance(run_onnx(file, {x})[0], no_grad([&] { return forward({x})[0]; }), 5e-3), 1e-2) << opset;
  }
}

struct Expected {
  Profile profile;
  int opset;
  bool rotary, norm, attention;
};
// TensorRT reads opset 23 from 10.14 on, which brought Attention, and 24 from 10.15 on, which brought the others.
const std::vector<Expected> kLlama = {
    {Profile::exact, 22, false, false, false}, {Profile::exact, 23, true, true, true},
    {Profile::ort_cpu, 24, true, true, true},  {Profile::trt8, 23, false, false, false},
    {Profile::trt10, 22, false, false, false}, {Profile::trt10, 23, false, false, true},
    {Profile::trt10, 24, true, true, true},    {Profile::trt11, 22, false, false, false},
    {Profile::trt11, 23, true, true, true}};

std::unique_ptr<ZooModel> llama() {
  zoo::Options options = small_llama();
  options["width"] = int64_t(64);  // heads of 16: TensorRT runs Attention of no smaller ones
  auto model = zoo::create("llama", options);
  uint64_t seed = 7;
  for (const NamedTensor& p : model->parameters())
    p.tensor.detach().add_(sample_normal(p.tensor.shape(), 0.2, ++seed).to(f32));
  model->eval();
  return model;
}

TEST(ExportNative, LlamaUsesWhatItsRuntimeHas) {
  XY_NEEDS_ORT();
  auto model = llama();
  std::vector<std::string> files;
  for (const Expected& e : kLlama) {
    SCOPED_TRACE(std::string(name_of(e.profile)) + " at opset " + std::to_string(e.opset));
    const std::string file = temporary("native_" + std::to_string(files.size()) + ".onnx");
    ExportInput in{"input_ids", sample_index({2, 4}, 17), {{0, "batch"}, {1, "seq"}}};
    export_onnx(*model, {in}, file, {.opset = e.opset, .profile = e.profile, .precision = ExportPrecision::fp32});
    OnnxGraph g = exporting::read_graph(file);
    EXPECT_EQ(count_nodes(g, "RotaryEmbedding"), e.rotary ? 4 : 0);
    EXPECT_EQ(count_nodes(g, "RMSNormalization"), e.norm ? 5 : 0);
    EXPECT_EQ(count_nodes(g, "Attention"), e.attention ? 2 : 0);
    EXPECT_EQ(count_nodes(g, "Softmax"), e.attention ? 0 : 2);
    OnnxModule back = import_onnx(file);
    OrtSession session(file, {.optimize = false});
    for (auto [batch, length] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}}) {
      Tensor x = sample_index({batch, length}, 17, 9);
      Tensor expected = no_grad([&] { return (*model)(x); });
      EXPECT_LE(distance(session.run({x})[0], expected), 1e-5);
      EXPECT_LE(distance(no_grad([&] { return back(x); }), expected), 1e-5);
    }
    files.push_back(file);
  }
  const std::string said = python_checker(files);
  EXPECT_TRUE(said.empty() || said.starts_with("skip")) << said;
}

// Positions that begin later and turn back, of one size and of many.
TEST(ExportNative, RotaryPositionsHaveOffsetsAndDirections) {
  XY_NEEDS_ORT();
  auto forward = [](const Tensors& in) -> Tensors { return {rotary(in[0], 500, 3)}; };
  Tensor x = floats({2, 5, 3, 8}, 4);
  for (bool dynamic : {false, true}) {
    ExportInput in{"x", x, {}};
    if (dynamic) in.dynamic = {{0, "batch"}, {1, "seq"}};
    const std::string composed = temporary("rotary_22.onnx"), native = temporary("rotary_23.onnx");
    exported(forward, {in}, Profile::exact, 22, composed);
    EXPECT_EQ(count_nodes(exported(forward, {in}, Profile::exact, 23, native), "RotaryEmbedding"), 1);
    Tensor y = dynamic ? floats({4, 7, 3, 8}, 5) : x, expected = no_grad([&] { return forward({y})[0]; });
    EXPECT_LE(distance(run_onnx(composed, {y})[0], expected), 1e-5);
    EXPECT_LE(distance(run_onnx(native, {y})[0], expected), 1e-5);
  }
}

// TensorRT#273, onnx-tensorrt#457: what runtimes take for the default of an image's coordinates differs.
TEST(ExportNative, ResizedImagesLieWhereTheyDidInEveryMode) {
  XY_NEEDS_ORT();
  struct Mode {
    Interpolation mode;
    bool corners;
  };
  const std::string file = temporary("resize.onnx");
  for (Mode m : {Mode{Interpolation::nearest, false}, Mode{Interpolation::bilinear, false},
                 Mode{Interpolation::bilinear, true}}) {
    for (int opset : {13, 18}) {
      for (std::array<int64_t, 2> size : {std::array<int64_t, 2>{8, 12}, {7, 5}, {3, 3}, {1, 6}}) {
        auto fixed = [&](const Tensors& in) -> Tensors { return {interpolate(in[0], size, m.mode, m.corners)}; };
        exported(fixed, {{"x", floats({2, 3, 4, 6})}}, Profile::exact, opset, file);
        Tensor x = floats({2, 3, 4, 6}, 5), expected = no_grad([&] { return fixed({x})[0]; });
        EXPECT_LE(distance(run_onnx(file, {x})[0], expected), 1e-5) << size[0] << "x" << size[1];
        EXPECT_LE(distance(no_grad([&] { return import_onnx(file)(x); }), expected), 1e-5);
      }
      auto twice = [&](const Tensors& in) -> Tensors {
        return {interpolate(in[0], {in[0].size(2) * 2, in[0].size(3) * 2}, m.mode, m.corners)};
      };
      exported(twice, {{"x", floats({2, 3, 4, 6}), {{2, "height"}, {3, "width"}}}}, Profile::exact, opset, file);
      Tensor x = floats({2, 3, 5, 7}, 5), expected = no_grad([&] { return twice({x})[0]; });
      EXPECT_LE(distance(run_onnx(file, {x})[0], expected), 1e-5);
    }
  }
}

// And those that other exporters write come in as ONNX Runtime computes them, or not at all.
TEST(ExportNative, ForeignResizesAreImportedRightOrRefused) {
  XY_NEEDS_ORT();
  const std::string file = temporary("foreign_resize.onnx");
  auto twice = [](const Tensors& in) -> Tensors { return {interpolate(in[0], {8, 12}, Interpolation::nearest)}; };
  OnnxGraph g = exported(twice, {{"x", floats({2, 3, 4, 6})}}, Profile::exact, 17, file);
  Tensor x = floats({2, 3, 4, 6}, 5);
  int taken = 0, refused = 0;
  for (const char* mode : {"nearest", "linear"})
    for (const char* how : {"half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"})
      for (const char* rounding : {"round_prefer_floor", "floor", "ceil"}) {
        SCOPED_TRACE(std::string(mode) + " " + how + " " + rounding);
        for (auto& n : g.nodes) {
          n.attrs.clear();
          n.set("mode", std::string(mode));
          n.set("coordinate_transformation_mode", std::string(how));
          if (n.set("nearest_mode", std::string(rounding)); std::string(mode) == "linear") n.attrs.pop_back();
        }
        exporting::write_graph(g, file, false, 1 << 30);
        OnnxModule back = import_onnx(file);
        try {
          EXPECT_LE(distance(no_grad([&] { return back(x); }), run_onnx(file, {x})[0]), 1e-5);
          ++taken;
        } catch (const Error&) {
          ++refused;
        }
      }
  EXPECT_EQ(taken, 3 + 3 * 3);
  EXPECT_EQ(refused, 12);
}

// The opset that a profile writes by itself holds no operator that its TensorRT lacks.
TEST(ExportNative, GeluIsOneNodeWhereEveryReaderHasIt) {
  auto forward = [](const Tensors& in) -> Tensors { return {gelu(in[0]), gelu_tanh(in[0])}; };
  const std::string file = temporary("gelu.onnx");
  auto count = [&](Profile profile, int opset) {
    return count_nodes(exported(forward, {{"x", floats({4})}}, profile, opset, file), "Gelu");
  };
  EXPECT_EQ(count(Profile::exact, 19), 0);
  EXPECT_EQ(count(Profile::exact, 20), 2);
  EXPECT_EQ(count(Profile::trt10, 20), 0);  // TensorRT 10.0 reads opset 20, but Gelu came with 10.1
  EXPECT_EQ(count(Profile::trt10, 21), 2);
  EXPECT_EQ(count(Profile::trt11, 0), 2);
}

}  // namespace
}  // namespace xylem
#endif
