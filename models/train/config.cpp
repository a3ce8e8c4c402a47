// SPDX-License-Identifier: Apache-2.0
#include "models/train/config.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <optional>
#include <sstream>
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include "core/util/check.h"
#include "core/util/file.h"
#include "core/util/hash.h"
#include "models/optim/registry.h"
#include "models/optim/schedule.h"
#include "models/train/suggest_key.h"
#include "models/zoo/zoo.h"

namespace xylem {
namespace {

using List = TrainConfig::List;
using Field = std::variant<int64_t*, double*, bool*, std::string*, List*>;

struct Key {
  std::string name;  // "section.key"
  Field field;
  std::string help;
  std::vector<std::string> choices = {};  // of a text
  std::optional<double> low = {};         // of a number
};

std::vector<Key> list_keys(TrainConfig& c) {
  constexpr double kAny = 0;
  return {
      {"run.dir", &c.run.dir,
       "folder of the run: checkpoints, metrics.jsonl, loss.svg, TensorBoard events, config.toml"},
      {"run.seed", &c.run.seed, "seed of initial weights, dropout and the order of the data", {}, kAny},
      {"run.device", &c.run.device, "cpu, cuda, cuda:1, or auto: the rank's own GPU if there are some"},
      {"run.init", &c.run.init, "run or checkpoint whose weights this run begins with; empty: random ones"},
      {"run.threads", &c.run.threads, "CPU cores to use; 0: all, or the rank's share of them", {}, 0},
      {"run.timeout",
       &c.run.timeout,
       "seconds after which a collective that does not finish ends the job, with a verdict",
       {},
       1},

      {"model.name", &c.model.name, "one of the models below, whose options are further keys of this section"},

      {"data.kind",
       &c.data.kind,
       "tokens (a token file for each split) or hdf5 (a file of images for each, with labels, or masks for "
       "segmentation)",
       {"tokens", "hdf5"}},
      {"data.train", &c.data.train, "file to train on; `xylem data` makes one"},
      {"data.val", &c.data.val, "file to validate on; empty: none"},
      {"data.seq", &c.data.seq, "tokens: length of a sequence; 0: the model's context", {}, 0},
      {"data.crop_padding", &c.data.crop_padding, "images: crop at random after padding by so many pixels", {}, 0},
      {"data.flip", &c.data.flip, "images: mirror half of them"},
      {"data.mean", &c.data.mean, "images: subtracted from each channel after scaling to 0..1; empty: nothing"},
      {"data.stddev", &c.data.stddev, "images: each channel is divided by it; empty: nothing"},
      {"data.workers", &c.data.workers, "threads that prepare batches; 0: the training thread itself", {}, 0},
      {"data.prefetch", &c.data.prefetch, "batches prepared ahead", {}, 1},

      {"train.steps", &c.train.steps, "optimizer steps", {}, 1},
      {"train.global_batch", &c.train.global_batch, "samples per step, of all ranks together", {}, 1},
      {"train.micro_batch",
       &c.train.micro_batch,
       "samples per forward pass and rank; gradients accumulate; 0: a rank's whole share of global_batch",
       {},
       0},
      {"train.precision",
       &c.train.precision,
       "fp32, tf32 (fp32 with TF32 matrix products), bf16 (fp32 master weights) or fp16 (and loss scaling)",
       {"fp32", "tf32", "bf16", "fp16"}},
      {"train.cuda_graph", &c.train.cuda_graph,
       "on a GPU, launch every step after the second as one CUDA graph, with the same result: for models whose many "
       "launches take longer than their kernels"},
      {"train.clip", &c.train.clip, "largest global gradient norm; 0: no clipping", {}, 0},
      {"train.label_smoothing",
       &c.train.label_smoothing,
       "classifiers: share of the target spread over all classes",
       {},
       0},
      {"train.log_every", &c.train.log_every, "steps between log lines", {}, 1},
      {"train.eval_every", &c.train.eval_every, "steps between evaluations; 0: only at the end", {}, 0},
      {"train.eval_batches", &c.train.eval_batches, "batches per evaluation during training; 0: all", {}, 0},
      {"train.debug_nan", &c.train.debug_nan,
       "when the loss or a gradient is not finite, repeat the step and name the operation that made it (waits for "
       "every step)"},
      {"train.tensorboard", &c.train.tensorboard, "write TensorBoard event files"},

      {"optimizer.name", &c.optimizer.name,
       "one of the optimizers below, whose options are further keys of this section", optimizer_names()},
      {"optimizer.lr", &c.optimizer.lr, "highest learning rate", {}, 0},
      {"optimizer.weight_decay", &c.optimizer.weight_decay, "on parameters of two and more dimensions", {}, 0},

      {"schedule.kind", &c.schedule.kind, "constant, linear, cosine, wsd (warm-up, stable, linear decay) or step",
       schedule_names()},
      {"schedule.warmup", &c.schedule.warmup, "steps of linear growth at the start", {}, 0},
      {"schedule.floor",
       &c.schedule.floor,
       "linear, cosine, wsd: what the learning rate falls to when all steps are done, as a share of optimizer.lr",
       {},
       0},
      {"schedule.decay_fraction", &c.schedule.decay_fraction, "wsd: share of the steps that decay", {}, 0},
      {"schedule.step_size", &c.schedule.step_size, "step: steps between reductions", {}, 1},
      {"schedule.gamma", &c.schedule.gamma, "step: factor of a reduction", {}, 0},

      {"checkpoint.every", &c.checkpoint.every, "steps between checkpoints; one is always saved at the end", {}, 1},
      {"checkpoint.keep", &c.checkpoint.keep, "newest checkpoints to keep; 0: all", {}, 0},
      {"checkpoint.memory",
       &c.checkpoint.memory,
       "auto, shared or private: where the state lies while it is written; in shared memory (/dev/shm) it outlives "
       "processes that are killed, and a restart on the same hosts finishes the writing; auto: shared under `xylem "
       "run`",
       {"auto", "shared", "private"}},
      {"checkpoint.mb_per_second",
       &c.checkpoint.mb_per_second,
       "megabytes a second that each rank writes at most, for a file system that others use too; 0: no limit",
       {},
       0},

      {"ema.decay", &c.ema.decay, "decay of averaged weights, which evaluation then uses; 0: none", {}, 0},

      {"distributed.zero",
       &c.distributed.zero,
       "ZeRO: ranks share the optimizer's state (1), the gradients too (2), the parameters too (3); 0: nothing",
       {},
       0},
      {"distributed.reduce_dtype",
       &c.distributed.reduce_dtype,
       "fp32 gradients travel as fp32, or rounded to bf16",
       {"fp32", "bf16"}},
      {"distributed.bucket_mb", &c.distributed.bucket_mb, "MiB of parameters whose gradients travel together", {}, 0},
      {"distributed.find_unused", &c.distributed.find_unused,
       "parameters that a step does not use count as zero; otherwise they are an error"},
      {"distributed.sync_batch_norm", &c.distributed.sync_batch_norm,
       "batch normalisation over the samples of all ranks"},
      {"distributed.verify_every",
       &c.distributed.verify_every,
       "steps between comparisons of the ranks' parameters, bit by bit, which name a rank that differs; 0: none",
       {},
       0},
      {"distributed.algorithm",
       &c.distributed.algorithm,
       "how gradients are summed: auto (by the plan; docs/plan.md), ring or tree",
       {"auto", "ring", "tree"}},
      {"distributed.deterministic", &c.distributed.deterministic,
       "one algorithm, protocol and number of channels for every collective: equal sums from run to run"},

      {"quantize.format",
       &c.quantize.format,
       "none, int8, fp8 or int4 (weights only): numbers that the model learns to compute with",
       {"none", "int8", "fp8", "int4"}},
      {"quantize.weights_only", &c.quantize.weights_only, "leave activations as they are"},
      {"quantize.start", &c.quantize.start, "step at which quantization sets in", {}, 0},
      {"quantize.calibration", &c.quantize.calibration, "micro-batches that the scales are found on", {}, 1},
      {"quantize.observer",
       &c.quantize.observer,
       "minmax, moving_average, percentile, entropy or mse: how activations get their scales",
       {"minmax", "moving_average", "percentile", "entropy", "mse"}},
      {"quantize.percentile", &c.quantize.percentile, "percentile: share of the values that are not clamped", {}, 50},
      {"quantize.per_channel", &c.quantize.per_channel, "a scale for every output channel of a weight"},
      {"quantize.learned", &c.quantize.learned, "train the scales too"},
      {"quantize.freeze", &c.quantize.freeze, "step at which scales stop changing; 0: the last", {}, 0},
      {"quantize.batch_norms",
       &c.quantize.batch_norms,
       "fold (into the layers before them), freeze or train",
       {"fold", "freeze", "train"}},
      {"quantize.placement",
       &c.quantize.placement,
       "trt (TensorRT) or ort (ONNX Runtime): where residual sums are quantized",
       {"trt", "ort"}},
      {"quantize.attention", &c.quantize.attention, "quantize the products of attention"},
      {"quantize.small_layers", &c.quantize.small_layers, "quantize layers too small to become faster"},
      {"quantize.exclude", &c.quantize.exclude, "layers left alone: names or patterns, with spaces between"},
  };
}

template <class T>
constexpr const char* kTypeName = std::is_same_v<T, int64_t>       ? "an integer"
                                  : std::is_same_v<T, double>      ? "a number"
                                  : std::is_same_v<T, bool>        ? "true or false"
                                  : std::is_same_v<T, std::string> ? "a text"
                                                                   : "a list of numbers";

std::string show(double v) {
  char text[32];
  auto end = std::to_chars(text, text + sizeof text, v).ptr;
  std::string s(text, end);
  return s.find_first_of(".en") == std::string::npos ? s + ".0" : s;  // TOML tells 1 from 1.0
}
std::string show(int64_t v) { return std::to_string(v); }
std::string show(bool v) { return v ? "true" : "false"; }
std::string show(const std::string& v) {
  std::string quoted = "\"";
  for (char c : v) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}
std::string show(const List& v) {
  std::string text = "[";
  for (size_t i = 0; i < v.size(); ++i) text += (i ? ", " : "") + show(v[i]);
  return text + "]";
}
std::string show(const Key& key) {
  return std::visit([](const auto* field) { return show(*field); }, key.field);
}
std::string show(const toml::node& node) {
  std::ostringstream out;
  node.visit([&](const auto& n) { out << n; });
  return out.str();
}

bool read(const toml::node& node, int64_t& to) {
  if (!node.is_integer()) return false;
  to = node.as_integer()->get();
  return true;
}
bool read(const toml::node& node, double& to) {
  auto v = node.is_number() ? node.value<double>() : std::nullopt;
  if (v) to = *v;
  return v.has_value();
}
bool read(const toml::node& node, bool& to) {
  if (!node.is_boolean()) return false;
  to = node.as_boolean()->get();
  return true;
}
bool read(const toml::node& node, std::string& to) {
  if (!node.is_string()) return false;
  to = node.as_string()->get();
  return true;
}
bool read(const toml::node& node, List& to) {
  const toml::array* array = node.as_array();
  if (!array) return false;
  List values;
  for (const toml::node& e : *array) {
    double v;
    if (!read(e, v)) return false;
    values.push_back(v);
  }
  to = values;
  return true;
}

std::string trimmed(const std::string& text) {
  size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, end + 1 - begin);
}

class Reader {
 public:
  Reader(TrainConfig& config, std::string source)
      : config_(config), keys_(list_keys(config)), source_(std::move(source)) {}

