// SPDX-License-Identifier: Apache-2.0
// What both sides of the comparison share: the two workloads and how a step is timed.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

struct Gpt {
  int64_t layers, heads, width, sequence, batch, vocab = 256;
};
struct Cnn {  // residual network on 28 x 28 grey images
  int64_t width, blocks, stages, batch, classes = 10;
};

// Runs `step` (which returns the loss) and prints the milliseconds of each, the first few left out, one per line; the
// first and last loss go to standard error.
inline void time_steps(int steps, const std::function<double()>& step) {
  constexpr int kWarmup = 3;
  double first = 0, last = 0;
  for (int i = 0; i < kWarmup + steps; ++i) {
    auto begin = std::chrono::steady_clock::now();
    last = step();
    if (i == 0) first = last;
    std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - begin;
    if (i >= kWarmup) std::printf("%.3f\n", spent.count());
  }
  std::fprintf(stderr, "loss %.4f -> %.4f\n", first, last);
}

// PROGRAM gpt LAYERS HEADS WIDTH SEQUENCE BATCH STEPS | PROGRAM cnn WIDTH BLOCKS STAGES BATCH STEPS
inline int run_steps(int argc, char** argv, void (*gpt)(const Gpt&, int), void (*cnn)(const Cnn&, int)) {
  auto arg = [&](int i) { return std::strtoll(argv[i], nullptr, 10); };
  std::string what = argc > 1 ? argv[1] : "";
  if (what == "gpt" && argc == 8)
    gpt({arg(2), arg(3), arg(4), arg(5), arg(6)}, int(arg(7)));
  else if (what == "cnn" && argc == 7)
    cnn({arg(2), arg(3), arg(4), arg(5)}, int(arg(6)));
  else
    return std::fprintf(stderr,
                        "usage: gpt LAYERS HEADS WIDTH SEQUENCE BATCH STEPS | cnn WIDTH BLOCKS STAGES BATCH STEPS\n"),
           2;
  return 0;
}
