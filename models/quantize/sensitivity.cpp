// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "models/nn/eval_scope.h"
#include "models/quantize/fake_quantizer.h"
#include "models/quantize/places.h"

namespace xylem::quantize {

SensitivityReport sensitivity(Module& model, const std::function<double()>& metric, std::optional<double> budget) {
  std::vector<Layer> layers;
  for (const Layer& l : layers_of(model))
    if (l.active()) layers.push_back(l);
  XY_CHECK(!layers.empty(), "the model has no quantizers: call quantize::prepare() first");
  auto measure = [&] {
    NoGrad guard;
    EvalScope eval(model);
    return metric();
  };
  auto only = [&](auto&& on) {
    for (const Layer& l : layers) l.enable(on(l));
  };

  SensitivityReport report;
  only([](const Layer&) { return false; });
  report.float_metric = measure();
  for (const Layer& one : layers) {
    only([&](const Layer& l) { return l.name == one.name; });
    double value = measure();
    report.layers.push_back({one.name, value, report.float_metric - value});
  }
  std::stable_sort(report.layers.begin(), report.layers.end(),
                   [](const Sensitivity& a, const Sensitivity& b) { return a.drop > b.drop; });
  only([](const Layer&) { return true; });
  report.quantized_metric = report.final_metric = measure();
  if (!budget) return report;
  for (const Sensitivity& next : report.layers) {
    if (report.final_metric >= report.float_metric - *budget) break;
    report.excluded.push_back(next.layer);
    for (const Layer& l : layers)
      if (l.name == next.layer) l.enable(false);
    report.final_metric = measure();
  }
  return report;
}

std::string SensitivityReport::table() const {
  size_t width = 5;
  for (const Sensitivity& s : layers) width = std::max(width, s.layer.size());
  std::string out;
  auto row = [&](const std::string& name, double metric, const std::string& rest) {
    char text[64];
    std::snprintf(text, sizeof text, "  %9.4f", metric);
    out += name + std::string(width - std::min(width, name.size()), ' ') + text + rest + "\n";
  };
  out += "layer" + std::string(width - 5, ' ') + "     metric      drop\n";
  for (const Sensitivity& s : layers) {
    char drop[64];
    std::snprintf(drop, sizeof drop, "  %8.4f", s.drop);
    bool left_out = std::find(excluded.begin(), excluded.end(), s.layer) != excluded.end();
    row(s.layer, s.metric, std::string(drop) + (left_out ? "  excluded" : ""));
  }
  row("none", float_metric, "");
  row("all", quantized_metric, "");
  if (!excluded.empty()) row("kept", final_metric, "");
  return out;
}

std::string SensitivityReport::json() const {
  nlohmann::json all = {{"float_metric", float_metric},
                        {"quantized_metric", quantized_metric},
                        {"final_metric", final_metric},
                        {"excluded", excluded},
                        {"layers", nlohmann::json::array()}};
  for (const Sensitivity& s : layers)
    all["layers"].push_back({{"layer", s.layer}, {"metric", s.metric}, {"drop", s.drop}});
  return all.dump(2);
}

}  // namespace xylem::quantize
