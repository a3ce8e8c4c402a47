// SPDX-License-Identifier: Apache-2.0
#include "models/nn/eval_scope.h"

namespace xylem {

EvalScope::EvalScope(Module& model) {
  for (auto& [name, module] : model.modules()) modules_.emplace_back(module, module->training());
  model.eval();
}
// train() reaches down, so parents must come first.
EvalScope::~EvalScope() {
  for (auto& [module, training] : modules_) module->train(training);
}

}  // namespace xylem
