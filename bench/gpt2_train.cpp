// SPDX-License-Identifier: Apache-2.0
// GPT-2 124M training steps on random tokens: forward, backward, clip, AdamW. Prints one JSON object with the median
// step time, tokens per second, memory and what was checked about it.
// Fails if memory grows from step to step.
//   gpt2_train [--graph] [batch] [sequence] [steps] [device] [deterministic: 0 or 1]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/training.h"
#include "core/device/allocator.h"
#include "core/random/rng.h"
#include "core/util/determinism.h"
#include "models/optim/optimizer.h"
#include "models/optim/optimizers.h"
#include "models/zoo/gpt2.h"

namespace xy = xylem;

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const bool graph = xy::bench::take_flag(words, "--graph");
  auto word = [&](size_t i, const char* otherwise) { return i < words.size() ? words[i] : otherwise; };
  int64_t batch = std::stoll(word(0, "32")), sequence = std::stoll(word(1, "1024"));
  int steps = std::stoi(word(2, "30"));
  xy::Device device = xy::Device::parse(word(3, "auto"));
  xy::set_deterministic(word(4, "0") == "1");
  constexpr int kWarmup = 5;

  auto start = std::chrono::steady_clock::now();
  auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  xy::rng::seed(1);
  xy::zoo::Gpt2 model({.vocab = 50304});
  model.to(device);
  model.to(xy::bf16);
  xy::AdamW optimizer(model, {.lr = 6e-4, .beta2 = 0.95, .weight_decay = 0.1});
  xy::Tensor tokens = xy::empty({batch, sequence + 1}, xy::f32, device);
  xy::uniform_(tokens, 0, 50257);
  tokens = tokens.to(xy::i32);
  xy::Tensor input = tokens.slice(1, 0, sequence).contiguous(), target = tokens.slice(1, 1, sequence + 1).contiguous();

  xy::bench::Step training(model, optimizer, input, target, graph);
  double first_step = 0, first_loss = 0, last_loss = 0;
  std::vector<double> times;
  xy::AllocatorStats warm, end;
  for (int step = 0; step < kWarmup + steps; ++step) {
    double begin = seconds();
    training.run();
    xy::synchronize(device);  // for the clock alone
    if (step >= kWarmup) times.push_back(seconds() - begin);
    if (step == 0) first_step = seconds(), first_loss = training.loss().item();
    end = xy::allocator(device).stats();
    if (step + 1 == kWarmup) warm = end;
    last_loss = training.loss().item();
  }
  const double median = xy::bench::median(times);
  const auto [shortest, longest] = std::minmax_element(times.begin(), times.end());
  std::printf(
      "{\"model\": \"gpt2-124m\", \"dtype\": \"bf16\", \"deterministic\": %s, \"graph\": %s, \"batch\": %ld, "
      "\"sequence\": %ld, "
      "\"steps\": %d, "
      "\"median_ms\": %.3f, \"min_ms\": %.3f, \"max_ms\": %.3f, \"tokens_per_s\": %.0f, \"first_step_s\": %.2f, "
      "\"peak_gib\": %.2f, \"leaked_bytes\": %ld, \"system_allocations_after_warmup\": %ld, \"first_loss\": %.4f, "
      "\"last_loss\": %.4f}\n",
      xy::deterministic() ? "true" : "false", graph ? "true" : "false", long(batch), long(sequence), steps,
      median * 1e3, *shortest * 1e3, *longest * 1e3, double(batch * sequence) / median, first_step,
      double(end.peak_allocated) / double(1 << 30), long(end.allocated - warm.allocated),
      long(end.system_calls - warm.system_calls), first_loss, last_loss);
  return end.allocated == warm.allocated ? 0 : 1;
}
