// SPDX-License-Identifier: Apache-2.0
// The optimizers. Parameters of one dimension do not decay, unless FlatOptions says otherwise.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "models/optim/optimizer.h"
#include "ops/ops.h"

namespace xylem {

// Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019).
class AdamW : public Optimizer {
 public:
  explicit AdamW(FlatParams params, const AdamWArgs& args = {});

 private:
  void update(const Update& u) override;
  std::vector<std::pair<std::string, Tensors>> buffers() const override;
  AdamWArgs args_;
  Tensors m_, v_;
};

// Stochastic gradient descent with momentum as in PyTorch: b = momentum * b + g, p -= lr * b (nesterov: g + momentum *
// b).
class SGD : public Optimizer {
 public:
  SGD(FlatParams params, double lr, const SgdArgs& args = {});

 private:
  void update(const Update& u) override;
  std::vector<std::pair<std::string, Tensors>> buffers() const override;
  SgdArgs args_;
  Tensors momentum_;
};

// Lion (Chen et al., NeurIPS 2023): every value moves by lr, in the direction of a mean of gradients. Wants about a
// tenth of AdamW's learning rate and ten times its weight decay.
class Lion : public Optimizer {
 public:
  explicit Lion(FlatParams params, const LionArgs& args = {});

 private:
  void update(const Update& u) override;
  std::vector<std::pair<std::string, Tensors>> buffers() const override;
  LionArgs args_;
  Tensors m_;
};

}  // namespace xylem
