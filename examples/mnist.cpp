// SPDX-License-Identifier: Apache-2.0
// Hello world: a convolutional network learns to tell ten classes of 28x28 images apart.
//   mnist                                        on images it makes itself
//   mnist /usr/share/datasets/fashion-mnist 3    on the IDX files of a folder, for 3 epochs
#include <xylem/xylem.h>

#include <cstdio>
#include <string>

namespace xy = xylem;

struct Net : xy::Module {
  xy::Conv2d conv1{1, 16, 3, {.padding = 1}}, conv2{16, 32, 3, {.padding = 1}};
  xy::Linear hidden{32 * 7 * 7, 128}, out{128, 10};
  XY_MEMBERS(conv1, conv2, hidden, out)
  xy::Tensor operator()(const xy::Tensor& x) const {
    xy::Tensor h = xy::max_pool2d(xy::relu(conv1(x)), {});
    return out(xy::relu(hidden(xy::max_pool2d(xy::relu(conv2(h)), {}).flatten(1))));
  }
};

std::shared_ptr<xy::Dataset> load(const std::string& folder, const std::string& part) {
  if (folder.empty()) {  // noise with a bright bar whose height says the class
    xy::Tensor labels = (10.0 * xy::rand({2048})).to(xy::i64);
    xy::Tensor bar = xy::eq(xy::arange(28).view({1, 1, 28, 1}), (2.0 * labels + 4).to(xy::i64).view({-1, 1, 1, 1}));
    return xy::array_dataset((100.0 * (xy::rand({2048, 1, 28, 28}) + bar.to(xy::f32))).to(xy::u8), labels, 10);
  }
  return xy::array_dataset(xy::read_idx(folder + part + "-images-idx3-ubyte.gz").unsqueeze(1),
                           xy::read_idx(folder + part + "-labels-idx1-ubyte.gz"), 10);
}

void run(int argc, char** argv) {
  std::string folder = argc > 1 ? argv[1] : "";
  int epochs = argc > 2 ? std::stoi(argv[2]) : 1;
  xy::Device device = xy::Device::parse("auto");
  xy::Loader train(load(folder, "/train"), {.sampler = {.batch = 64}, .device = device});
  xy::Loader test(load(folder, "/t10k"), {.sampler = {.batch = 64, .shuffle = false}, .device = device});

  Net net;
  net.to(device);
  xy::AdamW optimizer(net, {.lr = 1e-3});
  int64_t steps = epochs * train.steps_per_epoch();
  for (int64_t step = 1; step <= steps; ++step) {
    auto [images, labels, ids] = train.next();
    optimizer.zero_grad();
    xy::Tensor loss = xy::cross_entropy(net(images), labels);
    loss.backward();
    optimizer.step();
    if (step % 100 == 0 || step == steps) std::printf("step %4ld  loss %.3f\n", long(step), loss.item());
  }

  xy::NoGrad guard;
  double right = 0;
  for (int64_t i = 0; i < test.steps_per_epoch(); ++i) {
    auto [images, labels, ids] = test.next();
    right += xy::mean(xy::eq(xy::argmax(net(images)), labels).to(xy::f32)).item();
  }
  std::printf("accuracy on unseen images: %.1f %%\n", 100 * right / double(test.steps_per_epoch()));
}

int main(int argc, char** argv) {
  return xy::guarded_main([&] { run(argc, argv); });  // an error is a sentence, and code 1
}
