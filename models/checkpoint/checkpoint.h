// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a run. One is a folder
//
//   <run>/checkpoints/step_00001000/
//     model.safetensors      parameters and buffers, under the names of state_dict()
//     optimizer.safetensors  the optimizer's tensors ("exp_avg.<parameter>", ...) and the loss scaler's
//     ema.safetensors        averaged parameters, where the run has an average
//     state.json             step, random numbers, data position and whatever else the run adds
//     d.model.safetensors, d.optimizer.safetensors, ...   the same of a further network "d" (CheckpointParts::others)
//     DONE                   size and CRC-32C of each file; written last
//
// written under another name and renamed, so that a folder of that name is whole whenever the process or the machine
// stops. Several processes write model.rank0000.safetensors, ... instead, each its part, and manifest.json, which says
// where every range of every tensor lies: any number of processes reads it again.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/checkpoint/piece.h"
#include "models/optim/ema.h"
#include "models/optim/optimizer.h"

namespace xylem {
namespace checkpoint {
class Snapshot;
}

// What a checkpoint holds. The random number state is always part of it.
struct CheckpointParts {
  // Another network of the same run (the discriminator beside the generator), or another optimizer or average of
  // `model`; what is null is not saved. A scaler that networks share is saved once, by whichever names it.
  struct Other {
    Module* model = nullptr;
    Optimizer* optimizer = nullptr;
    Ema* ema = nullptr;
    LossScaler* scaler = nullptr;
  };

  Module& model;
  Optimizer* optimizer = nullptr;
  Ema* ema = nullptr;
  LossScaler* scaler = nullptr;
  std::map<std::string, std::string> extra = {};  // kept in state.json: data position, hash of the configuration
  std::map<std::string, Other> others = {};       // by name, which becomes part of file names
};

// The processes that save together; alone by default.
struct Peers {
  int rank = 0, size = 1;
  // Collective: the texts of all ranks, in order (Group::gather_strings).
  std::function<std::vector<std::string>(const std::string&)> gather = {};
};

// Where the copy of the state lies while it is written.
enum class SaveFrom {
  own_memory,     // a save that is cut short is lost
  shared_memory,  // /dev/shm (or XY_SNAPSHOT_DIR) outlives killed processes: resume() finishes the save, if the hosts
                  // are the same. Without room there a warning is printed, and own memory serves.
};

// With peers, all of them make the same calls at the same steps.
class Checkpoints {
 public:
  // `keep` newest ones stay; 0 keeps all. Each process writes at most `mb_per_second` (0: as fast as it goes), so that
  // saving leaves room on a file system or network that others use.
  explicit Checkpoints(std::string run_dir, int64_t keep = 3, Peers peers = {},
                       SaveFrom save_from = SaveFrom::own_memory, double mb_per_second = 0);
  ~Checkpoints();  // waits for the save under way; its error goes to standard error

  // Copies the state into host memory, which is kept for the next time, and returns; a thread writes it meanwhile. A
  // save still under way is waited for. When one cannot be written (no space left), the next call of save(), saved() or
  // finish() throws; earlier checkpoints are untouched then. Removes what saves that were cut short have left behind.
  void save(int64_t step, const CheckpointParts& parts);

  // The save that was written to the end since the last call.
  struct Saved {
    int64_t step = 0;
    uint64_t bytes = 0;                          // by this process
    double waited = 0, copied = 0, seconds = 0;  // for the save before; by save(); from its return to the end
    std::string str() const;                     // a sentence for the log
  };
  std::optional<Saved> saved();
  std::optional<Saved> finish();  // waits: the last save is whole, on all ranks, when it returns

  // Restores the newest intact checkpoint and returns its step; nothing if there is none. `notes` tell what it did
  // besides: finished a save that an earlier process had begun, passed over a damaged checkpoint. Throws, saying what
  // is damaged, when there are checkpoints but no intact one; and, listing the differences, when the checkpoint is of
  // another model.
  std::optional<int64_t> resume(CheckpointParts& parts, std::vector<std::string>* notes = nullptr);

  std::vector<int64_t> steps() const;  // ascending, damaged ones included
  std::string path(int64_t step) const;

  // What is wrong with a checkpoint folder, or "".
  static std::string damage(const std::string& folder);

 private:
  void collect();
  std::vector<std::string> gather(const std::string& mine) const;

  std::string dir_, attempt_;
  int64_t keep_;
  Peers peers_;
  SaveFrom save_from_;
  double mb_per_second_;
  std::unique_ptr<checkpoint::Snapshot> snapshot_;
  std::future<Saved> writing_;
  std::optional<Saved> unreported_;
  std::atomic<bool> hurry_ = false;
};

// The newest intact checkpoint folder of a run, or of a folder that is itself a checkpoint. Throws if there is none.
// Damaged ones that were passed over are named in `warnings`.
std::string find_checkpoint(const std::string& path, std::vector<std::string>* warnings = nullptr);

}  // namespace xylem
