// SPDX-License-Identifier: Apache-2.0
// Every registered operation either agrees with ONNX Runtime on its samples or says why it is not in graphs.
#ifdef XY_WITH_ONNX
#include "models/export/lowering.h"
#include "tests/models/export_helpers.h"

namespace xylem {
namespace {

using namespace export_tests;

TEST(ExportOps, EveryOperationIsExportableOrSaysWhyNot) {
  for (const OpSpec* op : registered_ops()) {
    if (op->name.starts_with("test_")) continue;
    const bool has = find_onnx_lowering(op->name) != nullptr;
    const bool excused = !export_obstacle(*op).empty();
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
// ONNX Runtime's Attention refuses sequences without tokens.
bool beyond_ort(const OpSpec& op, const Sample& s, int opset) {
  if (op.name != "attention" || opset < 23) return false;
  return std::any_of(s.inputs.begin(), s.inputs.end(), [](const Tensor& t) { return t.numel() == 0; });
}

TEST(ExportOps, AgreeWithOnnxRuntimeOnTheirSamples) {
  XY_NEEDS_ORT();
  Module nothing;
  std::vector<std::string> files;
  for (int opset : {17, 23}) {
    for (const OpSpec* op : registered_ops()) {
      if (!find_onnx_lowering(op->name) || !op->make_samples || op->name == "fake_quantize") continue;
      int index = 0;
      for (const Sample& s : op->make_samples()) {
        if (beyond_ort(*op, s, opset) || trains(s)) continue;
        SCOPED_TRACE(op->name + ", sample '" + s.name + "', opset " + std::to_string(opset));
        std::vector<ExportInput> inputs;
        Tensors values;
        std::vector<int> given;  // defined inputs
        for (size_t i = 0; i < s.inputs.size(); ++i) {
          if (!s.inputs[i].defined()) continue;
          const Tensor& t = s.inputs[i];
          given.push_back(int(i));
          values.push_back((is_float(t.dtype()) ? t.to(f32) : t).contiguous());
          inputs.push_back({"in" + std::to_string(i), values.back()});
        }
        auto run = [&](const Tensors& in) {
          Tensors all(s.inputs.size());
          for (size_t k = 0; k < in.size(); ++k) all[given[k]] = in[k];
          Tensors out = s.run(all);
          for (Tensor& t : out)
            if (is_float(t.dtype())) t = t.to(f32);
          return out;
        };
        const std::string file =
            temporary("op_" + op->name + "_" + std::to_string(index++) + "_" + std::to_string(opset) + ".onnx");
        try {
          export_onnx(nothing, run, inputs, file, {.opset = opset});
          Tensors expected = no_grad([&] { return run(values); });
          OrtSession session(file, {.optimize = false});
          Tensors fed;  // inputs that the samples do not use are no inputs of the graph
          for (const auto& port : session.inputs())
            for (size_t k = 0; k < inputs.size(); ++k)
              if (inputs[k].name == port.name) fed.push_back(values[k]);
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

// y = x * factor + 1, an operation from outside.
const OpSpec& kOutside = (new OpSpec("test_outside"))->samples([] { return std::vector<Sample>{}; });
Tensor outside(const Tensor& x, double factor) {
  Tensor y = no_grad([&] { return x * factor + 1.0; });
  return record(kOutside, y, {x}, {{"factor", factor}});
}

TEST(ExportOps, AnUnknownOperationIsNamedAndCanBeRegistered) {
  XY_NEEDS_ORT();
  Module nothing;
  auto forward = [](const Tensors& in) -> Tensors { return {outside(in[0], 2.5)}; };
  const std::string file = temporary("outside.onnx");
  try {
    export_onnx(nothing, forward, {{"x", floats({2, 3})}}, file);
    FAIL() << "exported an operation without a lowering";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("test_outside"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("register_onnx_lowering"), std::string::npos) << e.what();
  }
  register_onnx_lowering("test_outside", [](OnnxBuilder& onnx, const ExportedOp& op) -> std::vector<std::string> {
    return {onnx.node("Add", {onnx.node("Mul", {op.inputs[0], onnx.scalar(op.number("factor"))}), onnx.scalar(1)})};
  });
  Tensor x = floats({2, 3});
  export_onnx(nothing, forward, {{"x", x}}, file);
  EXPECT_LE(distance(run_onnx(file, {x})[0], x * 2.5 + 1.0), 1e-6);
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
