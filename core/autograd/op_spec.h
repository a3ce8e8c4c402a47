// SPDX-License-Identifier: Apache-2.0
// OpSpec: what Xylem knows about an operation besides how to compute it. A static object in the operation's file
// registers it; tests/ops/all_ops_test.cpp then checks every registered operation on its samples.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace xylem {

// One call of an operation for the tests. `inputs` are f64 (or integer) values on the CPU; the test casts the floats
// to the dtype and moves them to the device under test.
struct Sample {
  std::string name;
  Tensors inputs;
  std::function<Tensors(const Tensors&)> run;
  std::vector<int> differentiable = {};  // inputs to gradcheck; empty: every floating point input
};

class OpSpec {
 public:
  explicit OpSpec(std::string name);
  ~OpSpec();
  OpSpec(const OpSpec&) = delete;

  using Flops = std::function<double(std::span<const Tensor> inputs, std::span<const Tensor> outputs)>;
  OpSpec& samples(std::function<std::vector<Sample>()> make);
  OpSpec& flops(Flops count);                    // floating point operations of one forward call; default 0
  OpSpec& tolerance(double f32, double half16);  // largest |a - b| / (1 + |b|) allowed against the f64 CPU result
  OpSpec& double_backward();                     // backward is made of differentiable operations
  OpSpec& not_differentiable();
  OpSpec& dtypes(std::vector<DType> types);  // default f64 f32 f16 bf16
  OpSpec& not_exportable(std::string why);   // has no ONNX lowering, and why

  std::string name, backward_name;
  std::function<std::vector<Sample>()> make_samples;
  Flops flop_count;
  double tolerance_f32 = 1e-5, tolerance_half = 2e-2;
  bool supports_double_backward = false, differentiable = true;
  std::vector<DType> tested_dtypes = {f64, f32, f16, bf16};
  std::string export_obstacle;
};

// Every registered operation, sorted by name.
std::vector<const OpSpec*> registered_ops();
const OpSpec* find_op(const std::string& name);

// Sample inputs: reproducible values in f64.
Tensor sample_uniform(const Shape& shape, double low = -1, double high = 1, uint64_t seed = 1);
Tensor sample_normal(const Shape& shape, double stddev = 1, uint64_t seed = 1);
Tensor sample_index(const Shape& shape, int64_t bound, uint64_t seed = 1);  // i64 in [0, bound)

}  // namespace xylem
