// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <utility>
#include <vector>

#include "models/nn/module.h"

namespace xylem {

// The model evaluates inside the scope, and each of its modules returns to the mode it was in.
class EvalScope {
 public:
  explicit EvalScope(Module& model);
  ~EvalScope();
  EvalScope(const EvalScope&) = delete;

 private:
  std::vector<std::pair<Module*, bool>> modules_;  // and whether it was training; parents come first
};

}  // namespace xylem
