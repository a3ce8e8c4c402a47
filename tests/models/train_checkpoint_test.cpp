// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "core/random/rng.h"
#include "models/checkpoint/reader.h"
#include "models/checkpoint/safetensors.h"
#include "models/nn/layers.h"
#include "models/optim/optimizers.h"
#include "tests/support.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

struct Net : Module {
  Linear fc{4, 3};
  BatchNorm2d norm{3};
  XY_MEMBERS(fc, norm)
};
struct OtherNet : Module {
  Linear fc{4, 5}, extra{5, 2};
  XY_MEMBERS(fc, extra)
};

struct Session {
  Net net;
  AdamW opt{net, {.lr = 0.1}};
  Ema ema{net, opt.params(), 0.9};
  LossScaler scaler{Device::cpu(), {.initial = 8}};
  CheckpointParts parts{net, &opt, &ema, &scaler};

  void step() {
    opt.zero_grad();
    scaler(sum(net.fc.weight * net.fc.weight)).backward();
    opt.clip(1, &scaler);
    opt.step();
    ema.update();
  }
  std::vector<std::vector<float>> values() const {
    std::vector<std::vector<float>> all;
    for (auto& part : {state_dict(net), opt.state(), ema.state(), scaler.state()})
      for (const NamedTensor& t : part) all.push_back(t.tensor.to_vector<float>());
    return all;
  }
};

class CheckpointTest : public testing::Test {
 protected:
  // Cuts or changes a file of a checkpoint.
  void truncate(const std::string& file) { fs::resize_file(file, fs::file_size(file) / 2); }
  void flip_byte(const std::string& file) {
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(-1, std::ios::end);
    char c = char(f.get() ^ 1);
    f.seekp(-1, std::ios::end);
    f.put(c);
  }
  Scratch scratch_;
  const std::string dir_ = scratch_.path();
};

TEST_F(CheckpointTest, RestoresEveryPart) {
  Session a;
  rng::seed(7);
  for (int i = 0; i < 3; ++i) a.step(), rng::next_step();
  a.parts.extra["data"] = "position 3";
  Checkpoints(dir_).save(3, a.parts);
  RngState random = rng::state();

  Session b;
  EXPECT_NE(a.values(), b.values());
  rng::seed(1);
  EXPECT_EQ(Checkpoints(dir_).resume(b.parts), 3);
  EXPECT_EQ(a.values(), b.values());
  EXPECT_EQ(rng::state(), random);
  EXPECT_EQ(b.parts.extra.at("data"), "position 3");
  EXPECT_EQ(b.ema.updates(), 3);
  a.step(), b.step();
  EXPECT_EQ(a.values(), b.values());
}

// Two networks with an optimizer each, groups, averages and one loss scaler.
struct Gan {
  Net generator, discriminator;
  static FlatOptions grouped() {
    return {.group = [](const NamedTensor& p) {
      return p.name == "fc.weight" ? ParamOptions{.lr = 0.3, .weight_decay = 0.1} : default_group(p);
    }};
  }
  AdamW of_generator{FlatParams(generator, grouped()), {.lr = 0.1}};
  SGD of_discriminator{FlatParams(discriminator, grouped()), 0.1, {.momentum = 0.9}};
  Ema average{generator, of_generator.params(), 0.9}, other_average{discriminator, of_discriminator.params(), 0.8};
  LossScaler scaler{Device::cpu(), {.initial = 8, .interval = 2}};
  CheckpointParts parts{
      .model = generator, .optimizer = &of_generator, .ema = &average, .scaler = &scaler, .others = {{"d", others()}}};
  CheckpointParts::Other others() {
    return {.model = &discriminator, .optimizer = &of_discriminator, .ema = &other_average};
  }

  void step() {
    of_generator.zero_grad(), of_discriminator.zero_grad();
    Tensor fake = generator.fc(ones({2, 4}));
    scaler(sum(discriminator.fc(cat({fake, fake}, 1).narrow(1, 0, 4)) * fake)).backward();
    of_generator.clip(1, &scaler), of_discriminator.clip(1, &scaler);
    of_generator.step(), of_discriminator.step();
    average.update(), other_average.update();
  }
  std::vector<std::vector<float>> values() const {
    std::vector<std::vector<float>> all;
    for (auto& part : {state_dict(generator), state_dict(discriminator), of_generator.state(), of_discriminator.state(),
                       average.state(), other_average.state(), scaler.state()})
      for (const NamedTensor& t : part) all.push_back(t.tensor.to_vector<float>());
    return all;
  }
};

