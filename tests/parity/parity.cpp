// SPDX-License-Identifier: Apache-2.0
// Compares Xylem with what torch_reference.py has written: the same weights and batch must give the same loss,
// gradients and ten optimizer steps. fp32 agrees within 1e-4 relative; bf16 is at most twice as far from PyTorch's fp32
// result as PyTorch's own bf16 is, taken over the layers.
//   parity FOLDER [device]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "core/random/rng.h"
#include "models/checkpoint/safetensors.h"
#include "models/optim/optimizers.h"
#include "models/zoo/gpt2.h"
#include "models/zoo/resnet.h"

namespace xy = xylem;

using Values = std::map<std::string, std::vector<double>>;

constexpr int kSteps = 10;
constexpr double kTolerance = 1e-4;
// A result of few numbers may agree with fp32 by luck; half a unit in the last place of bf16 is always allowed.
constexpr double kBf16Floor = 0x1p-9;

// The name with its numbers struck out: what a tensor is in any layer.
std::string role_of(std::string name) {
  for (char& c : name)
    if (c >= '0' && c <= '9') c = '#';
  return name;
}

Values load(const std::string& path) {
  Values values;
  for (const xy::NamedTensor& t : xy::load_safetensors(path)) values[t.name] = t.tensor.to_vector<double>();
  return values;
}

// |a - b| / |b| in the L2 norm.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  double d = std::sqrt(difference) / std::max(std::sqrt(size), 1e-30);
  return std::isnan(d) ? INFINITY : d;
}

// Ten steps from PyTorch's weights: what torch_reference.py's run() returns, under the same names.
template <class Optimizer>
Values run(xy::ZooModel& model, Optimizer& optimizer, const xy::Tensor& input, const xy::Tensor& target) {
  Values result;
  auto keep = [&](const std::string& prefix, const std::vector<xy::NamedTensor>& tensors) {
    for (const xy::NamedTensor& t : model.to_pretrained(tensors))
      result[prefix + t.name] = t.tensor.to_vector<double>();
  };
  for (int step = 0; step < kSteps; ++step) {
    xy::rng::next_step();
    optimizer.zero_grad();
    xy::Tensor loss = model.loss(input, target);
    loss.backward();
    result["losses"].push_back(loss.item());
    if (step == 0) {
      std::vector<xy::NamedTensor> grads;
      for (const xy::NamedTensor& p : model.parameters()) grads.push_back({p.name, p.tensor.grad()});
      keep("grad.", grads);
    }
    optimizer.step();
  }
  xy::Tensors values;
  for (const xy::FlatGroup& group : optimizer.params().groups()) values.push_back(group.values());
  std::vector<xy::NamedTensor> params;
  optimizer.params().name_parts("", values, params);
  keep("param.", params);
  keep("buffer.", model.buffers());
  return result;
}

struct Case {
  std::string name;
  xy::Metadata config;
  std::vector<xy::NamedTensor> weights;
  xy::Tensor input, target;
  double number(const std::string& key) const {
    auto it = config.find(key);
    XY_CHECK(it != config.end(), name, "/weights.safetensors has no metadata '", key, "'");
    return std::stod(it->second);
  }
  int64_t integer(const std::string& key) const { return int64_t(number(key)); }
};

Values run_xylem(const Case& c, xy::DType dtype, xy::Device device) {
  auto prepared = [&](xy::ZooModel& model) {
    xy::load_state_dict(model, model.from_pretrained(c.weights));
    model.to(device);
    model.to(dtype);
  };
  xy::Tensor input = c.input.to(device), target = c.target.to(device);
  if (c.name == "gpt2") {
    xy::zoo::Gpt2 model({.vocab = c.integer("vocab"),
                         .context = c.integer("context"),
                         .layers = c.integer("layers"),
                         .heads = c.integer("heads"),
                         .width = c.integer("width")});
    prepared(model);
    xy::AdamW optimizer(model, {.lr = c.number("lr"),
                                .beta1 = c.number("beta1"),
                                .beta2 = c.number("beta2"),
                                .eps = c.number("eps"),
                                .weight_decay = c.number("weight_decay")});
    return run(model, optimizer, input, target);
  }
  xy::zoo::ResNetConfig config = xy::zoo::resnet18_config();
  config.classes = c.integer("classes");
  xy::zoo::ResNet model(config);
  prepared(model);
  xy::SGD optimizer(model, c.number("lr"),
                    {.momentum = c.number("momentum"), .weight_decay = c.number("weight_decay"), .nesterov = true});
  return run(model, optimizer, input, target);
}

