// SPDX-License-Identifier: Apache-2.0
// What quantization costs a narrow depthwise network, and that training with it brings that back.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numbers>

#include "core/autograd/autograd.h"
#include "core/random/rng.h"
#include "data/gzip.h"
#include "data/idx.h"
#include "models/optim/optimizers.h"
#include "models/quantize/quantize.h"
#include "models/zoo/mobilenet.h"
#include "ops/ops.h"

namespace xylem {
namespace {

const std::string kFolder = "/usr/share/datasets/fashion-mnist/";  // Debian's dataset-fashion-mnist

struct Images {
  Tensor x, y;
  explicit Images(const std::string& part)
      : x(((read_idx(kFolder + part + "-images-idx3-ubyte.gz").to(f32) * (1 / 255.0) - 0.286) * (1 / 0.353))
              .unsqueeze(1)),
        y(read_idx(kFolder + part + "-labels-idx1-ubyte.gz").to(i64)) {}
};

double accuracy(zoo::MobileNet& model, const Images& test) {
  NoGrad guard;
  model.eval();
  double right = 0;
  for (int64_t i = 0; i < 10000; i += 500)
    right += sum(eq(argmax(model(test.x.narrow(0, i, 500))), test.y.narrow(0, i, 500)).to(f32)).item();
  model.train();
  return right / 100;
}

void train(zoo::MobileNet& model, const Images& data, int64_t steps, double lr, uint64_t seed) {
  AdamW optimizer(model, {.lr = lr});
  for (int64_t step = 0; step < steps; ++step) {
    Tensor batch = sample_index({64}, data.y.numel(), seed + uint64_t(step));
    double warm = std::min(1.0, double(step + 1) / 50);
    optimizer.set_lr(lr * warm * 0.5 * (1 + std::cos(std::numbers::pi * double(step) / double(steps))));
    optimizer.zero_grad();
    model.loss(index_select(data.x, 0, batch), index_select(data.y, 0, batch)).backward();
    optimizer.clip(1);
    optimizer.step();
  }
}

// One scale for each weight tensor, the largest value as threshold, batch norms folded: the plain setting, and the one
// that depthwise networks suffer from most. examples/configs/mobilenet_fashion*.toml are the same at full length.
TEST(QuantizedAccuracy, TrainingBringsBackWhatQuantizationCosts) {
  if (!std::filesystem::exists(kFolder)) GTEST_SKIP() << "Fashion-MNIST is not installed";
  if (!built_with_zlib()) GTEST_SKIP() << "its files are compressed, and this is a build without zlib";
  rng::seed(1);
  Images data("train"), test("t10k");
  zoo::MobileNet model({.width = 8, .blocks = 1});
  train(model, data, 400, 1e-2, 1000);
  double plain = accuracy(model, test);

  Tensor example = data.x.narrow(0, 0, 2);
  quantize::prepare(model, [&] { model(example); }, {.per_channel = false, .small_layers = true});
  quantize::calibrate(model, [&] { model(data.x.narrow(0, 0, 512)); });
  double after = accuracy(model, test);
  train(model, data, 200, 1e-2, 5000);
  quantize::freeze(model);
  double tuned = accuracy(model, test);
  std::printf("fp32 %.2f %%, int8 after training %.2f %%, int8 after fine-tuning %.2f %%\n", plain, after, tuned);
  RecordProperty("fp32", std::to_string(plain));
  RecordProperty("ptq", std::to_string(after));
  RecordProperty("qat", std::to_string(tuned));
  EXPECT_GT(plain, 65);
  EXPECT_LT(after, plain - 1);
  EXPECT_GT(tuned, plain - 0.3);
}

}  // namespace
}  // namespace xylem