TEST_F(CheckpointTest, TwoNetworksWithOptimizersOfTheirOwnResumeBitByBit) {
  Gan a;
  for (int i = 0; i < 3; ++i) a.step();
  a.parts.extra["data"] = "position 3";
  Checkpoints(dir_).save(3, a.parts);

  Gan b;
  b.step();
  EXPECT_NE(a.values(), b.values());
  EXPECT_EQ(Checkpoints(dir_).resume(b.parts), 3);
  EXPECT_EQ(a.values(), b.values());
  EXPECT_EQ(b.average.updates(), 3);
  EXPECT_EQ(b.other_average.updates(), 3);
  EXPECT_EQ(b.parts.extra, a.parts.extra);
  for (int i = 0; i < 3; ++i) a.step(), b.step();
  EXPECT_EQ(a.values(), b.values());

  // The first network's files are those of a run with one.
  Net alone;
  load_state_dict(alone, load_weights(find_checkpoint(dir_)), false);
  CheckpointParts one{alone};
  EXPECT_EQ(Checkpoints(dir_).resume(one), 3);
  Gan c;
  EXPECT_EQ(Checkpoints(dir_).resume(c.parts), 3);
  EXPECT_EQ(alone.fc.weight.to_vector<float>(), c.generator.fc.weight.to_vector<float>());
}

TEST_F(CheckpointTest, ANetworkNeedsANameThatAFileCanHave) {
  Gan a;
  a.parts.others["x/y"] = a.others();
  EXPECT_THAT(error_of([&] { Checkpoints(dir_).save(1, a.parts); }), HasSubstr("'x/y'"));
}

TEST_F(CheckpointTest, AFolderWithoutCheckpointsStartsAtTheBeginning) {
  Session a;
  EXPECT_EQ(Checkpoints(dir_).resume(a.parts), std::nullopt);
  EXPECT_THROW(find_checkpoint(dir_), Error);
}

TEST_F(CheckpointTest, KeepsTheNewest) {
  Session a;
  Checkpoints checkpoints(dir_, 2);
  for (int64_t step : {5, 10, 15, 20}) checkpoints.save(step, a.parts);
  checkpoints.finish();
  EXPECT_THAT(checkpoints.steps(), ElementsAre(15, 20));
}

TEST_F(CheckpointTest, FallsBackFromADamagedOne) {
  Session a;
  Checkpoints checkpoints(dir_, 0);
  std::vector<std::vector<std::vector<float>>> values;
  for (int64_t step = 1; step <= 6; ++step) {
    a.step();
    checkpoints.save(step, a.parts);
    values.push_back(a.values());
  }
  checkpoints.finish();
  flip_byte(checkpoints.path(6) + "/model.safetensors");
  truncate(checkpoints.path(5) + "/optimizer.safetensors");
  fs::remove(checkpoints.path(4) + "/DONE");
  fs::remove(checkpoints.path(3) + "/state.json");
  truncate(checkpoints.path(2) + "/DONE");

  Session b;
  std::vector<std::string> warnings;
  EXPECT_EQ(checkpoints.resume(b.parts, &warnings), 1);
  EXPECT_EQ(b.values(), values[0]);
  ASSERT_THAT(warnings, SizeIs(5));
  EXPECT_THAT(warnings[0], HasSubstr("model.safetensors does not match its checksum"));
  EXPECT_THAT(warnings[1], HasSubstr("optimizer.safetensors has"));
  EXPECT_THAT(warnings[2], HasSubstr("no DONE file"));
  EXPECT_THAT(warnings[3], HasSubstr("state.json is missing"));
  EXPECT_THAT(warnings[4], HasSubstr("step_00000002"));
}