  void file(const std::string& text) {
    toml::table table = parse(text, source_);
    for (auto&& [section, node] : table) {
      std::string name(section.str());
      if (const toml::table* inner = node.as_table())
        for (auto&& [key, value] : *inner) set(name + "." + std::string(key.str()), value, at(value));
      else
        set(name, node, at(node));
    }
  }

  void override_with(const std::string& assignment) {
    size_t eq = assignment.find('=');
    XY_CHECK(eq != std::string::npos && eq > 0, "--set needs key=value but got \"", assignment, "\"");
    std::string key = trimmed(assignment.substr(0, eq)), value = trimmed(assignment.substr(eq + 1)),
                where = "--set " + assignment;
    XY_CHECK(!key.empty(), "--set needs key=value but got \"", assignment, "\"");
    const Key* known = find(key);
    bool text = known && std::holds_alternative<std::string*>(known->field);
    toml::table table;
    try {
      if (text && !value.starts_with('"') && !value.starts_with('\''))
        table.insert("v", value);  // a shell takes TOML's quotes off
      else
        table = toml::parse("v = " + value);
    } catch (const toml::parse_error&) {
      table.insert("v", value);
    }
    set(key, *table.get("v"), where);
  }

  // Fills in what the configuration leaves open: the optimizer's own defaults.
  void check() {
    for (const Key& key : keys_) {
      if (auto* text = std::get_if<std::string*>(&key.field); text && !key.choices.empty() && !(*text)->empty())
        XY_CHECK(std::count(key.choices.begin(), key.choices.end(), **text), where(key.name), ": ", key.name, " needs ",
                 key.help.substr(0, key.help.find(':')), " but got ", show(key), "; the nearest is \"",
                 nearest_name(**text, key.choices), "\"");
      auto at_least = [&](auto value) {
        XY_CHECK(!key.low || value >= *key.low, where(key.name), ": ", key.name, " needs at least ", *key.low,
                 " but got ", value);
      };
      if (auto* v = std::get_if<int64_t*>(&key.field)) at_least(**v);
      if (auto* v = std::get_if<double*>(&key.field)) at_least(**v);
    }
    resolve_optimizer();
    const auto& t = config_.train;
    XY_CHECK(!config_.run.dir.empty(), where("run.dir"), ": run.dir is empty; it needs the name of a folder");
    for (auto* required : {"model.name", "data.kind", "data.train"})
      XY_CHECK(!std::get<std::string*>(find(required)->field)->empty(), source_, ": ", required,
               " is missing: ", find(required)->help);
    XY_CHECK(t.micro_batch == 0 || t.global_batch % t.micro_batch == 0, source_, ": train.global_batch (",
             t.global_batch, ") is not a multiple of train.micro_batch (", t.micro_batch, ")");
    const auto& s = config_.schedule;
    XY_CHECK(s.warmup <= t.steps, where("schedule.warmup"), ": schedule.warmup (", s.warmup,
             ") is longer than train.steps (", t.steps, "): the learning rate would never reach optimizer.lr");
    XY_CHECK(s.floor <= 1, where("schedule.floor"), ": schedule.floor needs at most 1 but got ", s.floor,
             ": it is a share of optimizer.lr");
    XY_CHECK(config_.distributed.zero <= 3, where("distributed.zero"), ": distributed.zero needs 0, 1, 2 or 3 but got ",
             config_.distributed.zero);
    const auto& q = config_.quantize;
    XY_CHECK(q.format != "int4" || q.weights_only, source_, ": quantize.format = \"int4\" needs quantize.weights_only");
    XY_CHECK(q.format == "none" || q.start == 0 || q.batch_norms != "fold", source_,
             ": a run that quantizes from step ", q.start,
             " on cannot fold its batch norms before; set quantize.batch_norms = \"freeze\"");
    XY_CHECK(!q.learned || (q.start == 0 && q.freeze == 0), source_,
             ": learned scales train from the first step to the last; set quantize.start and quantize.freeze to 0");
    XY_CHECK(q.format == "none" || config_.distributed.zero < 3, source_,
             ": distributed.zero = 3 leaves no weights to observe; quantize with 2 at most");
    XY_CHECK(q.freeze == 0 || q.freeze > q.start, source_, ": quantize.freeze must come after quantize.start");
    XY_CHECK(
        config_.distributed.zero < 3 || config_.distributed.verify_every == 0, source_,
        ": distributed.verify_every compares the replicas of the parameters; with distributed.zero = 3 there are none");
    for (const auto& [conflicts, why] :
         {std::pair(t.debug_nan, "train.debug_nan reads the results of every one"),
          std::pair(q.format != "none", "quantization changes the forward pass as the run goes on"),
          std::pair(config_.distributed.find_unused, "distributed.find_unused is for steps that differ")})
      XY_CHECK(!t.cuda_graph || !conflicts, source_, ": train.cuda_graph repeats one recorded step, but ", why);
    XY_CHECK(t.label_smoothing < 1 && config_.ema.decay < 1, source_,
             ": train.label_smoothing and ema.decay must be below 1");
  }

