// SPDX-License-Identifier: Apache-2.0
// Every registered operation either agrees with ONNX Runtime on its samples or says why it is not in graphs.
#ifdef XY_WITH_ONNX
#include "core/op/lowering.h"
#include "models/export/import/import.h"
#include "tests/models/export_helpers.h"

namespace xylem {
namespace {

using namespace export_tests;

TEST(ExportOps, EveryOperationIsExportableOrSaysWhyNot) {
  for (const OpSpec* op : registered_ops()) {
    if (op->name.starts_with("test_")) continue;
    const bool has = op->onnx_lowering != nullptr;
    const bool excused = !op->export_obstacle.empty();
    EXPECT_NE(has, excused) << op->name << (has ? " is both" : " has no lowering and no reason");
  }
}

// Whether a sample normalises with the statistics of its batch, which export refuses.
class TrainingProbe : public OpObserver {
 public:
  bool found = false;
  void on_op(const OpSpec&, std::span<const Tensor>, std::span<const Tensor>, const Attrs& attrs) override {
    for (const auto& [name, value] : attrs) found = found || (name == "training" && std::get<bool>(value));
  }
};
bool trains(const Sample& s) {
  TrainingProbe probe;
  NoGrad guard;
  s.run(s.inputs);
  return probe.found;
}
// ONNX Runtime's Attention and GroupNormalization refuse tensors without elements.
bool beyond_ort(const OpSpec& op, const Sample& s, int opset) {
  const int since = op.name == "attention" ? 23 : op.name == "group_norm" ? 21 : 99;
  return opset >= since &&
         std::any_of(s.inputs.begin(), s.inputs.end(), [](const Tensor& t) { return t.numel() == 0; });
}

// A sample as a function of its defined inputs, in float32.
struct SampleModel {
  const Sample& sample;
  std::vector<int> given = {};
  std::vector<ExportInput> inputs = {};
  Tensors values = {};
  explicit SampleModel(const Sample& s) : sample(s) {
    for (size_t i = 0; i < s.inputs.size(); ++i) {
      if (!s.inputs[i].defined()) continue;
      const Tensor& t = s.inputs[i];
      given.push_back(int(i));
      values.push_back((is_float(t.dtype()) ? t.to(f32) : t).contiguous());
      inputs.push_back({"in" + std::to_string(i), values.back()});
    }
  }
  Tensors run(const Tensors& in) const {
    Tensors all(sample.inputs.size());
    for (size_t k = 0; k < in.size(); ++k) all[given[k]] = in[k];
    Tensors out = sample.run(all);
    for (Tensor& t : out)
      if (is_float(t.dtype())) t = t.to(f32);
    return out;
  }
  // Inputs that the sample does not use are no inputs of the graph.
  std::vector<size_t> order(const std::vector<std::string>& names) const {
    std::vector<size_t> order;
    for (const std::string& name : names)
      for (size_t k = 0; k < inputs.size(); ++k)
        if (inputs[k].name == name) order.push_back(k);
    return order;
  }
  void write(const std::string& file, int opset) const {
    Module nothing;
    export_onnx(nothing, [this](const Tensors& in) { return run(in); }, inputs, file, {.opset = opset});
  }
};

// Every sample at two opsets, and the first of each operation at every other one (Model-Optimizer#262: an operation
// that one opset can not express; pytorch#107685: axes that moved from attributes to inputs).
TEST(ExportOps, AgreeWithOnnxRuntimeOnTheirSamples) {
  XY_NEEDS_ORT();
  std::vector<std::string> files;
  for (int opset : {13, 15, 17, 18, 19, 20, 21, 22, 23, 24}) {
    for (const OpSpec* op : registered_ops()) {
      if (!op->onnx_lowering || !op->make_samples || op->is(OpRole::quantizer)) continue;
      if (op->name == "scatter_add" && opset < 16) continue;  // said by the test below
      int index = 0;
      for (const Sample& s : op->make_samples()) {
        if (beyond_ort(*op, s, opset) || trains(s)) continue;
        if (index > 0 && opset != 17 && opset != 23) break;
        SCOPED_TRACE(op->name + ", sample '" + s.name + "', opset " + std::to_string(opset));
        const SampleModel model(s);
        const std::string file =
            temporary("op_" + op->name + "_" + std::to_string(index++) + "_" + std::to_string(opset) + ".onnx");
        try {
          model.write(file, opset);
          Tensors expected = no_grad([&] { return model.run(model.values); });
          OrtSession session(file, {.optimize = false});
          std::vector<std::string> names;
          for (const auto& port : session.inputs()) names.push_back(port.name);
          Tensors fed;
          for (size_t k : model.order(names)) fed.push_back(model.values[k]);
          Tensors got = session.run(fed);
          ASSERT_EQ(got.size(), expected.size());
          for (size_t i = 0; i < got.size(); ++i) {
            EXPECT_EQ(got[i].dtype(), expected[i].dtype()) << "output " << i;
            EXPECT_LE(distance(got[i], expected[i]), 1e-5) << "output " << i;
          }
          files.push_back(file);
        } catch (const Error& e) {
          ADD_FAILURE() << e.what();
        }
      }
    }
  }
  const std::string said = python_checker(files);
  EXPECT_TRUE(said.empty() || said.starts_with("skip")) << said;
}

TEST(ExportOps, AnOpsetThatIsTooOldIsNamedWithTheOperation) {
  Module nothing;
  auto add = [](const Tensors& in) -> Tensors { return {scatter_add(in[0], 1, in[1], in[2])}; };
  const std::string said = error_of([&] {
    export_onnx(nothing, add, {{"x", floats({2, 3})}, {"i", sample_index({2, 2}, 3)}, {"y", floats({2, 2})}},
                temporary("old.onnx"), {.opset = 13});
  });
  EXPECT_NE(said.find("scatter_add"), std::string::npos) << said;
  EXPECT_NE(said.find("opset 16"), std::string::npos) << said;
}

// What export writes, import reads: the same values, and the same gradients of what flows in.
TEST(ExportOps, ComeBackThroughImportWithTheirGradients) {
  for (int opset : {15, 24}) {
    for (const OpSpec* op : registered_ops()) {
      if (!op->onnx_lowering || !op->make_samples || op->is(OpRole::quantizer)) continue;
      if (op->name == "scatter_add" && opset < 16) continue;
      for (const Sample& s : op->make_samples()) {
        if (trains(s)) continue;
        SCOPED_TRACE(op->name + ", sample '" + s.name + "', opset " + std::to_string(opset));
        const SampleModel model(s);
        const std::string file = temporary("back.onnx");
        try {
          model.write(file, opset);
          OnnxModule back = import_onnx(file);
          Tensors ours, theirs;
          for (const Tensor& v : model.values)
            for (Tensors* side : {&ours, &theirs}) side->push_back(is_float(v.dtype()) ? parameter(v.clone()) : v);
          Tensors fed;
          for (size_t k : model.order(back.input_names())) fed.push_back(theirs[k]);
          Tensors expected = model.run(ours), got = back(fed);
          ASSERT_EQ(got.size(), expected.size());
          Tensor a, b;
          for (size_t i = 0; i < got.size(); ++i) {
            EXPECT_LE(distance(got[i], expected[i]), 1e-5) << "output " << i;
            if (!expected[i].requires_grad() || expected[i].numel() == 0) continue;
            Tensor weight = floats(expected[i].shape(), 77 + i);
            for (auto [total, y] : {std::pair(&a, expected[i]), std::pair(&b, got[i])}) {
              Tensor part = sum(y * weight);
              *total = total->defined() ? *total + part : part;
            }
          }
          if (!a.defined() || s.name == "large scores") continue;  // a saturated softmax has no gradient to speak of
          ASSERT_TRUE(b.requires_grad()) << "import cut the way of the gradient";
          a.backward(), b.backward();
          for (size_t k = 0; k < ours.size(); ++k) {
            if (!ours[k].requires_grad() || !ours[k].grad().defined()) continue;
            ASSERT_TRUE(theirs[k].grad().defined()) << "input " << k;
            EXPECT_LE(distance(theirs[k].grad(), ours[k].grad()), 2e-5) << "gradient of input " << k;
          }
        } catch (const Error& e) {
          ADD_FAILURE() << e.what();
        }
      }
    }
  }
}

// y = x * factor + 1, operations from outside: one that says its form in ONNX, one that does not.
const OpSpec& kOutside = (new OpSpec("test_outside"))->onnx([](OnnxBuilder& onnx, const ExportedOp& op) -> OnnxNames {
  return {onnx.node("Add", {onnx.node("Mul", {op.inputs[0], onnx.scalar(op.number("factor"))}), onnx.scalar(1)})};
});
const OpSpec& kFormless = *new OpSpec("test_formless");
Tensor outside(const OpSpec& spec, const Tensor& x, double factor) {
  Tensor y = no_grad([&] { return x * factor + 1.0; });
  return record(spec, y, {x}, {{"factor", factor}});
}

TEST(ExportOps, AnOperationFromOutsideDeclaresItsForm) {
  XY_NEEDS_ORT();
  Module nothing;
  const std::string file = temporary("outside.onnx");
  Tensor x = floats({2, 3});
  export_onnx(
      nothing, [](const Tensors& in) -> Tensors { return {outside(kOutside, in[0], 2.5)}; }, {{"x", x}}, file);
  EXPECT_LE(distance(run_onnx(file, {x})[0], x * 2.5 + 1.0), 1e-6);
}

TEST(ExportOps, AnOperationWithoutAFormIsNamedWithTheRemedy) {
  Module nothing;
  const std::string said = error_of([&] {
    export_onnx(
        nothing, [](const Tensors& in) -> Tensors { return {outside(kFormless, in[0], 2.5)}; }, {{"x", floats({2, 3})}},
        temporary("formless.onnx"));
  });
  EXPECT_NE(said.find("test_formless"), std::string::npos) << said;
  EXPECT_NE(said.find(".onnx(lowering)"), std::string::npos) << said;
}

// What a recomputed block does is in the graph, also where the forward pass turns gradients on.
TEST(ExportOps, ARecomputedBlockIsExportedAsWhatItComputes) {
  XY_NEEDS_ORT();
  Module nothing;
  auto forward = [](const Tensors& in) -> Tensors {
    EnableGrad on;
    return {recompute([](const Tensors& t) { return exp(t[0]) * 2.0; }, in) + 1.0};
  };
  Tensor x = floats({2, 3});
  const std::string file = temporary("recomputed.onnx");
  export_onnx(nothing, forward, {{"x", x}}, file);
  EXPECT_LE(distance(run_onnx(file, {x})[0], exp(x) * 2.0 + 1.0), 1e-6);
}

TEST(ExportOps, ALossIsRefusedWithTheReason) {
  Module nothing;
  try {
    export_onnx(
        nothing, [](const Tensors& in) -> Tensors { return {cross_entropy(in[0], in[1])}; },
        {{"x", floats({2, 3})}, {"y", sample_index({2}, 3)}}, temporary("loss.onnx"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("loss"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace xylem
#endif
