// SPDX-License-Identifier: Apache-2.0
// From float to int8: a depthwise network is trained, quantized after training, fine-tuned with quantization, and
// written for two runtimes. Whoever runs the files gets the accuracy printed here.
//   qat_export                                       on images it makes itself
//   qat_export /usr/share/datasets/fashion-mnist 3   on the IDX files of a folder, for 3 epochs
#include <xylem/xylem.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numbers>
#include <string>

namespace xy = xylem;

std::shared_ptr<xy::Dataset> load(const std::string& folder, const std::string& part) {
  if (folder.empty()) {  // stripes in noise, whose width says the class
    xy::Tensor labels = (10.0 * xy::rand({1024})).to(xy::i64), rows = xy::arange(28, xy::f32).view({28, 1});
    xy::Tensor waves = xy::sin(rows * (0.3 * labels.to(xy::f32) + 0.2).view({-1, 1, 1, 1}));
    return xy::array_dataset((100.0 * xy::rand({1024, 1, 28, 28}) + 14.0 * waves + 14.0).to(xy::u8), labels, 10);
  }
  return xy::array_dataset(xy::read_idx(folder + part + "-images-idx3-ubyte.gz").unsqueeze(1),
                           xy::read_idx(folder + part + "-labels-idx1-ubyte.gz"), 10);
}

void train(xy::ZooModel& model, xy::Loader& data, int64_t steps, double lr) {
  xy::AdamW optimizer(model, {.lr = lr});
  for (int64_t step = 0; step < steps; ++step) {
    optimizer.set_lr(lr * 0.5 * (1 + std::cos(std::numbers::pi * double(step) / double(steps))));
    auto [images, labels, ids] = data.next();
    optimizer.zero_grad();
    model.loss(images, labels).backward();
    optimizer.clip(1);
    optimizer.step();
  }
}

// The share of images that `classify` gets right.
template <class F>
double accuracy(xy::Loader& data, F&& classify) {
  xy::NoGrad guard;
  double right = 0;
  data.set_position(0);
  for (int64_t i = 0; i < data.steps_per_epoch(); ++i) {
    auto [images, labels, ids] = data.next();
    right += xy::mean(xy::eq(xy::argmax(classify(images)), labels).to(xy::f32)).item();
  }
  return 100 * right / double(data.steps_per_epoch());
}

void run(int argc, char** argv) {
  std::string folder = argc > 1 ? argv[1] : "";
  xy::rng::seed(1);
  xy::AugmentOptions scale{.mean = {0.286f}, .stddev = {0.353f}};
  xy::Loader training(load(folder, "/train"), {.sampler = {.batch = 64}, .augment = scale});
  xy::Loader test(load(folder, "/t10k"), {.sampler = {.batch = 64, .shuffle = false}, .augment = scale});
  int64_t steps = (argc > 2 ? std::stoi(argv[2]) : 6) * training.steps_per_epoch();

  auto model = xy::zoo::create("mobilenet_small", {{"width", int64_t(16)}, {"blocks", int64_t(1)}});
  auto score = [&] {
    model->eval();
    double percent = accuracy(test, *model);
    model->train();
    return percent;
  };
  train(*model, training, steps, 1e-2);
  std::printf("float                  %.2f %%\n", score());

  xy::Tensor example = training.next().input;
  xy::quantize::Summary summary = xy::quantize::prepare(*model, [&] { (*model)(example); });
  xy::quantize::calibrate(*model, [&] {
    for (int i = 0; i < 8; ++i) (*model)(training.next().input);
  });
  std::printf("int8 after training    %.2f %%   %zu layers quantized, %d batch norms folded\n", score(),
              summary.layers.size(), summary.folded);
  train(*model, training, steps / 2, 5e-4);
  xy::quantize::freeze(*model);
  double tuned = score();
  std::printf("int8 after fine-tuning %.2f %%\n", tuned);

  for (xy::Profile profile : {xy::Profile::exact, xy::Profile::trt10}) {
    std::string file = std::string("qat_") + xy::name_of(profile) + ".onnx";
    xy::export_onnx(*model, [&](const xy::Tensors& in) -> xy::Tensors { return {(*model)(in[0])}; },
                    {{.name = "image", .example = example, .dynamic = {{0, "batch"}}}}, file, {.profile = profile});
    std::printf("%s: %ld bytes", file.c_str(), long(std::filesystem::file_size(file)));
    if (xy::OrtSession::available()) {
      xy::OrtSession session(file);
      double theirs = accuracy(test, [&](const xy::Tensor& images) { return session.run({images})[0]; });
      std::printf(", %.2f %% in ONNX Runtime", theirs);
      XY_CHECK(std::abs(theirs - tuned) < 0.5, file, " gives ", theirs, " % in ONNX Runtime, not ", tuned);
    }
    std::puts("");
  }
}

int main(int argc, char** argv) {
  return xy::guarded_main([&] { run(argc, argv); });  // an error is a sentence, and code 1
}
