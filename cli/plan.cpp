// SPDX-License-Identifier: Apache-2.0
// `xylem plan`: what a training step would take on a machine, by layout. The machine need not be here.
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/rate.h"
#include "core/util/check.h"
#include "models/plan/step_plan.h"
#include "models/train/config.h"

namespace xylem::cli {
namespace {

struct Arguments {
  std::string topology, model, precision = "bf16", gpu, nic;
  int nodes = 1;
  int64_t batch = 0, sequence = 0, micro_batch = 0, image = 0;
  bool json = false;
  size_t most = 10;
};

void run(const Arguments& a) {
  StepOptions options{.global_batch = a.batch, .sequence = a.sequence, .micro_batch = a.micro_batch};
  ModelWork model;
  if (auto known = known_work(a.model, a.image)) {
    model = *known;
  } else {
    XY_CHECK(a.model.ends_with(".toml"), "--model needs a configuration file or one of ", known_sizes(), ", not \"",
             a.model, "\"");
    const TrainConfig config = load_config(a.model);
    model = count_work(config.model.name, config.model.options, a.image);
    if (options.global_batch == 0) options.global_batch = config.train.global_batch;
    if (options.sequence == 0 && model.language) options.sequence = config.data.seq;
  }
  XY_CHECK(model.language || a.sequence == 0, model.name, " has no sequences: leave --seq out");
  XY_CHECK(!model.language || a.image == 0, model.name, " has no images: leave --image out");
  if (options.sequence == 0) options.sequence = model.context;
  XY_CHECK(options.global_batch > 0, "--batch is missing: sequences or images in a step, of all GPUs together");
  options.half = a.precision == "bf16" || a.precision == "fp16";
  if (!a.nic.empty()) options.plan.nic_gbps = gigabytes_per_second("--nic", a.nic);

  Topology machine = load_topology(a.topology);
  if (a.nodes > 1) machine = replicate(machine, a.nodes);
  XY_CHECK(!machine.gpus.empty(), a.topology, " has no GPU",
           machine.unknown.empty() ? "" : "; it gives devices by their address alone: see xylem topo --from");
  std::string name = a.gpu.empty() ? machine.gpus[0].name : a.gpu;
  XY_CHECK(!name.empty(), a.topology, " does not name its GPUs; give their model with --gpu, such as \"H100 80GB\"");
  const GpuSpec gpu = gpu_spec(name, a.precision);

  StepPlan plan = plan_step(machine, model, gpu, options);
  if (a.json) {
    std::fputs(plan.to_json().c_str(), stdout);
  } else {
    std::string samples =
        std::to_string(options.global_batch) +
        (model.language ? " sequences of " + std::to_string(options.sequence) + " tokens" : " images");
    std::printf("%s, %.3g parameters, %s a step, %s, on %zu x %s\n\n", model.name.c_str(), double(model.parameters),
                samples.c_str(), a.precision.c_str(), machine.gpus.size(), name.c_str());
    std::fputs(plan.str(a.most).c_str(), stdout);
    std::printf("  predicted, not measured; docs/plan.md says how and how well\n");
  }
  if (!plan.unknown.empty()) throw Exit{1};
}

}  // namespace

void add_plan_command(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand(
      "plan", "Predict a training step on a machine, here or not: memory, time and bottleneck of each layout");
  cmd->add_option("--topology", a->topology, "the machine: NCCL XML, the text of nvidia-smi topo -m, or our JSON")
      ->required();
  cmd->add_option("--nodes", a->nodes, "so many of it")->check(CLI::Range(1, 4096));
  cmd->add_option("--nic", a->nic, "speed of a NIC, if the file does not tell: 400Gb/s, 50GB/s");
  cmd->add_option("--gpu", a->gpu, "the GPUs' model, if the file does not tell");
  cmd->add_option("--model", a->model,
                  "gpt2-1.5b, llama-8b, resnet50, any model of the zoo, or the configuration of a training run")
      ->required();
  const CLI::Range counts(int64_t(1), int64_t(1) << 40);
  cmd->add_option("--batch", a->batch, "sequences or images in a step, of all GPUs together")->check(counts);
  cmd->add_option("--seq", a->sequence, "tokens of a sequence; default: the model's context")->check(counts);
  cmd->add_option("--image", a->image, "height and width of images; default: the model's, else 224")
      ->check(CLI::Range(1, 16384));
  cmd->add_option("--micro-batch", a->micro_batch, "sequences or images of a pass; default: the fastest that fits")
      ->check(counts);
  cmd->add_option("--precision", a->precision)
      ->check(CLI::IsMember({"fp32", "tf32", "bf16", "fp16"}))
      ->capture_default_str();
  cmd->add_option("--most", a->most, "so many layouts")->capture_default_str();
  cmd->add_flag("--json", a->json, "as JSON");
  cmd->callback([a] { run(*a); });
}

}  // namespace xylem::cli
