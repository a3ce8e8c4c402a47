// SPDX-License-Identifier: Apache-2.0
#include "models/train/trainer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <utility>

#include "core/util/file.h"
#include "core/util/file_error.h"
#include "core/util/text.h"
#include "distributed/job/plan.h"
#include "distributed/launch/run.h"
#include "distributed/parallel/verify.h"
#include "distributed/plan/tuner.h"
#include "distributed/record/recorder.h"
#include "distributed/record/trace.h"
#include "models/checkpoint/checkpoint.h"
#include "models/loop/evaluate.h"
#include "models/loop/meter.h"
#include "models/loop/run_lock.h"
#include "models/loop/run_log.h"
#include "models/loop/team.h"
#include "models/loop/train_step.h"
#include "models/nn/layers.h"
#include "models/nn/ranges.h"
#include "models/optim/registry.h"
#include "models/optim/schedule.h"
#include "models/train/qat.h"
#include "models/train/task.h"
#include "ops/matmul/matmul.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
std::atomic<bool> stop_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free, "request_stop is called from signal handlers");

DType compute_type(const std::string& precision) {
  return precision == "bf16" ? bf16 : precision == "fp16" ? f16 : f32;
}

Schedule make_schedule(const TrainConfig& c) {
  return {.kind = parse_schedule(c.schedule.kind),
          .lr = c.optimizer.lr,
          .total = c.train.steps,
          .warmup = c.schedule.warmup,
          .floor = c.schedule.floor,
          .decay_fraction = c.schedule.decay_fraction,
          .step_size = c.schedule.step_size,
          .gamma = c.schedule.gamma};
}

ParallelOptions parallel_options(const TrainConfig& config, const Group& group) {
  const TrainConfig::Distributed& d = config.distributed;
  return {.group = group,
          .zero = int(d.zero),
          .reduce_dtype = d.reduce_dtype == "bf16" ? bf16 : f32,
          .bucket_mb = d.bucket_mb,
          .first_bucket_mb = std::min(1.0, d.bucket_mb),
          // Learned scales rest until quantization begins.
          .find_unused = d.find_unused || config.quantize.learned};
}

void move_aside(const std::string& dir) {
  if (!fs::exists(dir)) return;
  RunLock{dir};  // not from under a job
  int n = 1;
  while (fs::exists(dir + "." + std::to_string(n))) ++n;
  fs::rename(dir, dir + "." + std::to_string(n));
  std::printf("moved the earlier run to %s.%d\n", dir.c_str(), n);
}

Peers peers(const Team& team) {
  if (team.size() == 1) return {};
  return {team.rank(), team.size(), [group = team.group()](const std::string& s) { return group.gather_strings(s); }};
}

std::string memory_text(const Optimizer& o) {
  ParallelMemory m = o.params().parallel().memory();
  return human_bytes(double(m.params)) + " of parameters, " + human_bytes(double(m.grads)) + " of gradients and " +
         human_bytes(double(o.state_bytes())) + " of optimizer state";
}

class Trainer {
 public:
  Trainer(const TrainConfig& config, Start start, const std::string& trace);
  TrainResult run();

 private:
  void resume_or_begin(Start start);
  void note_changes(std::vector<std::string>& notes) const;
  void step();
  void calibrate();
  void check_finite(const Window& window) const;
  void report(bool with_evaluation, bool last);
  void evaluate_now(int64_t batches);  // with the averaged weights where there are some; 0: all batches
  void save();
  void report_saved(const std::optional<Checkpoints::Saved>& saved);
  int64_t samples_per_pass() const { return split_.micro * team_.size(); }  // of all ranks together
  Batch next_batch();
  void verify();  // that the ranks' parameters are equal
  bool due(int64_t every) const { return every > 0 && step_ % every == 0; }
  void say(const std::string& line) {
    if (log_) log_->say(line);
  }

  TrainConfig config_;
  Run run_;
  Team team_;
  BatchSplit split_;
  Device device_;
  DType dtype_;
  int64_t step_ = 0;
  Task task_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<Ema> ema_;
  std::optional<LossScaler> scaler_;
  std::optional<TrainStep> train_step_;
  Schedule schedule_;
  std::optional<RunLock> lock_;  // of rank 0, for all
  Checkpoints checkpoints_;
  std::optional<RunLog> log_;  // of rank 0
  std::optional<Meter> meter_;
  std::optional<Evaluation> evaluation_, calibrated_;  // calibrated_: quantized, before any training with it
  std::map<std::string, std::string> evaluated_;       // what checkpoints keep of the latest evaluation
  int64_t saved_at_ = -1;
  double seconds_left_ = 0;
  bool flops_known_ = false;
};

