// SPDX-License-Identifier: Apache-2.0
// Finds the first operation whose result, or whose backward pass, is not finite.
//
//   NanSearch search;
//   Tensor loss = ...;
//   search.begin_backward();
//   loss.backward();
//   search.check_gradients(model.parameters());
//   search.finding();
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "core/autograd/autograd.h"
#include "models/nn/module.h"

namespace xylem {

// Reads every result and keeps all of them, so it is slow and takes memory: for one step.
class NanSearch : public OpObserver {
 public:
  void begin_forward() { forward_ = true; }
  void begin_backward() { forward_ = false; }
  void check_gradients(const std::vector<NamedTensor>& parameters);
  const std::string& finding() const { return finding_; }  // a sentence, or "" while all is finite
  void on_op(const OpSpec& spec, std::span<const Tensor> outputs, std::span<const Tensor> inputs,
             const Attrs& attrs) override;

 private:
  void watch_gradient(const Tensor& result);
  std::string blame(const Tensor& t) const;

  std::string finding_;
  std::unordered_map<const TensorImpl*, std::string> readers_;  // operations that used a tensor, latest first
  Tensors kept_;                                                // so that no address in readers_ is used twice
  int64_t count_ = 0;
  bool forward_ = true, busy_ = false;
};

}  // namespace xylem
