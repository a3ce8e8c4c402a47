// SPDX-License-Identifier: Apache-2.0
// What a run has trained, for generating, evaluating and exporting.
#pragma once
#include <map>
#include <memory>
#include <string>

#include "models/train/config.h"
#include "models/zoo/zoo.h"

namespace xylem {

struct Trained {
  TrainConfig config;
  std::unique_ptr<ZooModel> model;  // on the CPU, in eval mode; averaged weights where the run has an average
  int64_t step = 0;
  // Of the checkpoint (CheckpointParts::extra); val_loss, val_accuracy, val_step and the ranges of ranges_in() are
  // those of the run's latest evaluation.
  std::map<std::string, std::string> extra = {};
};

// `run` is a run folder, or one of its checkpoints. Quantized models come with frozen scales. Throws if there is no
// intact checkpoint; damaged ones that were passed over are named on standard error. The weights of a lazy model stay
// in the checkpoint until an operation reads them: run it inside a LazyScope (models/nn/lazy.h).
Trained load_trained(const std::string& run, bool lazy = false);

}  // namespace xylem
