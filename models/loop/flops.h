// SPDX-License-Identifier: Apache-2.0
// Model FLOPs and the share of the device's peak that a run reaches.
#pragma once
#include <string>

#include "core/autograd/autograd.h"

namespace xylem {

// Adds up OpSpec::flop_count of every operation recorded while it lives.
class FlopCounter : public OpObserver {
 public:
  double total() const { return total_; }
  void on_op(const OpSpec& spec, std::span<const Tensor> outputs, std::span<const Tensor> inputs,
             const Attrs& attrs) override;

 private:
  double total_ = 0;
};

struct Peak {
  double flops = 0;  // per second, dense; 0 when unknown
  std::string name;  // "NVIDIA H200, bf16 dense"
};

// From the table of GPUs (distributed/topology/gpu_model.h); unknown on the CPU. `precision` is fp32, tf32, bf16 or
// fp16.
Peak peak_flops(Device device, const std::string& precision);
Peak peak_of_gpu(const std::string& gpu_name, const std::string& precision);

}  // namespace xylem
