// SPDX-License-Identifier: Apache-2.0
// Trains a residual network on images with augmentation, momentum, an average of the weights, and bf16 on a GPU.
//   train_resnet [TRAIN.h5 TEST.h5 [EPOCHS]]     without arguments: a few steps on images it makes itself
// `xylem data fashion-mnist` and `xylem data images` write such files.
#include <xylem/xylem.h>

#include <cstdio>
#include <string>

namespace xy = xylem;

// Colour images of eight classes: the channels in which the left and the right half are bright.
std::shared_ptr<xy::Dataset> made_images(int64_t count) {
  xy::Tensor labels = (8.0 * xy::rand({count})).to(xy::i64);
  xy::Tensor images = 80.0 * xy::rand({count, 3, 32, 32});
  auto values = labels.to_vector<int64_t>();
  for (int64_t i = 0; i < count; ++i)
    for (int64_t half = 0; half < 2; ++half) {
      int64_t channel = half == 0 ? values[size_t(i)] % 3 : values[size_t(i)] / 3;
      images[i][channel].narrow(1, 16 * half, 16).fill_(160);
    }
  return xy::array_dataset(images.to(xy::u8), labels, 8);
}

void run(int argc, char** argv) {
  bool files = argc > 2;
  auto train_set = files ? xy::hdf5_images(argv[1]) : made_images(512);
  auto test_set = files ? xy::hdf5_images(argv[2]) : made_images(128);
  int64_t epochs = argc > 3 ? std::stoll(argv[3]) : files ? 10 : 3, batch = files ? 128 : 32;
  xy::Device device = xy::Device::parse("auto");
  xy::rng::seed(1);

  int64_t channels = train_set->spec().input[0];
  std::vector<float> mean(size_t(channels), 0.45f), stddev(size_t(channels), 0.25f);
  xy::Loader train(train_set, {.sampler = {.batch = batch},
                               .augment = {.crop_padding = 4, .mean = mean, .stddev = stddev},
                               .threads = 2,
                               .device = device});
  xy::Loader test(test_set, {.sampler = {.batch = batch, .shuffle = false, .drop_last = false},
                             .augment = {.mean = mean, .stddev = stddev},
                             .device = device});

  // ResNet-18 with the stem for small images; half as wide where there is no GPU.
  xy::zoo::ResNetConfig config = xy::zoo::resnet18_config();
  config.small_images = true;
  config.channels = channels;
  config.classes = train_set->spec().classes;
  config.width = device.is_cuda() ? 64 : 8;
  xy::zoo::ResNet model(config);
  model.to(device);
  if (device.is_cuda()) model.to(xy::bf16);
  std::printf("%.2f million parameters\n", double(model.num_parameters()) / 1e6);

  int64_t steps = epochs * train.steps_per_epoch();
  xy::SGD optimizer(model, 0.05, {.momentum = 0.9, .weight_decay = 5e-4, .nesterov = true});
  xy::Schedule schedule{.kind = xy::Schedule::Kind::cosine, .lr = 0.05, .total = steps, .warmup = steps / 10};
  xy::Ema average(model, optimizer.params(), 0.998);

  xy::TrainStep train_step(model, optimizer, {.clip = 2, .label_smoothing = 0.1, .average = &average});

  for (int64_t step = 0; step < steps; ++step) {
    optimizer.set_lr(schedule(step));
    train_step.run(train);
    if ((step + 1) % 100 == 0 || (step + 1) % train.steps_per_epoch() == 0)
      std::printf("step %5ld of %ld  loss %.4f  lr %.3f\n", long(step + 1), long(steps), train_step.loss().item(),
                  optimizer.lr());
  }

  std::printf("accuracy %.1f %%", 100 * *xy::evaluate(model, test).accuracy);
  xy::Ema::Scope averaged(average);
  std::printf(", of the averaged weights %.1f %%\n", 100 * *xy::evaluate(model, test).accuracy);
  xy::save_pretrained(model, "resnet.safetensors");  // under torchvision's names
}

int main(int argc, char** argv) {
  return xy::guarded_main([&] { run(argc, argv); });  // an error is a sentence, and code 1
}
