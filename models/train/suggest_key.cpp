// SPDX-License-Identifier: Apache-2.0
#include "models/train/suggest_key.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>

#include "core/util/options.h"

namespace xylem {
namespace {

// Names of other trainers' options.
const std::map<std::string, std::string> kSynonyms = {
    {"accumulation", "train.micro_batch"},
    {"amp", "train.precision"},
    {"batch", "train.global_batch"},
    {"batch_size", "train.global_batch"},
    {"checkpoint_interval", "checkpoint.every"},
    {"clip_grad", "train.clip"},
    {"dtype", "train.precision"},
    {"epochs", "train.steps"},
    {"eval_interval", "train.eval_every"},
    {"eval_steps", "train.eval_every"},
    {"grad_clip", "train.clip"},
    {"gradient_accumulation_steps", "train.micro_batch"},
    {"gradient_clip", "train.clip"},
    {"init_from", "run.init"},
    {"learning_rate", "optimizer.lr"},
    {"log_interval", "train.log_every"},
    {"logging_steps", "train.log_every"},
    {"lr_scheduler", "schedule.kind"},
    {"lr_scheduler_type", "schedule.kind"},
    {"max_grad_norm", "train.clip"},
    {"max_iters", "train.steps"},
    {"max_steps", "train.steps"},
    {"min_lr", "schedule.floor"},
    {"mixed_precision", "train.precision"},
    {"num_epochs", "train.steps"},
    {"num_workers", "data.workers"},
    {"output_dir", "run.dir"},
    {"per_device_train_batch_size", "train.micro_batch"},
    {"save_every", "checkpoint.every"},
    {"save_steps", "checkpoint.every"},
    {"save_total_limit", "checkpoint.keep"},
    {"scheduler", "schedule.kind"},
    {"seq_len", "data.seq"},
    {"sequence_length", "data.seq"},
    {"total_steps", "train.steps"},
    {"warmup_iters", "schedule.warmup"},
    {"warmup_steps", "schedule.warmup"},
    {"wd", "optimizer.weight_decay"},
    {"zero_stage", "distributed.zero"},
};

std::string last_part(const std::string& key) { return key.substr(key.rfind('.') + 1); }

}  // namespace

std::string suggest_key(const std::string& given, const std::vector<std::string>& keys) {
  std::string name = given;
  for (char& c : name) c = c == '-' ? '_' : char(std::tolower(static_cast<unsigned char>(c)));
  const std::string last = last_part(name);
  if (auto synonym = kSynonyms.find(last); synonym != kSynonyms.end()) return synonym->second;
  std::vector<std::string> elsewhere;
  std::copy_if(keys.begin(), keys.end(), std::back_inserter(elsewhere),
               [&](const std::string& key) { return last_part(key) == last; });
  if (!elsewhere.empty()) return nearest_name(name, elsewhere);
  std::string best;
  size_t fewest = std::max<size_t>(1, last.size() / 3) + 1;  // more edits than this make another word of it
  for (const std::string& key : keys) {
    size_t edits = edit_distance(name, key);
    if (name.find('.') == std::string::npos || edits >= fewest) edits = edit_distance(last, last_part(key));
    if (edits < fewest) fewest = edits, best = key;
  }
  return best;
}

}  // namespace xylem
