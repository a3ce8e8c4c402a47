// SPDX-License-Identifier: Apache-2.0
// The residual stream of pre-norm transformers, as GPT-2 and Llama run it.
#pragma once
#include <vector>

#include "models/nn/layers.h"
#include "ops/ops.h"

namespace xylem::zoo {

// The sum x + delta stays apart until the next normalisation, which adds while it normalises.
struct Residual {
  Tensor x, delta;
};

inline Tensor add_norm(Residual& r, const LayerNorm& norm) {
  if (!r.delta.defined()) return norm(r.x);
  auto [sum, normed] = add_layer_norm(r.delta, r.x, norm.weight, norm.bias, norm.eps);
  r = {sum, {}};
  return normed;
}
inline Tensor add_norm(Residual& r, const RmsNorm& norm) {
  if (!r.delta.defined()) return norm(r.x);
  auto [sum, normed] = add_rms_norm(r.delta, r.x, norm.weight, norm.eps);
  r = {sum, {}};
  return normed;
}

// The stream after all blocks. With `again`, backward keeps only their inputs and computes the rest again.
template <class Block>
Residual run_blocks(const std::vector<Block>& blocks, Residual r, bool again, Residual (*run)(const Block&, Residual)) {
  for (const Block& block : blocks) {
    if (again && grad_enabled()) {
      auto sum = [&block, run](const Tensors& in) {
        Residual out = run(block, {in[0], {}});
        return out.x + out.delta;
      };
      r.x = recompute(sum, {r.x});
    } else {
      r = run(block, r);
    }
  }
  return r;
}

}  // namespace xylem::zoo
