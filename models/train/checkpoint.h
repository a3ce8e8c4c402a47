// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a run. One is a folder
//
//   <run>/checkpoints/step_00001000/
//     model.safetensors      parameters and buffers, under the names of state_dict()
//     optimizer.safetensors  the optimizer's tensors ("exp_avg.<parameter>", ...) and the loss scaler's
//     ema.safetensors        averaged parameters, where the run has an average
//     state.json             step, random numbers, data position and whatever else the run adds
//     DONE                   size and CRC-32C of each file; written last
//
// written under another name and renamed, so that a folder of that name is whole whenever the process or the machine
// stops.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/train/ema.h"
#include "models/train/optimizer.h"

namespace xylem {

// What a checkpoint holds. The random number state is always part of it.
struct CheckpointParts {
  Module& model;
  Optimizer* optimizer = nullptr;
  Ema* ema = nullptr;
  LossScaler* scaler = nullptr;
  std::map<std::string, std::string> extra = {};  // kept in state.json: data position, hash of the configuration
};

class Checkpoints {
 public:
  // `keep` newest ones stay; 0 keeps all.
  explicit Checkpoints(std::string run_dir, int64_t keep = 3);

  // Throws when it cannot be written (no space left); earlier checkpoints are untouched then. Removes what earlier
  // saves that were cut short have left behind.
  void save(int64_t step, const CheckpointParts& parts);

  // Restores the newest intact checkpoint and returns its step; nothing if there is none. A damaged one is passed over
  // and named in `warnings`. Throws, listing the differences, when the checkpoint is of another model.
  std::optional<int64_t> resume(CheckpointParts& parts, std::vector<std::string>* warnings = nullptr);

  std::vector<int64_t> steps() const;  // ascending, damaged ones included
  std::string path(int64_t step) const;

  // What is wrong with a checkpoint folder, or "".
  static std::string damage(const std::string& folder);

 private:
  std::string dir_;
  int64_t keep_;
};

// The newest intact checkpoint folder of a run, or of a folder that is itself a checkpoint. Throws if there is none.
std::string find_checkpoint(const std::string& path, std::vector<std::string>* warnings = nullptr);

}  // namespace xylem
