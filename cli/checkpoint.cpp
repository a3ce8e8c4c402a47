// SPDX-License-Identifier: Apache-2.0
// `xylem checkpoint`: lists checkpoints and joins their parts.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "core/util/check.h"
#include "core/util/text.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/consolidate.h"
#include "models/checkpoint/reader.h"

namespace xylem::cli {
namespace {

namespace fs = std::filesystem;

void list(const std::string& run) {
  Checkpoints checkpoints(run, 0);
  auto steps = checkpoints.steps();
  XY_CHECK(!steps.empty(), "there are no checkpoints in '", run, "'");
  std::printf("%10s %6s %5s %10s  %s\n", "step", "ranks", "zero", "size", "state");
  for (int64_t step : steps) {
    std::string folder = checkpoints.path(step), why = Checkpoints::damage(folder), ranks = "?", zero = "?";
    uint64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(folder)) bytes += entry.file_size();
    try {
      CheckpointReader reader(folder);
      ranks = std::to_string(reader.info().world);
      auto it = reader.info().extra.find("zero");
      zero = it == reader.info().extra.end() ? "0" : it->second;
    } catch (const Error& e) {
      if (why.empty()) why = e.message();
    }
    std::printf("%10lld %6s %5s %10s  %s\n", static_cast<long long>(step), ranks.c_str(), zero.c_str(),
                human_bytes(double(bytes)).c_str(), why.empty() ? "whole" : ("damaged: " + why).c_str());
  }
}

struct Arguments {
  std::string from, out, dtype = "same", part = "model";
};

void consolidate_to(const Arguments& a) {
  std::vector<std::string> notes;
  std::string folder = find_checkpoint(a.from, &notes);
  for (const std::string& note : notes) std::fprintf(stderr, "xylem: %s\n", note.c_str());
  ConsolidateOptions options{.section = a.part};
  if (a.dtype != "same") options.dtype = a.dtype == "fp32" ? f32 : a.dtype == "bf16" ? bf16 : f16;
  consolidate(folder, a.out, options);
  std::printf("%s: %s of %s\n", a.out.c_str(), human_bytes(double(fs::file_size(a.out))).c_str(), folder.c_str());
}

}  // namespace

void add_checkpoint_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("checkpoint", "List checkpoints, or join the parts of one into one file");
  cmd->require_subcommand(1);

  auto run = std::make_shared<std::string>();
  CLI::App* lister = cmd->add_subcommand("list", "Steps, ranks and sizes of a run's checkpoints; checks every file");
  lister->add_option("RUN", *run, "run folder")->required();
  lister->callback([run] { list(*run); });

  auto a = std::make_shared<Arguments>();
  CLI::App* joiner = cmd->add_subcommand("consolidate", "Write one safetensors file from what all ranks have saved");
  joiner->add_option("RUN", a->from, "run folder (its newest intact checkpoint), or one checkpoint")->required();
  joiner->add_option("--out", a->out, "file to write")->required();
  joiner->add_option("--dtype", a->dtype, "of floating point tensors: same, fp32, bf16 or fp16")
      ->check(CLI::IsMember({"same", "fp32", "bf16", "fp16"}))
      ->capture_default_str();
  joiner->add_option("--part", a->part, "model, ema or optimizer")
      ->check(CLI::IsMember({"model", "ema", "optimizer"}))
      ->capture_default_str();
  joiner->callback([a] { consolidate_to(*a); });
}

}  // namespace xylem::cli
