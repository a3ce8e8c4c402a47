// SPDX-License-Identifier: Apache-2.0
// A model's loss and metrics on a data set.
#pragma once
#include <optional>

#include "data/loader.h"
#include "distributed/group/group.h"
#include "models/zoo/model.h"

namespace xylem {

// Means over the counted targets of all samples, not over batches.
struct Evaluation {
  double loss = 0;                      // cross-entropy
  std::optional<double> accuracy = {};  // share of the labels, or pixels, whose likeliest class is right
  std::optional<double> mean_iou = {};  // segmentation: intersection over union, averaged over the classes that occur
};

struct EvaluateOptions {
  int64_t samples = 0;          // the first so many of the data set; 0: all
  int64_t ignore_index = -100;  // targets of this value do not count
  Group group = {};             // ranks that take a share each and all get the result
};

// The model in eval mode, nothing recorded. The loader goes through its data set once, from the start and in order
// ({.shuffle = false, .drop_last = false}, and .rank and .world of the group); all ranks take equally many passes.
Evaluation evaluate(ZooModel& model, Loader& loader, const EvaluateOptions& options = {});

}  // namespace xylem
