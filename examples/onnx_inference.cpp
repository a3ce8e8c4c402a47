// SPDX-License-Identifier: Apache-2.0
// From a trained network to an ONNX file and back into a program that only runs it.
//   onnx_inference                export a small network to classifier.onnx, then run it
//   onnx_inference MODEL.onnx     run any model on random inputs, dynamic dimensions set to 2
#include <xylem/xylem.h>

#include <cstdio>
#include <string>

namespace xy = xylem;

struct Net : xy::Module {
  xy::Conv2d conv{1, 8, 3, {.padding = 1, .bias = false}};
  xy::BatchNorm2d norm{8};
  xy::Linear out{8, 10};
  XY_MEMBERS(conv, norm, out)
  xy::Tensor operator()(const xy::Tensor& x) const {
    return out(xy::adaptive_avg_pool2d(xy::relu(norm(conv(x))), {1, 1}).flatten(1));
  }
};

void run(int argc, char** argv) {
  std::string file = argc > 1 ? argv[1] : "classifier.onnx";
  if (argc == 1) {
    Net net;  // train it here
    xy::ExportReport report = xy::export_onnx(net, {{"images", xy::rand({1, 1, 28, 28}), {{0, "batch"}}}}, file);
    std::printf("%s: opset %d, %ld nodes, %ld bytes of weights\n", file.c_str(), report.opset, long(report.nodes),
                long(report.weight_bytes));
    for (const std::string& note : report.notes) std::printf("  %s\n", note.c_str());
  }
  if (!xy::OrtSession::available()) {
    std::printf("%s\n", xy::OrtSession::why_unavailable().c_str());
    return;
  }

  xy::OrtSession session(file);
  xy::Tensors inputs;
  for (const auto& port : session.inputs()) {
    xy::Shape shape;
    for (int64_t size : port.shape) shape.push_back(size < 0 ? 2 : size);
    inputs.push_back(xy::rand(shape).to(port.dtype));
    std::printf("in   %s %s\n", port.name.c_str(), shape.str().c_str());
  }
  xy::Tensors outputs = session.run(inputs);
  for (size_t i = 0; i < outputs.size(); ++i)
    std::printf("out  %s %s\n", session.outputs()[i].name.c_str(), outputs[i].shape().str().c_str());
}

int main(int argc, char** argv) {
  return xy::guarded_main([&] { run(argc, argv); });  // an error is a sentence, and code 1
}
