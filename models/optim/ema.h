// SPDX-License-Identifier: Apache-2.0
// Exponential moving average of a model's parameters and floating point buffers, in f32.
#pragma once
#include <vector>

#include "models/optim/flat.h"

namespace xylem {

class Ema {
 public:
  // Starts from the present values. After t updates the decay is min(decay, (1 + t) / (10 + t)), so that the first
  // steps do not linger.
  Ema(const Module& module, const FlatParams& params, double decay);

  void update();  // after every optimizer step
  int64_t updates() const { return updates_; }
  void set_updates(int64_t n) { updates_ = n; }

  // The averages under the names of state_dict(module), as views; buffers of whole numbers are not among them.
  std::vector<NamedTensor> state() const;
  std::vector<TensorShard> shards() const;  // the same in pieces: with ZeRO a rank averages what it updates

  // The module holds the averages while the scope lives (evaluation, export).
  class Scope {
   public:
    explicit Scope(Ema& ema);
    ~Scope();
    Scope(const Scope&) = delete;

   private:
    Ema& ema_;
    Tensors kept_;
  };

 private:
  struct Pair {
    Tensor average, value, home;  // f32; what it follows (an f32 master where there is one); what the module reads
  };
  const FlatParams& params_;
  double decay_;
  int64_t updates_ = 0;
  Tensors flat_;             // one per group of params
  std::vector<Pair> pairs_;  // the spans, then the buffers
  std::vector<NamedTensor> buffers_;
};

}  // namespace xylem
