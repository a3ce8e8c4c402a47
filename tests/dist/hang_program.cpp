// SPDX-License-Identifier: Apache-2.0
// Trains nothing, and goes wrong as its argument says: what the watchdog must find out. Run by hang_test.cpp.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "core/device/graph.h"
#include "core/util/check.h"
#include "core/util/file_error.h"
#include "distributed/group/group.h"
#include "distributed/launch/run.h"
#include "distributed/parallel/verify.h"
#include "distributed/record/recorder.h"
#include "distributed/record/trace.h"
#include "ops/ops.h"

namespace {

using namespace xylem;

void all_reduce(const Group& group, int64_t n = 1024) {
  recorder::Tag tag("bucket 3");
  group.all_reduce(ones({n}, f32)).wait();
}

void go_wrong(const std::string& scenario, const Run& run) {
  Group world = Group::world();
  int bad = run.size() - 1;
  all_reduce(world);
  bool me = run.rank() == bad;
  if (scenario == "late" && me) {
    recorder::Activity activity("the data loader");
    std::this_thread::sleep_for(std::chrono::seconds(60));
  } else if (scenario == "throw" && me) {
    XY_FAIL("the disk is full");
  } else if (scenario == "throw_all") {
    XY_FAIL("no such model");
  } else if (scenario == "other" && me) {
    world.broadcast(ones({1024}, f32), bad).wait();
  } else if (scenario == "size" && me) {
    all_reduce(world, 1000);
  } else if (scenario == "kill" && me) {
    ::kill(::getpid(), SIGKILL);
  } else if (scenario == "crash" && me) {
    ::raise(SIGSEGV);
  } else if (scenario == "stop" && me) {
    ::kill(::getpid(), SIGSTOP);
  } else if (scenario == "fewer" && me) {
    return;
  } else if (scenario == "no_room" && me) {
    throw FileError("cannot write 'metrics.jsonl': No space left on device", ENOSPC);
  } else if (scenario == "flip") {
    Tensor w = ones({100}, f32);
    if (me) reinterpret_cast<uint32_t*>(w.raw())[42] ^= 1;
    if (auto trouble = verify_replicas({ones({3}, f32), w}, world, {"bias", "weight"})) XY_FAIL(*trouble);
  }
  for (int i = 0; i < 3; ++i) all_reduce(world);
  if (run.root()) std::puts("all is well");
}

// A step of two collectives, captured and replayed; instead of the last replay the last rank calls the first of them.
void go_wrong_in_a_graph(const Run& run) {
  Group world = Group::world();
  Tensor t = ones({1024}, f32, run.device());
  auto reduce = [&](const char* name) {
    recorder::Tag tag(name);
    world.all_reduce(t, ReduceOp::max).wait();
  };
  auto step = [&] {
    reduce("bucket 2");
    reduce("bucket 3");
  };
  step();
  CudaGraph graph;
  graph.capture(run.device(), step);
  graph.replay();
  synchronize(run.device());
  if (run.rank() == run.size() - 1) {
    reduce("bucket 2");
    recorder::Activity activity("the data loader");
    std::this_thread::sleep_for(std::chrono::seconds(60));
  }
  graph.replay();
  synchronize(run.device());
}

}  // namespace

int main(int argc, char** argv) {
  return guarded_main([&] {
    std::string scenario = argc > 1 ? argv[1] : "", folder = argc > 2 ? argv[2] : ".";
    std::string config = scenario == "config" ? std::getenv("OMPI_COMM_WORLD_RANK") : "";
    std::string trace = scenario == "trace" ? folder + "/trace.json" : "";
    bool graph = scenario == "graph";  // where ranks share a GPU, the timeout is 20 times as long
    Run run({.device = graph ? "cuda" : "cpu",
             .timeout_seconds = graph ? 1.0 : 2.0,
             .threads = 1,
             .folder = folder,
             .config = config,
             .trace = trace});
    trace::Span span("step");
    graph ? go_wrong_in_a_graph(run) : go_wrong(scenario, run);
  });
}