 private:
  // "unknown key 'x'; did you mean 'y'? "; `options`: of the optimizer, beside the keys that all share.
  std::string unknown_key(const std::string& name, const OptionValues& options) const {
    std::vector<std::string> names;
    for (const Key& k : keys_) names.push_back(k.name);
    for (const auto& [option, value] : options) names.push_back("optimizer." + option);
    std::string meant = suggest_key(name, names);
    return "unknown key '" + name + "'; " + (meant.empty() ? "" : "did you mean '" + meant + "'? ");
  }

  void resolve_optimizer() {
    TrainConfig::Optimizer& o = config_.optimizer;
    const OptimizerKind& kind = optimizer_kind(o.name);
    OptionValues all = kind.resolve({});
    std::string known = "lr, weight_decay";
    for (const auto& [name, value] : all) known += ", " + name;
    for (const auto& [name, value] : o.options)
      XY_CHECK(all.contains(name), where("optimizer." + name), ": ", unknown_key("optimizer." + name, all),
               "the optimizer '", o.name, "' has no option '", name, "'; it has ", known);
    try {
      o.options = kind.resolve(o.options);
    } catch (const Error& e) {
      XY_FAIL(source_, ": [optimizer]: ", e.message());
    }
  }

  static toml::table parse(const std::string& text, const std::string& source) {
    try {
      return toml::parse(text, source);
    } catch (const toml::parse_error& e) {
      XY_FAIL(source, ":", e.source().begin.line, ":", e.source().begin.column, ": ", e.description());
    }
  }
  std::string at(const toml::node& node) const { return source_ + ":" + std::to_string(node.source().begin.line); }
  // Who gave the key its value, for errors that only show once all is read.
  const std::string& where(const std::string& name) const {
    auto found = given_by_.find(name);
    return found == given_by_.end() ? source_ : found->second;
  }
  const Key* find(const std::string& name) const {
    auto it = std::find_if(keys_.begin(), keys_.end(), [&](const Key& k) { return k.name == name; });
    return it == keys_.end() ? nullptr : &*it;
  }

