// SPDX-License-Identifier: Apache-2.0
// What a run says about itself: progress lines, metrics.jsonl, TensorBoard events and loss.svg.
#pragma once
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/loop/tensorboard.h"

namespace xylem {

// Figures of one logged step.
struct StepReport {
  int64_t step = 0;  // the first is 1
  double loss = 0, lr = 0, grad_norm = 0;
  double per_second = 0;  // tokens or images
  double step_ms = 0;
  std::optional<double> mfu = {};  // share of the device's peak
  int64_t memory = 0;              // largest number of bytes in use since the last report
  double data_stall = 0;           // share of the time spent waiting for data
  std::optional<double> loss_scale = {}, val_loss = {}, val_accuracy = {}, val_mean_iou = {};
};

// Whether a last line that is replaced all the time can be read where standard output goes: on a terminal, unless TERM
// is dumb, NO_COLOR is set, or a launcher passes the output on, perhaps into a file. XY_PROGRESS=1 or 0 decides.
bool shows_progress(bool terminal, const std::string& launcher);

class RunLog {
 public:
  struct Options {
    std::string folder;
    std::string unit = "tokens";  // tokens or images: the rate is called <unit>_per_s
    int64_t steps = 0;            // of the whole run
    int64_t resumed_at = 0;       // reports after this step are dropped from metrics.jsonl, they will come again
    bool tensorboard = true;
  };
  explicit RunLog(const Options& options);

  void say(const std::string& line);  // a line on standard output
  // Adds a line to standard output and to metrics.jsonl, TensorBoard events, and redraws loss.svg at most every few
  // seconds.
  void report(const StepReport& r, double seconds_left);
  // Replaces the status on the last line, where that shows.
  void status(int64_t step, double seconds_left);
  void finish();

 private:
  void clear_status();
  void restore_history();
  void draw();
  Options options_;
  std::ofstream metrics_;
  std::unique_ptr<TensorBoard> board_;
  std::vector<std::pair<double, double>> train_, val_;
  double drawn_at_ = -1e9;
  bool progress_, status_shown_ = false;
};

}  // namespace xylem
