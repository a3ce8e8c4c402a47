// SPDX-License-Identifier: Apache-2.0
#include "models/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/util/check.h"

namespace xylem {
namespace {

using Kind = Schedule::Kind;

struct Name {
  const char* name;
  Kind kind;
};
constexpr Name kNames[] = {{"constant", Kind::constant},
                           {"linear", Kind::linear},
                           {"cosine", Kind::cosine},
                           {"wsd", Kind::wsd},
                           {"step", Kind::step}};

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Name& n : kNames) names.push_back(n.name);
  return names;
}

double Schedule::operator()(int64_t step) const {
  if (step < warmup) return lr * double(step + 1) / double(warmup);
  // Share of the decay that lies behind this step: 0 at its beginning, 1 once all steps are done.
  auto behind = [&](int64_t begin) {
    if (step >= total) return 1.0;
    return std::clamp(double(step - begin) / double(total - begin), 0.0, 1.0);
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
      return between(1 - behind(std::max(warmup, total - decay)));
    }
    case Kind::step: {
      int64_t reductions = step / step_size;
      return lr * std::pow(gamma, double(reductions));
    }
  }
  XY_FAIL("unknown schedule");
}

Schedule::Kind parse_schedule(const std::string& name) {
  std::string known;
  for (const Name& n : kNames) {
    if (name == n.name) return n.kind;
    known += (known.empty() ? "" : ", ") + std::string(n.name);
  }
  XY_FAIL("there is no schedule \"", name, "\"; choose one of ", known);
}

}  // namespace xylem
