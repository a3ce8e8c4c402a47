// SPDX-License-Identifier: Apache-2.0
// The configuration of a training run. One table (list_keys) names every key once; reading files, --set, error
// messages, help, docs/config.md and the resolved config.toml in the run folder all come from it.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/util/options.h"

namespace xylem {

struct TrainConfig {
  using List = std::vector<double>;

  struct Run {
    std::string dir = "runs/xylem", device = "auto", init;
    int64_t seed = 1337, threads = 0;
    double timeout = 600;
  } run;
  struct Model {
    std::string name;
    OptionValues options;  // every other key of [model]; the model checks them
  } model;
  struct Data {
    std::string kind, train, val;
    int64_t seq = 0, workers = 1, prefetch = 4, crop_padding = 0;
    bool flip = false;
    List mean, stddev;
  } data;
  struct Train {
    int64_t steps = 1000, global_batch = 32, micro_batch = 0, log_every = 10, eval_every = 0, eval_batches = 0;
    std::string precision = "fp32";
    double clip = 1, label_smoothing = 0;
    bool cuda_graph = false, debug_nan = false, tensorboard = true;
  } train;
  struct Optimizer {
    std::string name = "adamw";
    double lr = 1e-3, weight_decay = 0.01;
    OptionValues options;  // every other key of [optimizer]; the optimizer checks them
  } optimizer;
  struct Schedule {
    std::string kind = "cosine";
    int64_t warmup = 0, step_size = 1000;
    double floor = 0, decay_fraction = 0.2, gamma = 0.1;
  } schedule;
  struct Checkpoint {
    int64_t every = 1000, keep = 3;
    std::string memory = "auto";
    double mb_per_second = 0;
  } checkpoint;
  struct Ema {
    double decay = 0;
  } ema;
  struct Distributed {
    int64_t zero = 0;
    std::string reduce_dtype = "fp32";
    double bucket_mb = 25;
    bool find_unused = false, sync_batch_norm = false;
    int64_t verify_every = 0;
    bool deterministic = false;
    std::string algorithm = "auto";
  } distributed;
  struct Quantize {
    std::string format = "none", observer = "minmax", batch_norms = "fold", placement = "trt", exclude;
    int64_t start = 0, calibration = 8, freeze = 0;
    double percentile = 99.99;
    bool weights_only = false, per_channel = true, learned = false, attention = false, small_layers = false;
  } quantize;
};

// Reads a file, applies overrides ("optimizer.lr=3e-4") in order and checks the result. Throws Error naming the key:
// unknown (with the nearest known one), of the wrong type (with the expected one and the value), or out of range.
TrainConfig load_config(const std::string& file, const std::vector<std::string>& overrides = {});
TrainConfig parse_config(const std::string& toml, const std::vector<std::string>& overrides = {},
                         const std::string& source = "the configuration");

// A TOML file that parses to the same configuration; with `help` every key is explained.
std::string to_toml(const TrainConfig& config, bool help = false);
// What `xylem train --help-config` prints: every key with its default and meaning.
std::string config_help();
std::string config_page();  // docs/config.md

// Keys whose values differ, as "key: old -> new".
std::vector<std::string> config_changes(const TrainConfig& before, const TrainConfig& after);
// Of everything that decides the result (not where it is written, nor how often it is logged).
std::string config_hash(const TrainConfig& config);

}  // namespace xylem