Trainer::Trainer(const TrainConfig& config, Start start, const std::string& trace)
    : config_(config),
      run_({.seed = uint64_t(config.run.seed),
            .device = config.run.device,
            .timeout_seconds = config.run.timeout,
            .threads = config.run.threads,
            .folder = config.run.dir,
            .config = to_toml(config),
            .trace = trace}),
      team_(Group::world()),
      split_(team_.split(config.train.global_batch, config.train.micro_batch)),
      device_(run_.device()),
      dtype_(compute_type(config.train.precision)),
      schedule_(make_schedule(config)),
      checkpoints_(config.run.dir, config.checkpoint.keep, peers(team_),
                   config.checkpoint.memory == "shared" ? SaveFrom::shared_memory : SaveFrom::own_memory,
                   config.checkpoint.mb_per_second) {
  set_allow_tf32(config.train.precision == "tf32");
  task_ = make_task(config, device_, team_);
  if (!config.run.init.empty() && (start == Start::fresh || checkpoints_.steps().empty()))
    load_initial_weights(*task_.model, config);
  task_.model->to(device_);
  task_.model->to(dtype_);
  if (team_.size() > 1)
    apply_plan(team_.group(), device_,
               {.algorithm = config.distributed.algorithm, .deterministic = config.distributed.deterministic});
  if (config.distributed.sync_batch_norm) use_sync_batch_norm(*task_.model, team_.group());
  const TrainConfig::Optimizer& o = config.optimizer;
  optimizer_ = optimizer_kind(o.name).make(*task_.model, {.parallel = parallel_options(config, team_.group())}, o.lr,
                                           o.weight_decay, o.options);
  if (config.ema.decay > 0) ema_.emplace(*task_.model, optimizer_->params(), config.ema.decay);
  if (dtype_ == f16) scaler_.emplace(device_);
  train_step_.emplace(*task_.model, *optimizer_,
                      TrainStepOptions{.micro_batches = split_.micro_batches,
                                       .clip = config.train.clip,
                                       .label_smoothing = config.train.label_smoothing,
                                       .average = ema_ ? &*ema_ : nullptr,
                                       .scaler = scaler_ ? &*scaler_ : nullptr,
                                       .cuda_graph = config.train.cuda_graph,
                                       .debug_nan = config.train.debug_nan});
  team_.seed(uint64_t(config.run.seed));  // all ranks have drawn the same weights
  resume_or_begin(start);
}

void Trainer::resume_or_begin(Start start) {
  const std::string& dir = config_.run.dir;
  team_.on_root([&] {
    if (start == Start::fresh) move_aside(dir);
    lock_.emplace(dir);
  });
  team_.check_shared(dir);
  std::vector<std::string> notes;
  if (lock_ && !lock_->note().empty()) notes.push_back(lock_->note());
  CheckpointParts parts{*task_.model, optimizer_.get(), ema_ ? &*ema_ : nullptr, scaler_ ? &*scaler_ : nullptr};
  auto resumed = checkpoints_.resume(parts, &notes);
  XY_CHECK(resumed || start != Start::resume, "the run '", dir, "' has no intact checkpoint to resume from",
           notes.empty() ? "" : "; " + notes.back());
  if (resumed) {
    step_ = saved_at_ = *resumed;
    task_.train->set_position(std::stoll(parts.extra.at("samples")) / samples_per_pass());
    evaluated_ = parts.extra;
    restore_quantization(*task_.model, config_, step_);
    if (parts.extra.at("config") != config_hash(config_)) note_changes(notes);
  }

  meter_.emplace(device_, config_.train.log_every, peak_flops(device_, config_.train.precision));
  if (!team_.root()) return;

  log_.emplace(RunLog::Options{.folder = dir,
                               .unit = task_.unit(),
                               .steps = config_.train.steps,
                               .resumed_at = step_,
                               .tensorboard = config_.train.tensorboard});
  replace_file(dir + "/config.toml", to_toml(config_));
  for (const std::string& note : notes) log_->say(note);
  log_->say("run " + dir + ": " + config_.model.name + " with " + human_count(double(task_.model->num_parameters())) +
            " parameters, " + config_.train.precision + " on " + device_.str() + ", " +
            std::to_string(config_.train.global_batch) + (task_.language() ? " sequences" : " images") + " per step" +
            (split_.micro_batches > 1 ? " in " + std::to_string(split_.micro_batches) + " micro-batches" : ""));
  for (const std::string& conflict : tuner::conflicts()) log_->say(conflict);
  if (team_.size() > 1)
    log_->say(std::to_string(team_.size()) + " ranks, ZeRO " + std::to_string(config_.distributed.zero) + ", " +
              memory_text(*optimizer_) + " on each");
  if (train_step_->captures())
    log_->say("a CUDA graph replays the steps after the second");
  else if (config_.train.cuda_graph)
    log_->say("no CUDA graph: " + train_step_->no_graph());
  if (resumed) log_->say("resuming after step " + std::to_string(step_) + " of " + std::to_string(config_.train.steps));
}

