// SPDX-License-Identifier: Apache-2.0
// A configuration's model and data.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "data/loader.h"
#include "models/train/config.h"
#include "models/zoo/zoo.h"

namespace xylem {

struct Task {
  std::unique_ptr<ZooModel> model;
  std::unique_ptr<Loader> train, val;  // val is null without data.val
  bool language = false;               // tokens and their successors, rather than images and labels
  int64_t units_per_sample = 1;        // tokens in a sequence
  const char* unit() const { return language ? "tokens" : "images"; }
};

// Builds the model on the CPU in f32 and opens the data, whose batches arrive on `device`.
Task make_task(const TrainConfig& config, Device device);
std::unique_ptr<ZooModel> make_model(const TrainConfig& config);

struct Evaluation {
  double loss = 0;                      // mean over targets
  std::optional<double> accuracy = {};  // of classifiers
};
// Over the validation set, or its first `batches` batches; the model in eval mode, nothing recorded.
Evaluation evaluate(Task& task, DType dtype, int64_t batches = 0);

}  // namespace xylem
