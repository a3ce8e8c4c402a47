// SPDX-License-Identifier: Apache-2.0
#include "models/loop/run_log.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/util/check.h"
#include "core/util/file.h"
#include "core/util/file_error.h"
#include "core/util/text.h"
#include "distributed/world/world.h"
#include "models/loop/plot.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// JSON has no NaN; null keeps the line valid.
nlohmann::json number(double v) { return std::isfinite(v) ? nlohmann::json(v) : nlohmann::json(nullptr); }

}  // namespace

bool shows_progress(bool terminal, const std::string& launcher) {
  auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (std::string wish = variable("XY_PROGRESS"); !wish.empty()) return wish != "0";
  return terminal && launcher.empty() && variable("TERM") != "dumb" && variable("NO_COLOR").empty();
}

RunLog::RunLog(const Options& options)
    : options_(options), progress_(shows_progress(::isatty(STDOUT_FILENO) == 1, world().launcher)) {
  fs::create_directories(options.folder);
  restore_history();
  metrics_.open(options.folder + "/metrics.jsonl", std::ios::app);
  if (!metrics_) cannot_write(options.folder + "/metrics.jsonl");
  if (options.tensorboard) board_ = std::make_unique<TensorBoard>(options.folder + "/tensorboard", options.resumed_at);
}

// Keeps the reports of the steps that the run goes on from, for the file and the curve.
void RunLog::restore_history() {
  std::string path = options_.folder + "/metrics.jsonl", kept;
  std::ifstream in(path);
  if (!in) return;
  for (std::string line; std::getline(in, line);) {
    auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || json.value("step", INT64_MAX) > options_.resumed_at) continue;
    kept += line + "\n";
    auto add = [&](const char* key, auto& points) {
      if (json.contains(key) && json[key].is_number()) points.emplace_back(json["step"], json[key]);
    };
    add("loss", train_);
    add("val_loss", val_);
  }
  in.close();
  replace_file(path, kept);
}

void RunLog::clear_status() {
  if (status_shown_) std::fputs("\r\033[K", stdout);
  status_shown_ = false;
}

void RunLog::say(const std::string& line) {
  clear_status();
  std::puts(line.c_str());
  std::fflush(stdout);
}

void RunLog::status(int64_t step, double seconds_left) {
  if (!progress_) return;
  std::string line = format("\rstep %lld/%lld, %s left\033[K", static_cast<long long>(step),
                            static_cast<long long>(options_.steps), human_time(seconds_left).c_str());
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
  status_shown_ = true;
}

void RunLog::report(const StepReport& r, double seconds_left) {
  std::string rate = options_.unit + "_per_s";
  nlohmann::ordered_json json{{"step", r.step},
                              {"loss", number(r.loss)},
                              {"lr", r.lr},
                              {"grad_norm", number(r.grad_norm)},
                              {rate, r.per_second},
                              {"step_ms", r.step_ms},
                              {"memory_bytes", r.memory},
                              {"data_stall", r.data_stall}};
  std::string unit = options_.unit == "tokens" ? "tok/s" : "img/s";
  int digits = int(std::to_string(options_.steps).size());
  std::string step =
      format("step %*lld/%lld", digits, static_cast<long long>(r.step), static_cast<long long>(options_.steps));
  std::string line = step + format(" | loss %.4f | lr %.2e | norm %.2f | %s %s | %.*f ms", r.loss, r.lr, r.grad_norm,
                                   human_count(r.per_second).c_str(), unit.c_str(), r.step_ms < 10 ? 2 : 0, r.step_ms);
  auto optional = [&](const char* key, const std::optional<double>& v) {
    if (v) json[key] = number(*v);
    return v.has_value();
  };
  if (optional("mfu", r.mfu)) line += format(" | mfu %.1f%%", *r.mfu * 100);
  if (optional("loss_scale", r.loss_scale)) line += format(" | scale %.0f", *r.loss_scale);
  say(line + " | mem " + human_bytes(double(r.memory)) + format(" | stall %.1f%% | ", r.data_stall * 100) +
      human_time(seconds_left) + " left");
  if (optional("val_loss", r.val_loss)) {
    line = step + format(" | validation loss %.4f", *r.val_loss);
    if (optional("val_accuracy", r.val_accuracy)) line += format(" | accuracy %.2f%%", *r.val_accuracy * 100);
    if (optional("val_mean_iou", r.val_mean_iou)) line += format(" | mean IoU %.2f%%", *r.val_mean_iou * 100);
    say(line);
  }

  metrics_ << json.dump() << std::endl;
  if (!metrics_) cannot_write(options_.folder + "/metrics.jsonl");
  if (board_) {
    board_->scalar("train/loss", r.loss, r.step);
    board_->scalar("train/lr", r.lr, r.step);
    board_->scalar("train/grad_norm", r.grad_norm, r.step);
    board_->scalar("speed/" + rate, r.per_second, r.step);
    if (r.mfu) board_->scalar("speed/mfu", *r.mfu, r.step);
    board_->scalar("speed/data_stall", r.data_stall, r.step);
    if (r.val_loss) board_->scalar("validation/loss", *r.val_loss, r.step);
    if (r.val_accuracy) board_->scalar("validation/accuracy", *r.val_accuracy, r.step);
    if (r.val_mean_iou) board_->scalar("validation/mean_iou", *r.val_mean_iou, r.step);
    board_->flush();
  }
  train_.emplace_back(r.step, r.loss);
  if (r.val_loss) val_.emplace_back(r.step, *r.val_loss);
  if (seconds_now() - drawn_at_ > 5) draw();
}

void RunLog::draw() {
  try_replace_file(options_.folder + "/loss.svg",
                   plot_svg("Loss of " + options_.folder, "step", "loss",
                            {{"training", "#1f77b4", train_}, {"validation", "#d62728", val_, true}}));
  drawn_at_ = seconds_now();
}

void RunLog::finish() {
  clear_status();
  draw();
  if (board_) board_->flush();
}

}  // namespace xylem