TEST_F(CheckpointTest, OnlyDamagedOnesAreAnErrorAndNoBeginning) {
  Session a;
  Checkpoints checkpoints(dir_, 0);
  for (int64_t step : {1, 2}) checkpoints.save(step, a.parts);
  checkpoints.finish();
  flip_byte(checkpoints.path(2) + "/model.safetensors");
  fs::remove(checkpoints.path(1) + "/DONE");
  Session b;
  EXPECT_THAT(error_of([&] { checkpoints.resume(b.parts); }),
              AllOf(HasSubstr("every checkpoint of the run is damaged"),
                    HasSubstr(checkpoints.path(2) + ": model.safetensors does not match its checksum"),
                    HasSubstr(checkpoints.path(1) + ": it has no DONE file"), HasSubstr("--fresh")));
  write_file(checkpoints.path(2) + "/model.safetensors", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_THAT(Checkpoints::damage(checkpoints.path(2)), HasSubstr("model.safetensors is a Git LFS pointer"));
}

// One line for each thing that the checkpoint was saved without, however many tensors it has.
TEST_F(CheckpointTest, AnotherConfigurationIsToldInALine) {
  Net net;
  SGD sgd(net, 0.1, {.momentum = 0.9});
  CheckpointParts plain{net, &sgd};
  Checkpoints(dir_).save(1, plain);
  Session s;
  std::string error = error_of([&] { Checkpoints(dir_).resume(s.parts); });
  EXPECT_THAT(error, AllOf(HasSubstr("no 'exp_avg' of the optimizer: it was saved with another optimizer.name"),
                           HasSubstr("no loss scale")));
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 3) << error;

  CheckpointParts averaged{net, &sgd, &s.ema};
  EXPECT_THAT(error_of([&] { Checkpoints(dir_).resume(averaged); }),
              HasSubstr("no averaged weights: it was saved with ema.decay = 0"));
}

TEST_F(CheckpointTest, AnotherModelListsTheDifferences) {
  Session a;
  Checkpoints(dir_).save(1, a.parts);
  OtherNet other;
  auto before = other.fc.weight.to_vector<float>();
  CheckpointParts parts{other};
  std::string error = error_of([&] { Checkpoints(dir_).resume(parts); });
  EXPECT_THAT(error, HasSubstr("step_00000001"));
  EXPECT_THAT(error, HasSubstr("extra.weight"));       // missing
  EXPECT_THAT(error, HasSubstr("norm.running_mean"));  // unexpected
  EXPECT_THAT(error, HasSubstr("fc.weight: the model has [5, 4]"));
  EXPECT_EQ(other.fc.weight.to_vector<float>(), before);
}

TEST_F(CheckpointTest, NoSpaceLeavesTheEarlierOneIntact) {
  Session a;
  Checkpoints checkpoints(dir_, 1);
  checkpoints.save(1, a.parts);
  checkpoints.finish();
  auto values = a.values();
  a.step();

  signal(SIGXFSZ, SIG_IGN);
  rlimit old, tiny;
  getrlimit(RLIMIT_FSIZE, &old);
  tiny = old;
  tiny.rlim_cur = 256;
  setrlimit(RLIMIT_FSIZE, &tiny);
  std::string message;
  try {
    checkpoints.save(2, a.parts);
    checkpoints.finish();
  } catch (const Error& e) {
    message = e.what();
  }
  setrlimit(RLIMIT_FSIZE, &old);

  EXPECT_THAT(message, HasSubstr("cannot save a checkpoint at step 2"));
  EXPECT_THAT(message, HasSubstr("the one of step 1 is intact"));
  Session b;
  EXPECT_EQ(checkpoints.resume(b.parts), 1);
  EXPECT_EQ(b.values(), values);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_ + "/checkpoints"), {}), 1);  // no leftovers
}

TEST_F(CheckpointTest, IsFoundByRunAndByFolder) {
  Session a;
  Checkpoints checkpoints(dir_);
  checkpoints.save(1, a.parts);
  checkpoints.save(2, a.parts);
  checkpoints.finish();
  EXPECT_EQ(find_checkpoint(dir_), checkpoints.path(2));
  EXPECT_EQ(find_checkpoint(checkpoints.path(1)), checkpoints.path(1));
  flip_byte(checkpoints.path(2) + "/model.safetensors");
  std::vector<std::string> warnings;
  EXPECT_EQ(find_checkpoint(dir_, &warnings), checkpoints.path(1));
  EXPECT_THAT(warnings, SizeIs(1));
  EXPECT_THROW(find_checkpoint(checkpoints.path(2)), Error);
}

}  // namespace
}  // namespace xylem
