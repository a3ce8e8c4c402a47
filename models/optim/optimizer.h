// SPDX-License-Identifier: Apache-2.0
// Optimizers over flat parameters. Learning rate, step count, clipping and loss scaling live on the device: a step
// waits for nothing.
//
//   AdamW opt(model, {.lr = 3e-4, .weight_decay = 0.1});
//   opt.zero_grad();
//   loss.backward();
//   Tensor norm = opt.clip(1.0);
//   opt.step();
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "models/optim/flat.h"
#include "models/optim/scaler.h"
#include "ops/ops.h"

namespace xylem {

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  const FlatParams& params() const { return params_; }
  void zero_grad() const { params_.zero_grad(); }
  double lr() const { return lr_value_; }
  void set_lr(double lr);

  // Makes the next step() scale the gradients so that their global L2 norm is at most max_norm (0: leave it), divide
  // them by the scaler's factor, and do nothing at all where they are not finite; moves the scaler on. Returns the
  // norm before clipping, f32 [1] on the device. Parameters that no backward pass has reached count as zero.
  // `factor`, f32 [1] on the device: multiplied into the gradients before anything else (1 / the number of targets,
  // after losses that are sums).
  Tensor clip(double max_norm, LossScaler* scaler = nullptr, const Tensor& factor = {});
  void step();

  // Of several backward passes whose gradients accumulate, only the last one is followed by communication:
  //   auto sync = optimizer.sync_when(i == last);
  //   loss.backward();
  DataParallel::Sync sync_when(bool last) const { return params_.parallel().sync_when(last); }

  // The optimizer's tensors by name ("exp_avg.<parameter>", "master.<parameter>", "step"): views, so that copying into
  // them restores the state. With ZeRO a rank has only shards.
  std::vector<NamedTensor> state() const;
  std::vector<TensorShard> shards() const;
  // Bytes that this rank keeps beside parameters and gradients.
  int64_t state_bytes() const;

 protected:
  Optimizer(FlatParams params, double lr);
  struct Update {
    const FlatSpan& span;
    bool decays;
    Tensor lr, step, grad_scale, skip;
  };
  virtual void update(const Update& u) = 0;
  // The buffers made with params_.like(), each set with its name.
  virtual std::vector<std::pair<std::string, Tensors>> buffers() const = 0;

  FlatParams params_;

 private:
  double lr_value_;
  Tensor lr_, step_, one_;    // f32, i64, f64; [1] on the device
  Tensor grad_scale_, skip_;  // what clip() has decided for the next step()
  bool finished_ = false;     // finish_grads() has run for the next step()
  std::vector<std::pair<std::string, Tensors>> all_buffers() const;
};

// Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019). Parameters of one dimension do not decay.
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
// b). Parameters of one dimension do not decay.
class SGD : public Optimizer {
 public:
  SGD(FlatParams params, double lr, const SgdArgs& args = {});

 private:
  void update(const Update& u) override;
  std::vector<std::pair<std::string, Tensors>> buffers() const override;
  SgdArgs args_;
  Tensors momentum_;
};

}  // namespace xylem
