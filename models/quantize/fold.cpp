// SPDX-License-Identifier: Apache-2.0
// Folding batch norms: y = (W x + b - mean) gain / sqrt(var + eps) + bias is a layer with weight W gain / sqrt(var +
// eps).
#include <map>
#include <unordered_map>

#include "core/autograd/autograd.h"
#include "models/nn/eval_scope.h"
#include "models/nn/layers.h"
#include "models/quantize/fake_quantizer.h"

namespace xylem::quantize {
namespace {

// Which operation made a tensor, and how many read it.
class Uses : public OpObserver {
 public:
  struct Origin {
    std::string op;
    Tensor weight;
    int readers = 0;
  };
  void on_op(const OpSpec& spec, std::span<const Tensor> outputs, std::span<const Tensor> inputs,
             const Attrs&) override {
    for (const Tensor& t : inputs)
      if (t.defined()) ++origins[t.ptr().get()].readers;
    for (const Tensor& t : outputs) {
      kept.push_back(t);  // so that no other tensor takes its address
      origins[t.ptr().get()] = {spec.name, inputs.size() > 1 ? inputs[1] : Tensor()};
    }
    if (spec.is(OpRole::batch_norm) && inputs[1].defined()) norms[inputs[1].ptr().get()].push_back(inputs[0]);
    if (inputs.size() > 1 && inputs[1].defined()) ++weight_uses[inputs[1].ptr().get()];
  }
  std::unordered_map<const TensorImpl*, Origin> origins;
  std::unordered_map<const TensorImpl*, Tensors> norms;  // gain -> inputs
  std::unordered_map<const TensorImpl*, int> weight_uses;
  Tensors kept;
};

struct Weighted {
  Tensor *weight, *bias;
  bool transposed = false;
  int groups = 1;
};

std::unordered_map<const TensorImpl*, Weighted> weighted_layers(Module& model) {
  std::unordered_map<const TensorImpl*, Weighted> found;
  for (auto& [name, m] : model.modules()) {
    if (auto* l = dynamic_cast<Linear*>(m)) found[l->weight.ptr().get()] = {&l->weight, &l->bias};
    if (auto* l = dynamic_cast<Conv2d*>(m)) found[l->weight.ptr().get()] = {&l->weight, &l->bias};
    if (auto* l = dynamic_cast<ConvTranspose2d*>(m))
      found[l->weight.ptr().get()] = {&l->weight, &l->bias, true, l->args.groups};
  }
  return found;
}

void fold(const Weighted& layer, BatchNorm2d& norm) {
  Tensor &weight = *layer.weight, &bias = *layer.bias;
  Tensor factor = norm.weight.detach().to(f64) / sqrt(norm.running_var.tensor.to(f64) + norm.eps);
  Tensor shift = norm.running_mean.tensor.to(f64);
  if (bias.defined()) shift = shift - bias.detach().to(f64);
  Tensor new_bias = norm.bias.detach().to(f64) - shift * factor;

  const int64_t outputs = factor.numel();
  Tensor w = weight.detach().to(f64);
  if (layer.transposed) {  // [C, K / groups, R, S]
    Shape split{layer.groups, weight.size(0) / layer.groups, outputs / layer.groups, weight.size(2) * weight.size(3)};
    w = (w.reshape(split) * factor.reshape({layer.groups, 1, outputs / layer.groups, 1})).reshape(weight.shape());
  } else {
    Shape rows = Shape::filled(weight.rank(), 1);
    rows[0] = outputs;
    w = w * factor.reshape(rows);
  }
  weight.copy_(w);
  if (bias.defined())
    bias.copy_(new_bias);
  else
    bias = parameter(new_bias.to(weight.dtype()));
  norm.weight = norm.bias = {};
  norm.running_mean = norm.running_var = {};
}

}  // namespace

int fold_batch_norms(Module& model, const std::function<void()>& forward) {
  NoGrad guard;
  EvalScope eval(model);
  Uses uses;
  forward();
  auto layers = weighted_layers(model);
  int folded = 0;
  for (auto& [name, m] : model.modules()) {
    auto* norm = dynamic_cast<BatchNorm2d*>(m);
    if (!norm || !norm->running_mean.tensor.defined()) continue;
    auto at = uses.norms.find(norm->weight.ptr().get());
    if (at == uses.norms.end() || at->second.size() != 1) continue;
    const Uses::Origin& origin = uses.origins[at->second[0].ptr().get()];
    if (origin.readers != 1 || !origin.weight.defined()) continue;
    auto layer = layers.find(origin.weight.ptr().get());
    if (layer == layers.end() || uses.weight_uses[layer->first] != 1) continue;
    fold(layer->second, *norm);
    ++folded;
  }
  return folded;
}

void freeze_batch_norms(Module& model) {
  for (auto& [name, m] : model.modules())
    if (auto* norm = dynamic_cast<BatchNorm2d*>(m)) norm->frozen = true;
}

}  // namespace xylem::quantize
