// SPDX-License-Identifier: Apache-2.0
// Optimizers over flat parameters. Learning rate, step count, clipping and loss scaling live on the device: a step
// waits for nothing.
//
//   AdamW opt(model, {.lr = 3e-4, .weight_decay = 0.1});
//   opt.zero_grad();
//   loss.backward();
//   Tensor norm = opt.clip(1.0);
//   opt.step();
//
// The optimizers themselves are in optimizers.h.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "models/optim/flat.h"
#include "models/optim/scaler.h"
#include "ops/ops.h"

namespace xylem {

// Throws unless it lies in [0, 1).
void check_decay_rate(const char* name, double value);

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  const FlatParams& params() const { return params_; }
  void zero_grad() const { params_.zero_grad(); }
  double lr() const { return lr_value_; }
  void set_lr(double lr);  // groups have a factor on it (ParamOptions)

  // Parameters that were frozen (requires_grad off) stay as they are, with their state; they go on when they no longer
  // are. Values that others have written into the parameters are taken over (FlatParams::refresh).
  //
  // Makes the next step() scale the gradients so that their global L2 norm is at most max_norm (0: leave it), divide
  // them by the scaler's factor, and do nothing at all where they are not finite; moves the scaler on. Returns the
  // norm before clipping, f32 [1] on the device. Parameters that no backward pass has reached count as zero.
  // `factor`, f32 [1] on the device: multiplied into the gradients before anything else (1 / the number of targets,
  // after losses that are sums).
  Tensor clip(double max_norm, LossScaler* scaler = nullptr, const Tensor& factor = {});
  // The first one warns, on standard error, of parameters that have a gradient but are members of no module that an
  // optimizer was made over: left out of XY_MEMBERS, most likely.
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
  // `rules`: what ParamOptions::rule may name.
  Optimizer(FlatParams params, double lr, const std::vector<std::string>& rules = {""});
  struct Update {
    const FlatSpan& span;
    const ParamOptions& options;  // of the span's group; `lr` has its factor already
    Tensor lr, step, grad_scale, skip;
  };
  virtual void update(const Update& u) = 0;
  // Updates everything, span by span.
  virtual void update_all(const Tensor& step, const Tensor& grad_scale, const Tensor& skip);
  const Tensor& lr_of(size_t group) const { return lr_[group]; }
  // The buffers made with params_.like(), each set with its name.
  virtual std::vector<std::pair<std::string, Tensors>> buffers() const = 0;

  FlatParams params_;

 private:
  double lr_value_;
  Tensors lr_;                // f32 [1], one per group
  Tensor step_, one_;         // i64, f64; [1] on the device
  Tensor grad_scale_, skip_;  // what clip() has decided for the next step()
  bool warned_ = false;       // about parameters that nobody trains
  bool finished_ = false;     // finish_grads() has run for the next step()
  void warn_of_strays();
  std::vector<std::pair<std::string, Tensors>> all_buffers() const;
};

}  // namespace xylem
