// SPDX-License-Identifier: Apache-2.0
// Quantization in a training run: what [quantize] of a configuration asks for.
#pragma once
#include <functional>
#include <string>

#include "models/quantize/quantize.h"
#include "models/train/config.h"
#include "models/zoo/zoo.h"

namespace xylem {

bool quantizes(const TrainConfig& config);

// Puts quantizers into a new model, if the configuration wants any. Part of make_model().
quantize::Summary prepare_quantization(ZooModel& model, const TrainConfig& config);

// The weights of another run (run.init), from which this one begins: a plain run for a quantized one too.
void load_initial_weights(ZooModel& model, const TrainConfig& config);

// At step quantize.start: sets the scales, each rank from its own batches. `run` runs the model on the next batch.
void calibrate_now(ZooModel& model, const TrainConfig& config, const std::function<void()>& run,
                   const Group* group = nullptr);
int64_t freeze_step(const TrainConfig& config);

// Once the weights of a checkpoint of step `step` are loaded: the quantizers go on as they were then, or, for a model
// that is done with training, with frozen scales.
void restore_quantization(ZooModel& model, const TrainConfig& config, int64_t step);
void finish_quantization(ZooModel& model, const TrainConfig& config, int64_t step);

}  // namespace xylem
