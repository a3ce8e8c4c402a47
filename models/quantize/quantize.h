// SPDX-License-Identifier: Apache-2.0
// From a trained model to one that computes as its 8-bit export will: post-training quantization and
// quantization-aware training.
//
//   auto run = [&] { model(images); };
//   quantize::prepare(model, run);                     // folds batch norms, puts quantizers where a runtime fuses them
//   quantize::calibrate(model, [&] { for (auto& b : batches) model(b.input); });
//   ... train some more: the forward pass rounds, gradients pass straight through ...
//   quantize::freeze(model);                           // scales are fixed; export_onnx() writes them as Q/DQ
//
// Without the training it is post-training quantization. docs/quantization.md explains the choices.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/nn/module.h"
#include "ops/quant/quant.h"

namespace xylem {
class Group;
}

namespace xylem::quantize {

// How the clipping threshold of an activation is found.
enum class Observer {
  minmax,          // the largest |x| of all
  moving_average,  // of each batch's largest |x|; goes on in training until the scales are frozen
  percentile,      // all but the largest 0.01 % of the values
  entropy,         // least Kullback-Leibler divergence
  mse              // least squared error
};
// Which runtime the quantizers are placed for. trt: every input of a weighted layer, and of a residual sum only what
// skips the branch. ort: both operands of the sum.
enum class Placement { trt, ort };
// What becomes of batch norms: folded into the layer before them (exact), kept with their statistics fixed, or left.
enum class BatchNorms { fold, freeze, train };

struct Config {
  QuantFormat weights = QuantFormat::int8;
  // The type of activations; none: only weights are quantized. int4 weights have to be alone.
  std::optional<QuantFormat> activations = QuantFormat::int8;
  Observer observer = Observer::minmax;
  double percentile = 99.99;
  double momentum = 0.1;    // of the moving average
  bool per_channel = true;  // a scale for every output channel of a weight; of a transposed convolution always one
  int64_t block = 128;      // int4: neighbours along the input dimension that share a scale (or half, a quarter, ..)
  bool fp16_scales = true;  // scales are numbers that f16 holds, so that an export in f16 rounds as training did
  bool learned = false;     // scales are trained (learned step size) instead of observed
  Placement placement = Placement::trt;
  BatchNorms batch_norms = BatchNorms::fold;
  bool attention = false;     // quantize q, k, v and the probabilities, where a runtime has kernels for the size
  bool pooling = true;        // quantize the inputs of average pooling
  bool small_layers = false;  // also layers too small to gain (fewer than 16 channels, and the like)
  std::vector<std::string> exclude = {};  // names or patterns ("head", "layer1.*") of layers left alone
};
Observer parse_observer(const std::string& name);
Placement parse_placement(const std::string& name);
BatchNorms parse_batch_norms(const std::string& name);

struct Summary {
  int quantizers = 0, folded = 0;                            // batch norms
  std::vector<std::string> layers;                           // quantized ones
  std::vector<std::pair<std::string, std::string>> skipped;  // layers left alone, and why
};

// Puts quantizers, still switched off, into the layers that `forward` runs through: it is called once or twice, in
// evaluation mode. Folding and learned scales change the parameters, so prepare before an optimizer is made. A second
// call throws.
Summary prepare(Module& model, const std::function<void()>& forward, const Config& config = {});

// Observes what `run` computes in evaluation mode, sets the scales and switches quantization on. Several ranks, each
// with its share of the data, agree on the scales.
void calibrate(Module& model, const std::function<void()>& run, const Group* group = nullptr);

// Fixes all scales at what they are now: weights' at their present range, averages and learned ones at their value.
void freeze(Module& model, const Group* group = nullptr);

// After a training step of several ranks: moving averages of thresholds go on from the largest, which is that of one
// rank with all their samples.
void agree(Module& model, const Group& group);

// Switches the quantizers of layers whose name matches (as in Config::exclude) on or off.
void enable(Module& model, bool on, const std::string& pattern = "*");

// After loading a state dict: the quantizers compute with the scales in it, frozen or not.
void restore(Module& model, bool frozen);

// Batch norms that directly follow a convolution or a linear layer, and are all that reads it, become part of its
// weight and bias. Exact up to rounding. Returns how many; prepare() calls it.
int fold_batch_norms(Module& model, const std::function<void()>& forward);
void freeze_batch_norms(Module& model);

// What each layer costs: the metric (higher is better) with that layer alone quantized.
struct Sensitivity {
  std::string layer;
  double metric = 0, drop = 0;  // drop: against the model without quantization
};
struct SensitivityReport {
  double float_metric = 0, quantized_metric = 0;
  std::vector<Sensitivity> layers;    // the most sensitive first
  std::vector<std::string> excluded;  // switched off to keep the budget
  double final_metric = 0;
  std::string table() const;
  std::string json() const;
};
// `metric` evaluates the calibrated model. With a budget, layers are switched off in order of their drop until the
// metric is at most `budget` below that without quantization; they are named in `excluded`.
SensitivityReport sensitivity(Module& model, const std::function<double()>& metric, std::optional<double> budget = {});

}  // namespace xylem::quantize
