// SPDX-License-Identifier: Apache-2.0
// The training loop behind `xylem train`.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "models/train/config.h"

namespace xylem {

// What to do with a run folder that already has checkpoints.
enum class Start {
  automatic,  // go on from the newest intact checkpoint, or begin
  resume,     // go on; an error if there is no checkpoint
  fresh,      // move the folder aside (to <dir>.1, <dir>.2, ...) and begin
};

struct TrainResult {
  int64_t step = 0;  // steps done, earlier sessions included
  bool interrupted = false;
  std::string checkpoint;  // the newest, or ""
  std::optional<double> val_loss = {}, val_accuracy = {};
  double seconds = 0;
};

// Trains as configured and leaves in run.dir: config.toml (resolved), checkpoints/, metrics.jsonl, loss.svg and
// tensorboard/. Throws Error; what was saved before stays whole. The progress goes to standard output, ending with a
// line "final: step=... val_loss=... [val_accuracy=... [val_mean_iou=...]] seconds=...".
// `trace`: a file for a trace of all ranks (distributed/record/trace.h).
TrainResult train(const TrainConfig& config, Start start = Start::automatic, const std::string& trace = {});

// Lets train() finish its step, save a checkpoint and return with interrupted = true. May be called from a signal
// handler.
void request_stop();

}  // namespace xylem
