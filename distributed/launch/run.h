// SPDX-License-Identifier: Apache-2.0
// Run: the first object of a program that trains. It works alone and under mpirun or srun alike:
//
//   int main(int argc, char** argv) {
//     return xy::guarded_main([&] {
//       xy::Run run(argc, argv, {.seed = 1337});
//       model.to(run.device());
//       ...
//     });
//   }
//
// Under a launcher it picks this rank's GPU, binds the process to the CPUs and memory near it, compares all ranks
// before the first collective, prints the launch report on rank 0 and starts the watchdog. Alone it only picks the
// device and seeds the generator.
//
// This folder: what a job does before its first collective (bind, rank_info, checks) and after its last (job_trace).
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "core/device/device.h"
#include "distributed/world/world.h"

namespace xylem {

struct RunArgs {
  uint64_t seed = 1337;
  std::string device = "auto";   // cpu, cuda, cuda:N or auto: this rank's share of the host's GPUs, else the CPU
  double timeout_seconds = 600;  // of a collective, after which the job is given up; longer with XY_SHARE_GPU=1
  int64_t threads = 0;           // CPU threads; 0: OMP_NUM_THREADS, else this rank's share of the cores
  std::string folder = ".";      // shared by all hosts, for the watchdog's files; XY_HANG_DIR overrules it
  std::string config = {};       // must be equal on all ranks: the configuration, or a hash of it
  std::string trace = {};        // a file for Chrome or Perfetto (distributed/record/trace.h); "": none
};

class Run {
 public:
  // Throws on what would end in a hang, a crash or wrong results: see distributed/launch/checks.h.
  explicit Run(const RunArgs& args = {});
  Run(int argc, char** argv, const RunArgs& args = {});  // the arguments too must be equal on all ranks
  // Waits for the other ranks, writes the trace and stops the watchdog. If an exception is under way it tells the
  // others instead, and the job ends.
  ~Run();
  Run(const Run&) = delete;

  const World& world() const { return xylem::world(); }
  Device device() const { return device_; }
  int rank() const { return world().rank; }
  int size() const { return world().size; }
  bool root() const { return rank() == 0; }              // prints and writes what exists once
  const std::string& report() const { return report_; }  // the launch report; "" without a launcher

 private:
  void start(const RunArgs& args, const std::string& arguments);
  Device device_{};
  std::string report_;
  bool watched_ = false;
  int exceptions_ = 0;
};

// Runs `body` and returns 0. An exception is printed with its rank, or told in the watchdog's verdict,
// and ends the whole job with code 1, or 74 where a file system has no room or gives no leave. `describe` makes the
// text of an exception, what() by default.
int guarded_main(const std::function<void()>& body,
                 const std::function<std::string(const std::exception&)>& describe = {});

}  // namespace xylem