void Trainer::note_changes(std::vector<std::string>& notes) const {
  try {
    for (const std::string& change : config_changes(load_config(config_.run.dir + "/config.toml"), config_))
      notes.push_back("changed since the checkpoint: " + change);
  } catch (const Error& e) {
    notes.push_back("the configuration differs from the checkpoint's, which cannot be read: " + e.message());
  }
}

// Finds the quantizers' scales, on the batches that the next steps train on.
void Trainer::calibrate() {
  meter_->pause();
  int64_t position = task_.train->position();
  calibrate_now(
      *task_.model, config_, [&] { (*task_.model)(task_.train->next().input); }, &team_.group());
  task_.train->set_position(position);
  meter_->resume();
  std::string line = "calibrated for " + config_.quantize.format;
  bool trained = !config_.run.init.empty() || step_ > 0;
  if (trained && task_.val) {
    evaluate_now(0);
    calibrated_ = std::exchange(evaluation_, std::nullopt);
    line += "; as it is, val_loss " + std::to_string(calibrated_->loss);
    if (calibrated_->accuracy) line += ", val_accuracy " + std::to_string(*calibrated_->accuracy);
  }
  say(line);
}

void Trainer::step() {
  optimizer_->set_lr(schedule_(step_));
  train_step_->run([this] { return next_batch(); });
  ++step_;
  meter_->add(train_step_->loss(), train_step_->norm());
  if (std::exchange(flops_known_, true)) return;
  meter_->set_forward_flops(train_step_->forward_flops() * team_.size());
  say(meter_->formula());
}

void Trainer::check_finite(const Window& w) const {
  for (size_t i = 0; i < w.losses.size(); ++i) {
    bool loss_bad = !std::isfinite(w.losses[i]), norm_bad = !std::isfinite(w.norms[i]) && !scaler_;
    XY_CHECK(!loss_bad && !norm_bad, "the ", loss_bad ? "loss" : "gradient norm", " of step ",
             step_ - int64_t(w.losses.size()) + int64_t(i) + 1, " is ", loss_bad ? w.losses[i] : w.norms[i],
             "; --set train.debug_nan=true names the operation that makes it. ",
             saved_at_ >= 0 ? "The newest checkpoint is of step " + std::to_string(saved_at_) + " and intact"
                            : "Nothing was saved yet");
  }
}

void Trainer::report(bool with_evaluation, bool last) {
  Window w = meter_->read(task_.train->stall_seconds(), team_);
  check_finite(w);
  seconds_left_ = w.per_step() * double(config_.train.steps - step_);
  StepReport r{.step = step_,
               .loss = w.losses.back(),
               .lr = optimizer_->lr(),
               .grad_norm = w.norms.back(),
               .per_second = double(config_.train.global_batch * task_.units_per_sample) / w.per_step(),
               .step_ms = w.per_step() * 1e3,
               .mfu = meter_->mfu(w.per_step()),
               .memory = w.peak_memory,
               .data_stall = w.stall / w.seconds};
  if (scaler_) r.loss_scale = scaler_->scale().item();
  if (with_evaluation) {
    evaluate_now(last ? 0 : config_.train.eval_batches);
    r.val_loss = evaluation_->loss;
    r.val_accuracy = evaluation_->accuracy;
    r.val_mean_iou = evaluation_->mean_iou;
  }
  if (log_) log_->report(r, seconds_left_);
}

void Trainer::evaluate_now(int64_t batches) {
  recorder::Activity activity("the evaluation");
  trace::Span span("evaluation");
  meter_->pause();
  optimizer_->params().parallel().broadcast_state();
  std::optional<Ema::Scope> averaged;
  if (ema_) averaged.emplace(*ema_);
  RangeObserver observer(*task_.model);
  evaluation_ = evaluate(*task_.model, *task_.val, {.samples = batches * task_.val_batch, .group = team_.group()});
  evaluated_ = {{"val_step", std::to_string(step_)}, {"val_loss", detail::concat(evaluation_->loss)}};
  if (evaluation_->accuracy) evaluated_["val_accuracy"] = detail::concat(*evaluation_->accuracy);
  if (evaluation_->mean_iou) evaluated_["val_mean_iou"] = detail::concat(*evaluation_->mean_iou);
  put_ranges(observer.ranges(&team_.group()), evaluated_);
  meter_->resume();
}

