// SPDX-License-Identifier: Apache-2.0
#include "models/export/export.h"

#include <cmath>
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/ranges.h"
#include "core/util/check.h"
#include "models/export/bundle/bundle.h"
#include "models/export/runtime/ort.h"
#include "models/nn/init.h"
#include "models/nn/lazy.h"
#include "models/nn/ranges.h"
#include "models/train/task.h"
#include "models/train/trained.h"
#include "ops/ops.h"

namespace xylem::cli {
namespace {

struct Arguments {
  std::string run, out, name, profile = "ort-cpu", precision = "automatic", target, cache;
  int opset = 0;
  int64_t max_length = 0;
  std::vector<std::string> ranges;
  bool verify = false, external_data = false, fixed = false;
};

// Of the exported model, on the validation set.
double accuracy_in_runtime(const std::string& file, Task& task, bool optimized) {
  OrtSession session(file, {.optimize = optimized, .threads = 0});  // all cores
  Loader& loader = *task.val;
  const Sampler& sampler = loader.sampler();
  int64_t all = sampler.steps_per_epoch();
  double correct = 0, samples = 0;
  loader.set_position(0);
  for (int64_t i = 0; i < all; ++i) {
    Batch batch = loader.next();
    int64_t valid = batch.input.size(0) - (i + 1 == all ? sampler.padded() : 0);
    Tensor logits = session.run({batch.input.narrow(0, 0, valid).contiguous()})[0];
    correct += sum(eq(argmax(logits.to(f32)), batch.target.narrow(0, 0, valid)).to(f32)).item();
    samples += double(valid);
  }
  return correct / samples;
}

void finish(const BundleReport& report, const Arguments& a, bool same = true) {
  std::printf("bundle: %s (%zu files)\n", a.out.c_str(), report.files.size());
  if (report.failed() || !same) throw Exit{1};
  if (!report.passed()) throw Exit{2};
}

void run(const Arguments& a) {
  Trained trained = load_trained(a.run, true);
  Task task = [&] {
    init::ShapesScope shapes;
    return make_task(trained.config, Device::cpu());
  }();
  task.model = std::move(trained.model);
  Batch batch = (task.val ? *task.val : *task.train).next();
  int64_t rows = std::min<int64_t>(batch.input.size(0), 8);
  ExportInput input{.name = task.language ? "input_ids" : "image",
                    .example = batch.input.narrow(0, 0, rows).contiguous()};
  if (task.language) input.example = input.example.to(i64);
  if (!a.fixed) input.dynamic[0] = "batch";
  if (!a.fixed && task.language) input.dynamic[1] = "seq";

  BundleOptions options{
      .name = a.name.empty() ? trained.config.model.name : a.name, .target = a.target, .verify = a.verify};
  options.graph.profile = parse_profile(a.profile);
  options.graph.precision = parse_export_precision(a.precision);
  options.graph.opset = a.opset;
  options.graph.outputs = {"logits"};
  options.graph.external_data = a.external_data;
  options.graph.ranges = parse_ranges(a.ranges);
  options.graph.metadata["xylem.step"] = std::to_string(trained.step);
  for (const char* known : {"val_step", "val_loss", "val_accuracy"})
    if (trained.extra.contains(known)) options.graph.metadata[std::string("xylem.") + known] = trained.extra.at(known);
  auto forward = [&](const Tensors& x) -> Tensors {
    LazyScope scope;
    return {(*task.model)(x[0])};
  };
  options.graph.activation_amax = ranges_in(trained.extra);
  if (options.graph.activation_amax.empty()) {  // the run had no evaluation
    RangeObserver observer(*task.model);
    no_grad([&] { return forward({input.example}); });
    options.graph.activation_amax = observer.ranges();
  }
  if (!a.cache.empty()) {
    auto* language = dynamic_cast<LanguageModel*>(task.model.get());
    XY_CHECK(language, "--cache is for language models; ", trained.config.model.name, " is none");
    XY_CHECK(!a.fixed, "--cache and --fixed do not go together");
    const CacheKind kind = a.cache == "fixed" ? CacheKind::fixed : CacheKind::growing;
    XY_CHECK(kind == CacheKind::fixed || a.max_length == 0, "--max-length ", a.max_length,
             " is for --cache fixed; a growing cache has no length, --range past=MIN:OPT:MAX bounds it");
    BundleReport report = export_decoder_bundle(*language, a.out, options, kind, a.max_length);
    std::fputs(report.text().c_str(), stdout);
    return finish(report, a);
  }
  if (!a.fixed) {
    options.graph.ranges.try_emplace("batch", DimRange{.min = 1, .opt = 8, .max = 64});
    int64_t length = input.example.rank() > 1 ? input.example.size(1) : 1;
    if (task.language) options.graph.ranges.try_emplace("seq", DimRange{.min = 1, .opt = length, .max = length});
  }
  BundleReport report = export_bundle(*task.model, forward, {input}, a.out, options);
  std::fputs(report.text().c_str(), stdout);
  bool same = true;
  const bool ran = !report.checks.empty() && !report.checks[0].imported;  // in ONNX Runtime
  if (ran && task.val && !task.language && !a.fixed) {
    // Without optimization ONNX Runtime computes the graph as it stands. Its integer kernels round biases too.
    LazyScope scope;
    double ours = *evaluate(task, f32).accuracy, theirs = accuracy_in_runtime(report.exported.file, task, false);
    double optimized = accuracy_in_runtime(report.exported.file, task, true);
    same = std::abs(ours - theirs) <= 1e-3;
    std::printf("accuracy on the validation set: Xylem %.2f %%, ONNX Runtime %.2f %%%s, optimized %.2f %%\n",
                100 * ours, 100 * theirs, same ? "" : " (TOO FAR)", 100 * optimized);
  }
  finish(report, a, same);
}

}  // namespace

void add_export_command(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* cmd =
      app.add_subcommand("export",
                         "Write a trained model as an ONNX bundle: model, reference values, lint report, Triton "
                         "repository, engine script");
  cmd->add_option("RUN", a->run, "run folder, or one of its checkpoints")->required();
  cmd->add_option("--out", a->out, "folder of the bundle")->required();
  cmd->add_option("--profile", a->profile, "exact, trt8, trt10, trt11 or ort-cpu")->capture_default_str();
  cmd->add_option("--precision", a->precision, "automatic, fp32, fp16, bf16 or mixed")->capture_default_str();
  cmd->add_option("--opset", a->opset, "13 to 24; 0: the profile's")->capture_default_str();
  cmd->add_option("--target", a->target,
                  "runtime of the lint and the engine script, such as trt10.9; default: the profile's");
  cmd->add_option("--name", a->name, "of the model in the Triton repository; default: the model's");
  cmd->add_option("--range", a->ranges, "sizes of a dynamic dimension (batch, seq); may be repeated")
      ->type_name("NAME=MIN:OPT:MAX")
      ->allow_extra_args(false);
  CLI::Option* cache =
      cmd->add_option("--cache", a->cache, "give a language model a key-value cache: growing, or fixed to --max-length")
          ->check(CLI::IsMember({"growing", "fixed"}));
  cmd->add_option("--max-length", a->max_length, "tokens in a fixed cache; default: the model's context")
      ->needs(cache)
      ->check(CLI::PositiveNumber);
  cmd->add_flag("--fixed", a->fixed, "no dynamic dimensions");
  cmd->add_flag("--external-data", a->external_data, "weights in a file beside the model, however small");
  cmd->add_flag(
      "--verify", a->verify,
      "run the onnx checker and compare with ONNX Runtime at several sizes; exit code 1 if they differ, 2 if one "
      "of them could not be run");
  cmd->callback([a] { run(*a); });
}

}  // namespace xylem::cli