  void set(const std::string& name, const toml::node& node, const std::string& where) {
    const Key* key = find(name);
    for (auto [section, options] :
         {std::pair("model.", &config_.model.options), std::pair("optimizer.", &config_.optimizer.options)})
      if (!key && name.starts_with(section)) {
        set_option((*options)[name.substr(std::string_view(section).size())], name, node, where);
        given_by_[name] = where;
        return;
      }
    if (!key) {
      XY_FAIL(where, ": ", unknown_key(name, {}), "`xylem train --help-config` lists all");
    }
    std::visit(
        [&](auto* field) {
          using T = std::remove_pointer_t<decltype(field)>;
          XY_CHECK(read(node, *field), where, ": ", name, " needs ", kTypeName<T>, " but got ", show(node));
        },
        key->field);
    given_by_[name] = where;
  }

  static void set_option(OptionValue& option, const std::string& name, const toml::node& node,
                         const std::string& where) {
    int64_t integer;
    double number;
    bool flag;
    std::string text;
    if (read(node, integer))
      option = integer;
    else if (read(node, number))
      option = number;
    else if (read(node, flag))
      option = flag;
    else if (read(node, text))
      option = text;
    else
      XY_FAIL(where, ": ", name, " needs a number, true, false or a text but got ", show(node));
  }

