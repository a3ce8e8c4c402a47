// SPDX-License-Identifier: Apache-2.0
// The watchdog: a thread of every rank that ends a job which cannot go on, and says why. It acts when a collective is
// not finished in time, when another process of this host is gone, when any rank fails, and when another rank's
// watchdog has acted. Every rank then writes hang_rank<r>.json; one of them puts the dumps together, writes
// hang_verdict.txt, prints it and ends the job. Where nothing can be written it is printed all the same. The ranks meet
// through files alone, since MPI or NCCL may be what hangs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace xylem::watchdog {

inline constexpr int kExitCode = 87;         // of a job that hung or lost a rank
inline constexpr int kStorageExitCode = 74;  // of one that could not write: no room, or no leave (sysexits' EX_IOERR)

struct Peer {
  std::string host;
  int64_t pid = 0;
  bool visible = false;  // its process can be seen from here: same host, same process namespace
};

struct Options {
  int rank = 0;
  std::vector<Peer> peers = {};  // all ranks, this one included
  std::string folder = ".";      // for the files; shared by all hosts
  std::string job;               // the same on all ranks and new for every job
  double timeout_seconds = 600;
};

// Where the files of a job lie whose ranks name `folder`: the variable XY_HANG_DIR overrules it.
std::string folder_of(const std::string& folder);
std::string verdict_file(const std::string& folder);

// Moves what an earlier job left in the folder to <folder>/earlier_hang. By one rank, before any starts.
void clear(const std::string& folder);
void start(const Options& options);
void stop();
bool running();

// This rank failed: the error goes to standard error, all ranks dump, the verdict is given, the job ends with that
// code. Where no watchdog runs it ends the process by itself.
[[noreturn]] void fail(const std::string& error, int code = 1);
// An exception is on its way, and a handler will call fail(); if none does within a second, the watchdog acts.
void expect_failure();

// Ends this process and, through MPI_Abort where MPI runs, the job. No clean-up.
[[noreturn]] void end_job(int code);

}  // namespace xylem::watchdog
