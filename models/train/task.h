// SPDX-License-Identifier: Apache-2.0
// A configuration's model and data.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "data/loader.h"
#include "models/loop/team.h"
#include "models/zoo/zoo.h"

namespace xylem {

struct Task {
  std::unique_ptr<ZooModel> model;
  std::unique_ptr<Loader> train, val;  // val is null without data.val
  bool language = false;               // tokens and their successors, rather than images and labels
  int64_t units_per_sample = 1;        // tokens in a sequence
  int64_t val_batch = 0;               // samples in a validation batch of one process
  const char* unit() const { return language ? "tokens" : "images"; }
};

// Builds the model on the CPU in f32 and opens this rank's share of the data, whose batches arrive on `device`. The
// samples of a step do not depend on the number of ranks.
Task make_task(const TrainConfig& config, Device device, const Team& team = Team(Group()));
std::unique_ptr<ZooModel> make_model(const TrainConfig& config);

struct Evaluation {
  double loss = 0;                      // mean over targets
  std::optional<double> accuracy = {};  // of classifiers
};
// Over the validation set, or its first `batches` batches as one process counts them; the model in eval mode, nothing
// recorded. Every rank takes a share, the same number of forward passes each, and all get the result.
Evaluation evaluate(Task& task, DType dtype, int64_t batches = 0, const Team& team = Team(Group()));

}  // namespace xylem
