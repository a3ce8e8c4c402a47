// SPDX-License-Identifier: Apache-2.0
#include "models/export/export.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <sstream>

#include "cli/commands.h"
#include "cli/ranges.h"
#include "core/random/rng.h"
#include "core/util/check.h"
#include "models/export/bundle/bundle.h"
#include "models/export/runtime/ort.h"
#include "models/loop/evaluate.h"
#include "models/loop/targets.h"
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

// Data of the run, read on the CPU; null where the file is not there any more.
std::unique_ptr<Loader> find_data(const Trained& trained, DataSplit split) {
  const TrainConfig::Data& data = trained.config.data;
  const std::string& path = split == DataSplit::train ? data.train : data.val;
  if (!std::filesystem::exists(path)) return nullptr;
  return open_data(trained.config, *trained.model, split, Device::cpu());
}

// Inputs of the shape that the run trained on: tokens, or numbers as normalised pixels are.
Tensor made_up_input(const Trained& trained) {
  const auto found = trained.extra.find("input_shape");
  XY_CHECK(found != trained.extra.end(),
           "the checkpoint is of a version that did not keep the shape of its inputs, and '", trained.config.data.train,
           "' is not there to tell it; put that file back");
  Shape shape{2};
  std::string numbers = found->second;  // "[3, 32, 32]"
  std::replace_if(
      numbers.begin(), numbers.end(), [](char c) { return c < '0' || c > '9'; }, ' ');
  std::istringstream in(numbers);
  for (int64_t size; in >> size;) shape.insert(shape.rank(), size);
  rng::seed(0);
  if (trained.model->task() != RecordSpec::Task::language_modelling) return randn(shape);
  return (rand(shape, f64) * double(trained.model->classes())).to(i64);
}

Tensor example_input(const Trained& trained, Loader* val) {
  const std::unique_ptr<Loader> train = val ? nullptr : find_data(trained, DataSplit::train);
  Loader* data = val ? val : train.get();
  if (!data) return made_up_input(trained);
  const Tensor input = data->next().input;
  return input.narrow(0, 0, std::min<int64_t>(input.size(0), 8)).contiguous();
}

// Of the exported model, on the validation set.
double accuracy_in_runtime(const std::string& file, const ZooModel& model, Loader& loader, bool optimized) {
  OrtSession session(file, {.optimize = optimized, .threads = 0});  // all cores
  const Sampler& sampler = loader.sampler();
  int64_t all = sampler.steps_per_epoch();
  double correct = 0, counted = 0;
  loader.set_position(0);
  for (int64_t i = 0; i < all; ++i) {
    const Batch batch = loader.next();
    const int64_t valid = batch.input.size(0) - (i + 1 == all ? sampler.padded() : 0);
    const Batch used{batch.input.narrow(0, 0, valid).contiguous(), batch.target.narrow(0, 0, valid)};
    const Tensor logits = model.classes_last(session.run({used.input})[0].to(f32));
    correct += sum(eq(argmax(logits), used.target.to(i64)).to(f64)).item();
    counted += counted_targets(used, kIgnoredTarget).item();
  }
  return correct / counted;
}

// False if ONNX Runtime's accuracy is not that of the model.
bool compare_accuracy(ZooModel& model, const std::string& file, Loader& val) {
  // Without optimization ONNX Runtime computes the graph as it stands. Its integer kernels round biases too.
  LazyScope scope;
  const double ours = *evaluate(model, val).accuracy, theirs = accuracy_in_runtime(file, model, val, false);
  const double optimized = accuracy_in_runtime(file, model, val, true);
  const bool same = std::abs(ours - theirs) <= 1e-3;
  std::printf("accuracy on the validation set: Xylem %.2f %%, ONNX Runtime %.2f %%%s, optimized %.2f %%\n", 100 * ours,
              100 * theirs, same ? "" : " (TOO FAR)", 100 * optimized);
  return same;
}

void finish(const BundleReport& report, const Arguments& a, bool same = true) {
  std::printf("bundle: %s (%zu files)\n", a.out.c_str(), report.files.size());
  if (report.failed() || !same) throw Exit{1};
  if (!report.passed()) throw Exit{2};
}

void run(const Arguments& a) {
  Trained trained = load_trained(a.run, true);
  ZooModel& model = *trained.model;
  const bool language = model.task() == RecordSpec::Task::language_modelling;
  const std::unique_ptr<Loader> val = find_data(trained, DataSplit::val);
  ExportInput input{.name = language ? "input_ids" : "image", .example = example_input(trained, val.get())};
  if (language) input.example = input.example.to(i64);
  if (!a.fixed) input.dynamic[0] = "batch";
  if (!a.fixed && language) input.dynamic[1] = "seq";

  BundleOptions options{
      .name = a.name.empty() ? trained.config.model.name : a.name, .target = a.target, .verify = a.verify};
  options.graph.profile = parse_profile(a.profile);
  options.graph.precision = parse_export_precision(a.precision);
  options.graph.opset = a.opset;
  options.graph.outputs = {"logits"};
  options.graph.external_data = a.external_data;
  options.graph.ranges = parse_ranges(a.ranges);
  options.graph.metadata["xylem.step"] = std::to_string(trained.step);
  for (const char* known : {"val_step", "val_loss", "val_accuracy", "val_mean_iou"})
    if (trained.extra.contains(known)) options.graph.metadata[std::string("xylem.") + known] = trained.extra.at(known);
  auto forward = [&](const Tensors& x) -> Tensors {
    LazyScope scope;
    return {model(x[0])};
  };
  options.graph.activation_amax = ranges_in(trained.extra);
  if (options.graph.activation_amax.empty()) {  // the run had no evaluation
    RangeObserver observer(model);
    no_grad([&] { return forward({input.example}); });
    options.graph.activation_amax = observer.ranges();
  }
  if (!a.cache.empty()) {
    auto* decoder = dynamic_cast<LanguageModel*>(&model);
    XY_CHECK(decoder, "--cache is for language models; ", trained.config.model.name, " is none");
    XY_CHECK(!a.fixed, "--cache and --fixed do not go together");
    const CacheKind kind = a.cache == "fixed" ? CacheKind::fixed : CacheKind::growing;
    XY_CHECK(kind == CacheKind::fixed || a.max_length == 0, "--max-length ", a.max_length,
             " is for --cache fixed; a growing cache has no length, --range past=MIN:OPT:MAX bounds it");
    BundleReport report = export_decoder_bundle(*decoder, a.out, options, kind, a.max_length);
    std::fputs(report.text().c_str(), stdout);
    return finish(report, a);
  }
  if (!a.fixed) {
    options.graph.ranges.try_emplace("batch", DimRange{.min = 1, .opt = 8, .max = 64});
    int64_t length = input.example.rank() > 1 ? input.example.size(1) : 1;
    if (language) options.graph.ranges.try_emplace("seq", DimRange{.min = 1, .opt = length, .max = length});
  }
  BundleReport report = export_bundle(model, forward, {input}, a.out, options);
  std::fputs(report.text().c_str(), stdout);
  const bool ran = !report.checks.empty() && !report.checks[0].imported;  // in ONNX Runtime
  bool same = true;
  if (ran && !language && !a.fixed && val) same = compare_accuracy(model, report.exported.file, *val);
  if (ran && !val && !trained.config.data.val.empty())
    std::printf("'%s' is not there: the accuracy in ONNX Runtime was not compared\n", trained.config.data.val.c_str());
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
