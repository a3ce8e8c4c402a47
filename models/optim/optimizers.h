// SPDX-License-Identifier: Apache-2.0
// The optimizers. Parameters of one dimension do not decay, unless FlatOptions says otherwise.
#pragma once
#include <span>
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

struct MuonArgs {
  double lr = 1e-3, momentum = 0.95, weight_decay = 0.01;
  bool nesterov = true;
  int64_t iterations = 5;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  // of the AdamW for everything else
};

// Muon (Jordan et al. 2024): the momentum of a matrix is made orthogonal before it is added. For hidden matrices (two
// dimensions, or the four of convolutions, taken as [out, rest]); tables, the head (the last Linear, unless it leads
// back to the width of a table, which is the head then) and everything else are AdamW's. Steps have the size of AdamW's
// (Liu et al. 2025), so one learning rate and decay serve both. ParamOptions::rule, "orthogonal" or "adamw", overrides.
class Muon : public Optimizer {
 public:
  explicit Muon(Module& module, const MuonArgs& args = {}, const FlatOptions& options = {});

 private:
  struct Matrix {
    const FlatBucket* bucket;
    const FlatSlot* slot;
    FlatRange mine;  // what this rank updates of it; of size 0: nothing
  };
  void update_all(const Tensor& step, const Tensor& grad_scale, const Tensor& skip) override;
  void update(const Update& u) override;
  void list_matrices();
  Tensor direction(const FlatRange& mine, const Tensor& grad_scale, const Tensor& skip);
  void move(std::span<const Matrix> matrices, const Tensor& grad_scale, const Tensor& skip);
  std::vector<std::pair<std::string, Tensors>> buffers() const override;
  MuonArgs args_;
  Tensors momentum_;              // of matrices
  Tensors m_, v_;                 // of the others
  std::vector<bool> trained_;     // when matrices_ was made
  std::vector<Matrix> matrices_;  // that are trained, bucket by bucket
};

}  // namespace xylem
