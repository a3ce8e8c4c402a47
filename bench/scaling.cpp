// SPDX-License-Identifier: Apache-2.0
// Training steps on random data on any number of ranks: forward, backward with overlapped reduction, clip, AdamW. Rank
// 0 prints one JSON object. Under mpirun the batch given is that of each rank (weak scaling).
//   scaling [options] MODEL [batch per rank] [steps] [zero 0-3] [device]
//     MODEL                    gpt2-124m, gpt2-1.5b, llama-1b, resnet50 or tiny
//     --graph                  launch the whole step as one CUDA graph
//     --not-deterministic      allow kernels whose sums depend on the order of threads
//     --profile                afterwards one more step, between cudaProfilerStart and cudaProfilerStop
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench/training.h"
#include "core/device/allocator.h"
#include "core/random/rng.h"
#include "distributed/launch/run.h"
#include "models/optim/optimizers.h"
#include "models/zoo/gpt2.h"
#include "models/zoo/llama.h"
#include "models/zoo/resnet.h"

namespace xy = xylem;

namespace {

constexpr int kWarmup = 5;

struct Options {
  std::string model = "gpt2-124m", device = "auto";
  int64_t batch = 0;
  int steps = 20, zero = 0;
  bool graph = false, profile = false;
};

Options parse(int argc, char** argv) {
  Options o;
  std::vector<std::string> words(argv + 1, argv + argc);
  o.graph = xy::bench::take_flag(words, "--graph");
  o.profile = xy::bench::take_flag(words, "--profile");
  xy::set_deterministic(!xy::bench::take_flag(words, "--not-deterministic"));
  for (const std::string& word : words)
    XY_CHECK(!word.starts_with("--"), "unknown option ", word,
             "; known are --graph, --not-deterministic and --profile");
  if (words.size() > 0) o.model = words[0];
  if (words.size() > 1) o.batch = std::stoll(words[1]);
  if (words.size() > 2) o.steps = std::stoi(words[2]);
  if (words.size() > 3) o.zero = std::stoi(words[3]);
  if (words.size() > 4) o.device = words[4];
  return o;
}

struct Workload {
  std::unique_ptr<xy::ZooModel> model;
  int64_t batch = 0, units = 0;  // per rank and step; tokens or images
  xy::Tensor input, target;
  const char* unit = "tokens";
};

template <class Model>
void language(Workload& w, const typename Model::Config& config, int64_t batch, xy::Device device) {
  w.model = std::make_unique<Model>(config);
  xy::Tensor tokens = xy::empty({batch, config.context + 1}, xy::f32, device);
  xy::uniform_(tokens, 0, double(std::min<int64_t>(config.vocab, 50257)));
  tokens = tokens.to(xy::i32);
  w.input = tokens.slice(1, 0, config.context).contiguous();
  w.target = tokens.slice(1, 1, config.context + 1).contiguous();
  w.units = batch * config.context;
}

Workload make(const std::string& name, int64_t batch, xy::Device device) {
  Workload w;
  w.batch = batch > 0 ? batch : name == "gpt2-124m" ? 64 : name == "resnet50" ? 256 : name == "llama-1b" ? 4 : 8;
  if (name == "gpt2-124m") {
    language<xy::zoo::Gpt2>(w, {.vocab = 50304}, w.batch, device);
  } else if (name == "gpt2-1.5b") {
    language<xy::zoo::Gpt2>(w, {.vocab = 50304, .layers = 48, .heads = 25, .width = 1600}, w.batch, device);
  } else if (name == "llama-1b") {
    language<xy::zoo::Llama>(w,
                             {.vocab = 128256,
                              .context = 4096,
                              .layers = 16,
                              .heads = 32,
                              .kv_heads = 8,
                              .width = 2048,
                              .hidden = 8192,
                              .tied = true},
                             w.batch, device);
  } else if (name == "tiny") {
    language<xy::zoo::Gpt2>(w, {.vocab = 256, .context = 32, .layers = 2, .heads = 2, .width = 64}, w.batch, device);
  } else if (name == "resnet50") {
    w.model = std::make_unique<xy::zoo::ResNet>(xy::zoo::resnet50_config());
    w.input = xy::empty({w.batch, 224, 224, 3}, xy::f32, device);
    xy::normal_(w.input, 0, 1);
    w.input = w.input.to(device.is_cuda() ? xy::bf16 : xy::f32).permute({0, 3, 1, 2});  // channels last
    w.target = xy::zeros({w.batch}, xy::i64, device);
    w.units = w.batch;
    w.unit = "images";
  } else {
    XY_FAIL("unknown model '", name, "'; known are gpt2-124m, gpt2-1.5b, llama-1b, resnet50 and tiny");
  }
  return w;
}

void measure(int argc, char** argv) {
  Options options = parse(argc, argv);
  xy::Run run(argc, argv, {.seed = 1, .device = options.device});
  xy::Device device = run.device();
  Workload w = make(options.model, options.batch, device);
  w.model->to(device);
  if (device.is_cuda()) w.model->to(xy::bf16);
  xy::Group world = xy::Group::world();
  xy::AdamW optimizer(xy::FlatParams(*w.model, {.parallel = {.group = world, .zero = options.zero}}),
                      {.lr = 6e-4, .beta2 = 0.95, .weight_decay = 0.1});
  xy::bench::Step step(*w.model, optimizer, w.input, w.target, options.graph);
  std::vector<double> times;
  double first_loss = 0, last_loss = 0;
  for (int i = 0; i < kWarmup + options.steps; ++i) {
    xy::synchronize(device);
    world.barrier();
    auto begin = std::chrono::steady_clock::now();
    step.run();
    xy::synchronize(device);  // for the clock alone
    if (i >= kWarmup) times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    last_loss = step.loss().item();
    if (i == 0) first_loss = last_loss;
  }
  if (options.profile) xy::bench::profiled(device, [&] { step.run(); });
  const double median = xy::bench::median(times);
  const auto [shortest, longest] = std::minmax_element(times.begin(), times.end());
  xy::ParallelMemory kept = optimizer.params().parallel().memory();
  if (run.root())
    std::printf(
        "{\"model\": \"%s\", \"ranks\": %d, \"zero\": %d, \"dtype\": \"%s\", \"deterministic\": %s, \"graph\": %s, "
        "\"batch_per_gpu\": "
        "%ld, \"steps\": %d, "
        "\"median_ms\": %.3f, \"min_ms\": %.3f, \"max_ms\": %.3f, \"units_per_s\": %.0f, \"unit\": \"%s\", "
        "\"peak_gib\": %.2f, \"params_bytes\": %ld, \"grads_bytes\": %ld, \"optimizer_bytes\": %ld, \"first_loss\": "
        "%.4f, "
        "\"last_loss\": %.4f}\n",
        options.model.c_str(), world.size(), options.zero, device.is_cuda() ? "bf16" : "f32",
        xy::deterministic() ? "true" : "false", options.graph ? "true" : "false", long(w.batch), options.steps,
        median * 1e3, *shortest * 1e3, *longest * 1e3, double(world.size()) * double(w.units) / median, w.unit,
        double(xy::allocator(device).stats().peak_allocated) / double(1 << 30), long(kept.params), long(kept.grads),
        long(optimizer.state_bytes()), first_loss, last_loss);
}

}  // namespace

int main(int argc, char** argv) {
  return xy::guarded_main([&] { measure(argc, argv); });
}
