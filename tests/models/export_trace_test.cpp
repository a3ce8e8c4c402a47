// SPDX-License-Identifier: Apache-2.0
// What tracing proves: sizes that were frozen, paths that change, layers in training mode.
#ifdef XY_WITH_ONNX
#include "models/nn/layers.h"
#include "tests/models/export_helpers.h"

namespace xylem {
namespace {

using namespace export_tests;

std::string error_of(const ExportForward& forward, const std::vector<ExportInput>& inputs, Module* model = nullptr) {
  Module nothing;
  return xylem::error_of([&] { export_onnx(model ? *model : nothing, forward, inputs, temporary("refused.onnx")); });
}
const ExportInput kTokens{"x", floats({2, 5, 6}), {{0, "batch"}, {1, "seq"}}};

TEST(ExportTrace, ASizeThatFollowsTheInputIsComputed) {
  XY_NEEDS_ORT();
  Module nothing;
  struct Shaped {
    const char* name;
    ExportForward forward;
  };
  const std::vector<Shaped> all = {
      {"merge and split",
       [](const Tensors& in) -> Tensors {
         const Tensor& x = in[0];
         Tensor flat = x.reshape({x.size(0) * x.size(1), 6});
         return {flat.reshape({x.size(1), x.size(0), 6})};
       }},
      {"broadcast to the input",
       [](const Tensors& in) -> Tensors {
         return {full({1, 1, 6}, 2).expand({in[0].size(0), in[0].size(1), 6})};
       }},
      {"positions",
       [](const Tensors& in) -> Tensors {
         return {in[0] + arange(in[0].size(1)).to(f32).reshape({in[0].size(1), 1})};
       }},
      {"filled",
       [](const Tensors& in) -> Tensors {
         return {cat({in[0], zeros({in[0].size(0), 1, 6})}, 1)};
       }},
      {"a size as a number", [](const Tensors& in) -> Tensors { return {in[0] / full({}, double(in[0].size(1)))}; }},
      {"last", [](const Tensors& in) -> Tensors { return {in[0].select(1, in[0].size(1) - 1)}; }},
      {"all but the first and the last",
       [](const Tensors& in) -> Tensors { return {in[0].slice(1, 1, in[0].size(1) - 1)}; }},
      {"twice as long",
       [](const Tensors& in) -> Tensors {
         return {in[0]
                     .unsqueeze(2)
                     .expand({in[0].size(0), in[0].size(1), 2, 6})
                     .reshape({in[0].size(0), 2 * in[0].size(1), 6})};
       }},
      {"a mask by values", [](const Tensors& in) -> Tensors { return {where(gt(in[0], 0.25), in[0], zeros({1}))}; }},
      {"an input as it is",
       [](const Tensors& in) -> Tensors {
         return {in[0], in[0].detach() + 1.0};
       }},
      {"a constant alone",
       [](const Tensors& in) -> Tensors {
         return {in[0] + 0.0, full({2, 2}, 3)};
       }},
  };
  for (int opset : {13, 17}) {
    for (const Shaped& s : all) {
      SCOPED_TRACE(s.name);
      const std::string file = temporary("shaped.onnx");
      try {
        export_onnx(nothing, s.forward, {kTokens}, file, {.opset = opset});
        OrtSession session(file, {.optimize = false});
        for (auto [batch, length] : {std::pair<int64_t, int64_t>{1, 3}, {4, 9}}) {
          Tensor x = floats({batch, length, 6}, 9);
          Tensors expected = no_grad([&] { return s.forward({x}); });
          Tensors got = session.run({x});
          ASSERT_EQ(got.size(), expected.size());
          for (size_t i = 0; i < got.size(); ++i) EXPECT_LE(distance(got[i], expected[i]), 1e-6);
        }
      } catch (const Error& e) {
        ADD_FAILURE() << e.what();
      }
    }
  }
}

TEST(ExportTrace, AFrozenSizeIsAnErrorWithBothValues) {
  // A literal that only fits the example.
  std::string e = error_of([](const Tensors& in) -> Tensors { return {in[0].reshape({10, 6})}; }, {kTokens});
  EXPECT_NE(e.find("batch="), std::string::npos) << e;
  EXPECT_NE(e.find("reshape"), std::string::npos) << e;
  // A number computed from a size on the host.
  e = error_of([](const Tensors& in) -> Tensors { return {in[0] / std::sqrt(double(in[0].size(1)))}; }, {kTokens});
  EXPECT_NE(e.find("mul_scalar"), std::string::npos) << e;
  EXPECT_NE(e.find("0.447"), std::string::npos) << e;  // 1/sqrt(5)
  EXPECT_NE(e.find("frozen"), std::string::npos) << e;
  // A number read from values.
  e = error_of([](const Tensors& in) -> Tensors { return {in[0] * mean(in[0]).item()}; }, {kTokens});
  EXPECT_NE(e.find("mul_scalar"), std::string::npos) << e;
  // A table of another length for each size.
  e = error_of(
      [](const Tensors& in) -> Tensors {
        std::vector<float> ramp;
        for (int64_t i = 0; i < in[0].size(1); ++i) ramp.push_back(float(i * i));
        return {in[0] + from_vector(ramp, {in[0].size(1), 1})};
      },
      {kTokens});
  EXPECT_NE(e.find("add"), std::string::npos) << e;
  EXPECT_NE(e.find("shape"), std::string::npos) << e;
}

TEST(ExportTrace, APathThatDependsOnSizesIsAnError) {
  std::string e = error_of(
      [](const Tensors& in) -> Tensors { return {in[0].size(0) > 2 ? relu(in[0]) : sigmoid(in[0])}; }, {kTokens});
  EXPECT_NE(e.find("another path"), std::string::npos) << e;
  EXPECT_NE(e.find("relu"), std::string::npos) << e;
  EXPECT_NE(e.find("sigmoid"), std::string::npos) << e;
}

TEST(ExportTrace, AResultChangedInPlaceIsAnError) {
  std::string e = error_of(
      [](const Tensors& in) -> Tensors {
        Tensor y = relu(in[0]);
        y.fill_(1);
        return {y + in[0]};
      },
      {kTokens});
  EXPECT_NE(e.find("in place"), std::string::npos) << e;
}

struct Stubborn : Module {
  BatchNorm2d bn{3};
  XY_MEMBERS(bn)
};

TEST(ExportTrace, ALayerInTrainingModeIsNamed) {
  Stubborn model;
  const ExportInput image{"x", floats({2, 3, 4, 4})};
  std::string e = error_of(
      [&](const Tensors& in) -> Tensors {
        return {batch_norm(in[0], model.bn.weight, model.bn.bias, model.bn.running_mean, model.bn.running_var, true)};
      },
      {image}, &model);
  EXPECT_NE(e.find("'bn'"), std::string::npos) << e;
  EXPECT_NE(e.find("training mode"), std::string::npos) << e;
  e = error_of([](const Tensors& in) -> Tensors { return {dropout(in[0], 0.5)}; }, {image});
  EXPECT_NE(e.find("training mode"), std::string::npos) << e;
  e = error_of([](const Tensors& in) -> Tensors { return {in[0] + rand({4})}; }, {image});
  EXPECT_NE(e.find("random"), std::string::npos) << e;
}

TEST(ExportTrace, NamesAreChecked) {
  auto same = [](const Tensors& in) -> Tensors { return {in[0] + 1.0}; };
  EXPECT_NE(error_of(same, {{"x:0", floats({2})}}).find("x:0"), std::string::npos);
  EXPECT_NE(error_of(same, {{"x", floats({2}), {{0, "my batch"}}}}).find("my batch"), std::string::npos);
  Module nothing;
  EXPECT_THROW(export_onnx(nothing, same, {{"x", floats({2})}}, temporary("n.onnx"), {.outputs = {"a", "b"}}), Error);
  EXPECT_THROW(export_onnx(nothing, same, {{"x", floats({2})}}, temporary("n.onnx"), {.opset = 12}), Error);
  EXPECT_THROW(parse_profile("trt9"), Error);
  EXPECT_EQ(parse_profile("ort-cpu"), Profile::ort_cpu);
}

}  // namespace
}  // namespace xylem
#endif
