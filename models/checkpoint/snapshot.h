// SPDX-License-Identifier: Apache-2.0
// Copies, in host memory, of what a rank saves; a thread writes them while training goes on. They lie in private memory
// or in a file on /dev/shm, which outlives a process that is killed: there whoever resumes the run finds what the
// checkpoint lacks (recover.h).
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "core/device/device.h"
#include "models/checkpoint/writer.h"

namespace xylem::checkpoint {

struct SharedMemory;

class Snapshot {
 public:
  // A file of that name; private memory if it is empty, or if there is no room for the file: standard error says so.
  explicit Snapshot(std::string file = "");
  ~Snapshot();  // the file goes

  // Copies the pieces of a job, which refers to the copies from then on; on a GPU the current stream does it. What was
  // taken before is overwritten.
  void take(Job& job);
  // Waits for the copies; from here on the file is worth finding. take() does it where there is nothing to wait for.
  void seal();
  void leave();  // the file stays when this goes

 private:
  Tensors place_in_file(const Job& job);
  std::string file_;
  std::shared_ptr<SharedMemory> memory_;
  uint64_t text_bytes_ = 0;
  Tensors copies_;  // in private memory
  Event ready_;
};

// The file of a rank, and what is the same in those of all ranks and jobs.
std::string snapshot_file(const std::string& attempt, int rank);
std::string snapshot_folder();  // /dev/shm, or XY_SNAPSHOT_DIR

// A file whose process is gone.
class LeftSnapshot {
 public:
  // Nothing if there is no such file or its process lives on, which is given `patience` seconds to end.
  static std::optional<LeftSnapshot> open(const std::string& file, double patience = 0);
  const std::optional<Job>& job() const { return job_; }  // nothing if the copies were not all made
  void remove() const;

 private:
  std::string file_;
  std::shared_ptr<SharedMemory> memory_;
  std::optional<Job> job_;
};

}  // namespace xylem::checkpoint