  TrainConfig& config_;
  std::vector<Key> keys_;
  std::string source_;
  std::map<std::string, std::string> given_by_;
};

// Every key and value as it stands in a TOML file, the model's options included.
std::vector<std::pair<std::string, std::string>> key_values(TrainConfig config) {
  std::vector<std::pair<std::string, std::string>> all;
  for (const Key& key : list_keys(config)) {
    all.emplace_back(key.name, show(key));
    auto add = [&](const std::string& section, const auto& options) {
      for (const auto& [name, value] : options)
        all.emplace_back(section + name, std::visit([](const auto& v) { return show(v); }, value));
    };
    if (key.name == "model.name") add("model.", config.model.options);
    if (key.name == "optimizer.weight_decay") add("optimizer.", config.optimizer.options);
  }
  return all;
}

}  // namespace

TrainConfig parse_config(const std::string& toml, const std::vector<std::string>& overrides,
                         const std::string& source) {
  TrainConfig config;
  Reader reader(config, source);
  reader.file(toml);
  for (const std::string& o : overrides) reader.override_with(o);
  reader.check();
  return config;
}

TrainConfig load_config(const std::string& file, const std::vector<std::string>& overrides) {
  XY_CHECK(std::filesystem::is_regular_file(file), "there is no configuration file '", file,
           "'; examples lie in examples/configs, and `xylem train --help-config` lists every key");
  return parse_config(read_file(file), overrides, file);
}

