// SPDX-License-Identifier: Apache-2.0
// A small GPT trained by one process or by many: the same program, alone or under mpirun or srun. Ranks share every
// global batch, so the losses do not depend on their number.
//   train_distributed [STEPS [ZERO]]
//   mpirun -np 2 train_distributed 100 1
#include <xylem/xylem.h>

#include <cstdio>
#include <string>
#include <utility>

namespace xy = xylem;

int main(int argc, char** argv) {
  return xy::guarded_main([&] {
    int64_t steps = argc > 1 ? std::stoll(argv[1]) : 20;
    int zero = argc > 2 ? std::stoi(argv[2]) : 0;
    constexpr int64_t kGlobalBatch = 16, kMicroBatches = 2, kContext = 32;

    xy::Run run(argc, argv, {.seed = 1});
    xy::Group world = xy::Group::world();
    int64_t micro = kGlobalBatch / kMicroBatches / world.size();
    XY_CHECK(micro * kMicroBatches * world.size() == kGlobalBatch, world.size(), " ranks cannot share ", kGlobalBatch,
             " samples in ", kMicroBatches, " micro-batches");

    // Rank 0 writes the data; the others wait until it is there.
    std::string file = "train_distributed.tokens", text;
    for (int i = 0; i < 2000; ++i) text += std::to_string(i) + " plus one is " + std::to_string(i + 1) + ". ";
    if (run.root()) xy::write_byte_tokens(file, text);
    world.barrier();
    xy::Loader data(
        xy::token_dataset(file, kContext, 1),
        {.sampler = {.batch = micro, .rank = world.rank(), .world = world.size(), .accumulate = kMicroBatches},
         .device = run.device()});

    xy::zoo::Gpt2 model({.vocab = 256, .context = kContext, .layers = 4, .heads = 4, .width = 64});
    model.to(run.device());
    // All ranks take the parameters of rank 0; gradients are averaged bucket by bucket during backward().
    xy::FlatParams params(model, {.parallel = {.group = world, .zero = zero}});
    xy::AdamW optimizer(std::move(params), {.lr = 2e-3, .beta2 = 0.95, .weight_decay = 0.1});
    xy::Schedule schedule{.kind = xy::Schedule::Kind::cosine, .lr = 2e-3, .total = steps, .warmup = 5, .floor = 0.1};

    for (int64_t step = 0; step < steps; ++step) {
      xy::rng::next_step();
      optimizer.set_lr(schedule(step));
      optimizer.zero_grad();
      xy::Tensor sum = xy::zeros({1}, xy::f32, run.device());
      for (int64_t i = 0; i < kMicroBatches; ++i) {
        auto [tokens, targets, ids] = data.next();
        auto sync = optimizer.sync_when(i + 1 == kMicroBatches);  // gradients travel once a step
        xy::Tensor loss = model.loss(tokens, targets) / double(kMicroBatches);
        loss.backward();
        sum.add_(loss.detach().reshape({1}));
      }
      xy::Tensor norm = optimizer.clip(1.0);
      optimizer.step();
      if (step % 10 == 9 || step + 1 == steps) {
        world.all_reduce(sum, xy::ReduceOp::avg).wait();  // every rank calls it, one prints
        if (run.root()) std::printf("step %3ld  loss %.4f  norm %.3f\n", long(step + 1), sum.item(), norm.item());
      }
    }
  });
}
