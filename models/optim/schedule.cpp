// SPDX-License-Identifier: Apache-2.0
#include "models/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/util/check.h"

namespace xylem {

double Schedule::operator()(int64_t step) const {
  if (step < warmup) return lr * double(step + 1) / double(warmup);
  // Share of the decay that lies behind this step: 0 at its beginning, 1 at the last step.
  auto behind = [&](int64_t begin) {
    int64_t last = std::max(total - 1, begin + 1);
    return std::clamp(double(step - begin) / double(last - begin), 0.0, 1.0);
  };
  auto between = [&](double share_left) { return lr * (floor + (1 - floor) * share_left); };
  switch (kind) {
    case Kind::constant:
      return lr;
    case Kind::linear:
      return between(1 - behind(warmup));
    case Kind::cosine:
      return between(0.5 * (1 + std::cos(std::numbers::pi * behind(warmup))));
    case Kind::wsd: {
      int64_t decay = std::llround(decay_fraction * double(total));
      return between(1 - behind(std::max(warmup, total - 1 - decay)));
    }
    case Kind::step: {
      int64_t reductions = step / step_size;
      return lr * std::pow(gamma, double(reductions));
    }
  }
  XY_FAIL("unknown schedule");
}

Schedule::Kind parse_schedule(const std::string& name) {
  using Kind = Schedule::Kind;
  if (name == "constant") return Kind::constant;
  if (name == "linear") return Kind::linear;
  if (name == "cosine") return Kind::cosine;
  if (name == "wsd") return Kind::wsd;
  if (name == "step") return Kind::step;
  XY_FAIL("there is no schedule \"", name, "\"; choose constant, linear, cosine, wsd or step");
}

}  // namespace xylem