std::string to_toml(const TrainConfig& config, bool help) {
  TrainConfig copy = config;
  auto keys = list_keys(copy);
  std::string text, section;
  for (const auto& [name, value] : key_values(config)) {
    size_t dot = name.find('.');
    if (name.substr(0, dot) != section) {
      section = name.substr(0, dot);
      text += (text.empty() ? "[" : "\n[") + section + "]\n";
    }
    auto key = std::find_if(keys.begin(), keys.end(), [&](const Key& k) { return k.name == name; });
    if (help && key != keys.end()) text += "# " + key->help + "\n";
    text += name.substr(dot + 1) + " = " + value + "\n";
  }
  return text;
}

std::string config_help() {
  std::string text = to_toml({}, true);
  auto add = [&](const std::string& name, const std::string& options, const std::string& summary = {}) {
    text += "#\n# name = \"" + name + "\"" + (summary.empty() ? "" : "  # " + summary) + "\n";
    std::istringstream lines(options);
    for (std::string line; std::getline(lines, line);) text += "#   " + line + "\n";
  };
  text += "\n# Options of the models, further keys of [model]:\n";
  for (const std::string& name : zoo::names()) add(name, zoo::options_help(name));
  text += "\n# Options of the optimizers, further keys of [optimizer]:\n";
  for (const std::string& name : optimizer_names())
    add(name, optimizer_kind(name).help(), optimizer_kind(name).summary);
  return text;
}

std::string config_page() {
  return "# Configuration\n\n"
         "`xylem train CONFIG.toml [--set section.key=value ...]` reads these keys. Printed by `xylem train "
         "--help-config`; the values are the defaults.\n\n```toml\n" +
         config_help() + "```\n";
}

std::vector<std::string> config_changes(const TrainConfig& before, const TrainConfig& after) {
  auto old_values = key_values(before), new_values = key_values(after);
  std::map<std::string, std::string> old(old_values.begin(), old_values.end()),
      now(new_values.begin(), new_values.end());
  std::vector<std::string> changes;
  for (const auto& [name, value] : now)
    if (!old.contains(name))
      changes.push_back(name + ": absent -> " + value);
    else if (old[name] != value)
      changes.push_back(name + ": " + old[name] + " -> " + value);
  for (const auto& [name, value] : old)
    if (!now.contains(name)) changes.push_back(name + ": " + value + " -> absent");
  return changes;
}

std::string config_hash(const TrainConfig& config) {
  uint64_t hash = kFnvStart;
  for (const auto& [name, value] : key_values(config)) {
    if (name == "run.dir" || name == "run.threads" || name == "run.timeout" || name == "train.log_every" ||
        name == "train.tensorboard" || name == "train.debug_nan" || name == "train.cuda_graph" ||
        name == "distributed.verify_every" || name.starts_with("checkpoint."))
      continue;
    hash = fnv1a(name + "=" + value + "\n", hash);
  }
  return hex(hash);
}

}  // namespace xylem
