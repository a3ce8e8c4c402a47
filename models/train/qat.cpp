// SPDX-License-Identifier: Apache-2.0
#include "models/train/qat.h"

#include <sstream>

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/reader.h"

namespace xylem {
namespace {

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> all;
  for (std::string word; in >> word;) all.push_back(word);
  return all;
}

quantize::Config config_of(const TrainConfig::Quantize& q) {
  quantize::Config c;
  c.weights = parse_quant_format(q.format);
  if (q.weights_only)
    c.activations.reset();
  else
    c.activations = c.weights;
  c.observer = quantize::parse_observer(q.observer);
  c.percentile = q.percentile;
  c.per_channel = q.per_channel;
  c.learned = q.learned;
  c.placement = quantize::parse_placement(q.placement);
  c.batch_norms = quantize::parse_batch_norms(q.batch_norms);
  if (q.start > 0 && c.batch_norms == quantize::BatchNorms::freeze)
    c.batch_norms = quantize::BatchNorms::train;  // until then
  c.attention = q.attention;
  c.small_layers = q.small_layers;
  c.exclude = words(q.exclude);
  return c;
}

}  // namespace

bool quantizes(const TrainConfig& config) { return config.quantize.format != "none"; }

int64_t freeze_step(const TrainConfig& config) {
  return config.quantize.freeze > 0 ? config.quantize.freeze : config.train.steps;
}

quantize::Summary prepare_quantization(ZooModel& model, const TrainConfig& config) {
  if (!quantizes(config)) return {};
  Tensor example = model.example();
  return quantize::prepare(
      model, [&] { model(example); }, config_of(config.quantize));
}

void load_initial_weights(ZooModel& model, const TrainConfig& config) {
  auto plain = zoo::create(config.model.name, config.model.options);
  load_state_dict(*plain, load_weights(find_checkpoint(config.run.init)));
  prepare_quantization(*plain, config);  // folds its batch norms
  load_state_dict(model, state_dict(*plain));
}

void calibrate_now(ZooModel& model, const TrainConfig& config, const std::function<void()>& run, const Group* group) {
  if (config.quantize.batch_norms == "freeze") quantize::freeze_batch_norms(model);
  quantize::calibrate(
      model,
      [&] {
        for (int64_t i = 0; i < config.quantize.calibration; ++i) run();
      },
      group);
}

void restore_quantization(ZooModel& model, const TrainConfig& config, int64_t step) {
  if (!quantizes(config) || step <= config.quantize.start) return;
  if (config.quantize.batch_norms == "freeze") quantize::freeze_batch_norms(model);
  quantize::restore(model, step >= freeze_step(config));
}

void finish_quantization(ZooModel& model, const TrainConfig& config, int64_t step) {
  restore_quantization(model, config, step);
  if (quantizes(config) && step > config.quantize.start) quantize::freeze(model);
}

}  // namespace xylem