// Compares everything in `expected`; returns the number of failures and prints the worst of each kind. `own` is
// PyTorch's own bf16 result, or null for fp32.
int compare(const Case& c, const char* precision, const Values& got, const Values& expected, const Values* own) {
  struct Worst {
    std::string name;
    double ratio = -1, distance = 0, allowed = 0;
    int count = 0, failed = 0;
  };
  // Adam turns a gradient near zero into a whole step, so one layer's bf16 error is a matter of luck; the largest among
  // the layers says what PyTorch's error of such a tensor is.
  std::map<std::string, double> own_error;
  if (own)
    for (const auto& [name, values] : expected) {
      double& error = own_error[role_of(name)];
      error = std::max(error, distance(own->at(name), values));
    }
  std::map<std::string, Worst> kinds;
  for (const auto& [name, values] : expected) {
    Worst& worst = kinds[name.substr(0, name.find('.'))];
    auto it = got.find(name);
    double d = it == got.end() ? INFINITY : distance(it->second, values);
    double allowed = own ? std::max(2 * own_error[role_of(name)], kBf16Floor) : kTolerance;
    ++worst.count;
    if (d > allowed) {
      ++worst.failed;
      std::printf("  FAILED %s %s %s: %.3e from PyTorch's fp32, allowed %.3e%s\n", c.name.c_str(), precision,
                  name.c_str(), d, allowed, it == got.end() ? " (Xylem has no such tensor)" : "");
    }
    if (d / allowed > worst.ratio)
      worst.name = name, worst.ratio = d / allowed, worst.distance = d, worst.allowed = allowed;
  }
  int failures = 0;
  for (const auto& [kind, w] : kinds) {
    std::printf("%-8s %s  %-6s  %3d compared, %d failed, the worst %s: %.2e of %.2e allowed\n", c.name.c_str(),
                precision, kind.c_str(), w.count, w.failed, w.name.c_str(), w.distance, w.allowed);
    failures += w.failed;
  }
  for (const auto& [name, values] : got)
    if (!expected.contains(name)) {
      std::printf("  FAILED %s %s %s: PyTorch has no such tensor\n", c.name.c_str(), precision, name.c_str());
      ++failures;
    }
  return failures;
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "parity FOLDER [device]: FOLDER was written by torch_reference.py\n");
    return 2;
  }
  try {
    xy::Device device = xy::Device::parse(argc > 2 ? argv[2] : "auto");
    int failures = 0;
    for (const char* name : {"gpt2", "resnet18"}) {
      std::string folder = std::string(argv[1]) + "/" + name + "/";
      Case c;
      c.name = name;
      c.weights = xy::load_safetensors(folder + "weights.safetensors", &c.config);
      for (const xy::NamedTensor& t : xy::load_safetensors(folder + "batch.safetensors"))
        (t.name == "input" ? c.input : c.target) = t.tensor;
      Values fp32 = load(folder + "fp32.safetensors"), bf16 = load(folder + "bf16.safetensors");
      failures += compare(c, "fp32", run_xylem(c, xy::f32, device), fp32, nullptr);
      failures += compare(c, "bf16", run_xylem(c, xy::bf16, device), fp32, &bf16);
    }
    std::printf("parity on %s: %s\n", device.str().c_str(),
                failures == 0 ? "passed" : (std::to_string(failures) + " comparisons failed").c_str());
    return failures == 0 ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "parity: %s\n", e.what());
    return 2;
  }
}
