// SPDX-License-Identifier: Apache-2.0
// Reads a checkpoint folder that any number of processes wrote. Files are memory-mapped: a rank that wants its range of
// a tensor touches the bytes of that range alone.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/random/rng.h"
#include "models/checkpoint/piece.h"

namespace xylem {

struct CheckpointInfo {
  int64_t step = 0;
  int world = 1;              // processes that wrote it
  std::vector<RngState> rng;  // one per process
  std::optional<int64_t> ema_updates;
  std::map<std::string, std::string> extra;  // CheckpointParts::extra
};

class CheckpointReader {
 public:
  struct Stored {
    std::string name;
    DType dtype = f32;
    Shape shape;
  };

  // Throws if the folder cannot be read; checksums are the business of Checkpoints::damage().
  explicit CheckpointReader(std::string folder);
  ~CheckpointReader();

  const CheckpointInfo& info() const;
  bool has(const std::string& section) const;
  const std::vector<Stored>& tensors(const std::string& section) const;  // none without the section
  // The tensor on the CPU in the type it was saved in: a view of a file where it lies in one.
  Tensor whole(const std::string& section, const std::string& name) const;
  std::vector<NamedTensor> all(const std::string& section) const;
  // Elements begin, begin + 1, ... into `flat`, which is contiguous; casts to its type and crosses to its device.
  void read(const std::string& section, const std::string& name, int64_t begin, const Tensor& flat) const;

  // Fills every piece. Throws before it changes one if a tensor is missing or of another size.
  void restore(const std::vector<Piece>& pieces) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The weights of a checkpoint folder, averaged ones where the run kept an average.
std::vector<NamedTensor> load_weights(const std::string& folder);
// The same as lazy tensors, which read the files when they are needed (models/nn/lazy.h).
std::vector<NamedTensor> lazy_weights(const std::string& folder);

}  // namespace xylem
