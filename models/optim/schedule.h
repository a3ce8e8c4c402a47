// SPDX-License-Identifier: Apache-2.0
// Learning rate schedules: pure functions of the step, so that resuming needs nothing but the step.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace xylem {

struct Schedule {
  enum class Kind {
    constant,
    linear,  // down to floor * lr
    cosine,  // half a cosine down to floor * lr (Loshchilov and Hutter, 2017)
    wsd,     // warm-up, stable, then a linear decay to floor * lr over the last decay_fraction of the steps
    step,    // times gamma after every step_size steps
  };
  // The floor is what the step after the last would have: with floor = 0 the last step still trains.
  Kind kind = Kind::cosine;
  double lr = 1e-3;
  int64_t total = 1000;
  int64_t warmup = 0;  // steps of linear growth from lr / warmup, before any kind
  double floor = 0;
  double decay_fraction = 0.2;
  int64_t step_size = 1000;
  double gamma = 0.1;

  // The learning rate of a step; the first step is 0. Past the end it stays at the floor.
  double operator()(int64_t step) const;
};

std::vector<std::string> schedule_names();
Schedule::Kind parse_schedule(const std::string& name);  // throws naming the known ones

}  // namespace xylem