void Trainer::save() {
  if (saved_at_ == step_) return;
  recorder::Activity activity("a checkpoint");
  trace::Span span("checkpoint");
  meter_->pause();
  CheckpointParts parts{*task_.model, optimizer_.get(), ema_ ? &*ema_ : nullptr, scaler_ ? &*scaler_ : nullptr};
  parts.extra = evaluated_;
  parts.extra["samples"] = std::to_string(task_.train->position() * samples_per_pass());
  parts.extra["input_shape"] = task_.sample_shape().str();  // for exporting
  parts.extra["zero"] = std::to_string(config_.distributed.zero);
  parts.extra["config"] = config_hash(config_);
  checkpoints_.save(step_, parts);
  saved_at_ = step_;
  meter_->resume();
}

Batch Trainer::next_batch() {
  recorder::Activity activity("the data loader");
  trace::Span span("data");
  return task_.train->next();
}

void Trainer::verify() {
  trace::Span span("verify");
  meter_->pause();
  Tensors params;
  std::vector<std::string> names;
  for (const NamedTensor& p : task_.model->parameters()) params.push_back(p.tensor), names.push_back(p.name);
  auto trouble = verify_replicas(params, team_.group(), names);
  XY_CHECK(!trouble, "after step ", step_, " ", *trouble);
  meter_->resume();
}

void Trainer::report_saved(const std::optional<Checkpoints::Saved>& saved) {
  if (saved) say(saved->str());
}

TrainResult Trainer::run() {
  auto begin = std::chrono::steady_clock::now();
  stop_requested = false;
  if (step_ >= config_.train.steps) say("the run is complete; raise train.steps to go on, or start over with --fresh");
  bool stopping = false;
  while (step_ < config_.train.steps && !stopping) {
    if (quantizes(config_) && step_ == config_.quantize.start) calibrate();
    try {
      step();
    } catch (...) {
      std::fprintf(stderr, "xylem: step %lld failed\n", static_cast<long long>(step_) + 1);
      throw;
    }
    if (quantizes(config_)) quantize::agree(*task_.model, team_.group());
    if (quantizes(config_) && step_ == freeze_step(config_)) quantize::freeze(*task_.model, &team_.group());
    bool last = step_ == config_.train.steps, save_now = last || due(config_.checkpoint.every);
    bool validate = task_.val && (last || due(config_.train.eval_every));
    if (step_ == 1 || due(config_.train.log_every) || validate || save_now || meter_->full())
      report(validate, last);
    else if (log_)
      log_->status(step_, seconds_left_);
    if (due(config_.distributed.verify_every)) verify();  // before anything wrong is saved
    if (save_now) save();
    report_saved(checkpoints_.saved());
    stopping = team_.any(stop_requested);
  }
  if (step_ > saved_at_ && step_ > 0) {  // stopped in between
    if (meter_->pending() > 0) report(false, false);
    save();
  }
  if (!evaluation_ && task_.val && !stopping) evaluate_now(0);
  report_saved(checkpoints_.finish());
  if (log_) log_->finish();

  TrainResult result;
  result.step = step_;
  result.interrupted = step_ < config_.train.steps;
  if (saved_at_ >= 0) result.checkpoint = checkpoints_.path(saved_at_);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  char text[160];
  std::string line = "final: step=" + std::to_string(step_);
  auto add = [&](const char* name, double value) {
    std::snprintf(text, sizeof text, " %s=%.4f", name, value);
    line += text;
  };
  if (evaluation_) {
    result.val_loss = evaluation_->loss;
    result.val_accuracy = evaluation_->accuracy;
    add("val_loss", evaluation_->loss);
    if (evaluation_->accuracy) add("val_accuracy", *evaluation_->accuracy);
    if (evaluation_->mean_iou) add("val_mean_iou", *evaluation_->mean_iou);
    if (calibrated_ && calibrated_->accuracy) add("untrained_accuracy", *calibrated_->accuracy);
  }
  std::snprintf(text, sizeof text, " seconds=%.1f", result.seconds);
  say(line + text);
  return result;
}

}  // namespace

TrainResult train(const TrainConfig& config, Start start, const std::string& trace) {
  return Trainer(config, start, trace).run();
}

void request_stop() { stop_requested = true; }

}  // namespace xylem
