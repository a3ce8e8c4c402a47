// SPDX-License-Identifier: Apache-2.0
// A configuration's model and data.
#pragma once
#include <memory>

#include "data/loader.h"
#include "models/loop/team.h"
#include "models/train/config.h"
#include "models/zoo/zoo.h"

namespace xylem {

struct Task {
  std::unique_ptr<ZooModel> model;
  std::unique_ptr<Loader> train, val;  // val is null without data.val
  int64_t units_per_sample = 1;        // tokens in a sequence
  int64_t val_batch = 0;               // samples in a validation batch of one process
  bool language() const { return model->task() == RecordSpec::Task::language_modelling; }
  const char* unit() const { return language() ? "tokens" : "images"; }
  Shape sample_shape() const;  // of an input, without the batch
};

// Builds the model on the CPU in f32 and opens this rank's share of the data, whose batches arrive on `device`. The
// samples of a step do not depend on the number of ranks.
Task make_task(const TrainConfig& config, Device device, const Team& team = Team(Group()));
std::unique_ptr<ZooModel> make_model(const TrainConfig& config);

enum class DataSplit { train, val };
// The data of a model that exists already. Throws if there is no such file, or it is not what the model is for.
std::unique_ptr<Loader> open_data(const TrainConfig& config, const ZooModel& model, DataSplit split, Device device,
                                  const Team& team = Team(Group()));

}  // namespace xylem
