// SPDX-License-Identifier: Apache-2.0
// GPT-2 124M training steps on random tokens: forward, backward, clip, AdamW. Prints one JSON object with the median
// step time, tokens per second, memory and what was checked about it.
// Fails if memory grows from step to step.
//   gpt2_train [batch] [sequence] [steps] [device] [deterministic: 0 or 1]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "core/device/allocator.h"
#include "core/util/determinism.h"
#include "core/util/rng.h"
#include "models/optim/optimizers.h"
#include "models/zoo/gpt2.h"

namespace xy = xylem;

int main(int argc, char** argv) {
  int64_t batch = argc > 1 ? std::stoll(argv[1]) : 32, sequence = argc > 2 ? std::stoll(argv[2]) : 1024;
  int steps = argc > 3 ? std::stoi(argv[3]) : 30;
  xy::Device device = xy::Device::parse(argc > 4 ? argv[4] : "auto");
  xy::set_deterministic(argc > 5 && std::string(argv[5]) == "1");
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

  double first_step = 0, first_loss = 0, last_loss = 0;
  std::vector<double> times;
  xy::AllocatorStats warm, end;
  for (int step = 0; step < kWarmup + steps; ++step) {
    double begin = seconds();
    xy::rng::next_step();
    optimizer.zero_grad();
    xy::Tensor loss = model.loss(input, target);
    loss.backward();
    optimizer.clip(1.0);
    optimizer.step();
    xy::synchronize(device);  // for the clock alone
    if (step >= kWarmup) times.push_back(seconds() - begin);
    if (step == 0) first_step = seconds(), first_loss = loss.item();
    end = xy::allocator(device).stats();
    if (step + 1 == kWarmup) warm = end;
    last_loss = loss.item();
  }
  std::sort(times.begin(), times.end());
  double median = times[times.size() / 2];
  std::printf(
      "{\"model\": \"gpt2-124m\", \"dtype\": \"bf16\", \"deterministic\": %s, \"batch\": %ld, \"sequence\": %ld, "
      "\"steps\": %d, "
      "\"median_ms\": %.3f, \"min_ms\": %.3f, \"max_ms\": %.3f, \"tokens_per_s\": %.0f, \"first_step_s\": %.2f, "
      "\"peak_gib\": %.2f, \"leaked_bytes\": %ld, \"system_allocations_after_warmup\": %ld, \"first_loss\": %.4f, "
      "\"last_loss\": %.4f}\n",
      xy::deterministic() ? "true" : "false", long(batch), long(sequence), steps, median * 1e3, times.front() * 1e3,
      times.back() * 1e3, double(batch * sequence) / median, first_step, double(end.peak_allocated) / double(1 << 30),
      long(end.allocated - warm.allocated), long(end.system_calls - warm.system_calls), first_loss, last_loss);
  return end.allocated == warm.allocated ? 0 : 1;
}
