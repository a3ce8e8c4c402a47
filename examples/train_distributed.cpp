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
    constexpr int64_t kGlobalBatch = 16, kMicroBatch = 2, kContext = 32;

    xy::Run run(argc, argv, {.seed = 1});
    xy::Group world = xy::Group::world();
    auto [micro, passes] = xy::Team(world).split(kGlobalBatch, kMicroBatch);

    // Rank 0 writes the data; the others wait until it is there.
    std::string file = "train_distributed.tokens", text;
    for (int i = 0; i < 2000; ++i) text += std::to_string(i) + " plus one is " + std::to_string(i + 1) + ". ";
    if (run.root()) xy::write_byte_tokens(file, text);
    world.barrier();
    xy::Loader data(xy::token_dataset(file, kContext, 1),
                    {.sampler = {.batch = micro, .rank = world.rank(), .world = world.size(), .accumulate = passes},
                     .device = run.device()});

    xy::zoo::Gpt2 model({.vocab = 256, .context = kContext, .layers = 4, .heads = 4, .width = 64});
    model.to(run.device());
    // All ranks take the parameters of rank 0; gradients travel bucket by bucket during a step's last backward pass.
    xy::FlatParams params(model, {.parallel = {.group = world, .zero = zero}});
    xy::AdamW optimizer(std::move(params), {.lr = 2e-3, .beta2 = 0.95, .weight_decay = 0.1});
    xy::Schedule schedule{.kind = xy::Schedule::Kind::cosine, .lr = 2e-3, .total = steps, .warmup = 5, .floor = 0.1};

    xy::TrainStep train_step(model, optimizer, {.micro_batches = passes, .clip = 1});

    for (int64_t step = 0; step < steps; ++step) {
      optimizer.set_lr(schedule(step));
      train_step.run(data);
      if (run.root() && (step % 10 == 9 || step + 1 == steps))  // every rank knows the loss of the step
        std::printf("step %3ld  loss %.4f  norm %.3f\n", long(step + 1), train_step.loss().item(),
                    train_step.norm().item());
    }
  });
}
