// SPDX-License-Identifier: Apache-2.0
// Every registered operation, on every sample it names: values and gradients against f64 on the CPU, numerical
// derivatives, strided inputs, repeatability; on a GPU also graph capture and freedom from allocation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/autograd/autograd.h"
#include "core/device/allocator.h"
#include "core/device/graph.h"
#include "core/random/rng.h"

namespace xylem {
namespace {

// What one run of a sample gives: outputs, then the gradients of the differentiable inputs.
struct Result {
  Tensors outputs, grads;
};

std::vector<bool> differentiable_inputs(const OpSpec& op, const Sample& s) {
  std::vector<bool> on(s.inputs.size());
  for (size_t i = 0; i < on.size(); ++i)
    on[i] = op.differentiable && s.inputs[i].defined() && is_float(s.inputs[i].dtype()) &&
            (s.differentiable.empty() ||
             std::find(s.differentiable.begin(), s.differentiable.end(), int(i)) != s.differentiable.end());
  return on;
}

Tensor as(const Tensor& t, DType dtype, Device device) {
  if (!t.defined()) return t;
  return (is_float(t.dtype()) ? t.to(dtype) : t).to(device).clone();
}

// The same values in memory that is neither dense nor in row-major order.
Tensor strided(const Tensor& t) {
  if (!t.defined() || t.rank() == 0) return t;
  Shape wide;
  for (int i = t.rank() - 1; i >= 0; --i) wide.push_back(t.shape()[i] * 2);
  std::vector<int> reversed;
  for (int i = t.rank() - 1; i >= 0; --i) reversed.push_back(i);
  Tensor view = zeros(wide, t.dtype(), t.device()).permute(reversed);
  for (int i = 0; i < t.rank(); ++i) view = view.slice(i, 0, view.size(i), 2);
  return view.copy_(t);
}

Tensor output_gradient(const Tensor& out, int index, DType dtype, Device device) {
  return sample_normal(out.shape(), 1, 77 + index).to(dtype).to(out.dtype()).to(device);
}

Tensors inputs_of(const Sample& s, DType dtype = f64, Device device = Device::cpu()) {
  Tensors inputs;
  for (const Tensor& t : s.inputs) inputs.push_back(as(t, dtype, device));
  return inputs;
}

// The outputs that have a gradient, and the fixed gradients that backward starts from.
std::pair<Tensors, Tensors> roots_and_seeds(const Tensors& outputs, DType dtype) {
  Tensors roots, seeds;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    seeds.push_back(output_gradient(outputs[i], int(i), dtype, outputs[i].device()));
  }
  return {roots, seeds};
}

Result evaluate(const OpSpec& op, const Sample& s, const Tensors& inputs, DType gradient_dtype) {
  rng::seed(1234);
  auto wants = differentiable_inputs(op, s);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (wants[i]) inputs[i].set_requires_grad();
  Result r;
  r.outputs = s.run(inputs);
  auto [roots, seeds] = roots_and_seeds(r.outputs, gradient_dtype);
  if (!roots.empty()) backward(roots, seeds);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (wants[i]) r.grads.push_back(inputs[i].grad());
  for (Tensor& out : r.outputs) out = out.detach();
  return r;
}

Result evaluate(const OpSpec& op, const Sample& s, DType dtype, Device device, bool through_strides = false) {
  Tensors inputs = inputs_of(s, dtype, device);
  if (through_strides)
    for (Tensor& t : inputs) t = strided(t);
  return evaluate(op, s, inputs, dtype);
}

// f64 on the CPU, from inputs and output gradients rounded to `dtype`.
Result reference(const OpSpec& op, const Sample& s, DType dtype) {
  Tensors inputs = inputs_of(s, dtype);
  for (Tensor& t : inputs) t = as(t, f64, Device::cpu());
  return evaluate(op, s, inputs, dtype);
}

void expect_near(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.defined(), want.defined()) << what;
  if (!want.defined()) return;
  ASSERT_EQ(got.shape(), want.shape()) << what;
  auto a = got.to_vector<double>(), b = want.to_vector<double>();
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    double error = same ? 0 : std::abs(a[i] - b[i]) / (1 + std::abs(b[i]));
    if (!(error <= worst)) worst = error, at = i;
  }
  EXPECT_LE(worst, tolerance) << what << ": element " << at << " is " << a[at] << ", should be " << b[at];
}

void expect_result(const Result& got, const Result& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.outputs.size(), want.outputs.size()) << what;
  for (size_t i = 0; i < want.outputs.size(); ++i)
    expect_near(got.outputs[i], want.outputs[i], is_float(want.outputs[i].dtype()) ? tolerance : 0,
                what + " output " + std::to_string(i));
  ASSERT_EQ(got.grads.size(), want.grads.size());
  for (size_t i = 0; i < want.grads.size(); ++i)
    expect_near(got.grads[i], want.grads[i], 2 * tolerance, what + " gradient " + std::to_string(i));
}

double tolerance_of(const OpSpec& op, DType t) {
  if (t == f64) return 1e-9;
  if (t == f32) return op.tolerance_f32;
  return t == bf16 ? op.tolerance_half : op.tolerance_half / 4;  // f16 has three more bits
}

double dot(const Tensor& a, const Tensor& b) {
  auto x = a.to_vector<double>(), y = b.to_vector<double>();
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

// sum over the outputs of <output, its fixed gradient>: the scalar that is differentiated.
double objective(const Sample& s, const Tensors& inputs) {
  NoGrad guard;
  rng::seed(1234);
  double total = 0;
  Tensors outputs = s.run(inputs);
  for (size_t i = 0; i < outputs.size(); ++i)
    if (is_float(outputs[i].dtype())) total += dot(outputs[i], output_gradient(outputs[i], int(i), f64, {}));
  return total;
}

Tensors moved(const Tensors& inputs, size_t which, const Tensor& direction, double h) {
  Tensors out;
  for (const Tensor& t : inputs) out.push_back(t.defined() ? t.detach().clone() : Tensor());
  out[which].add_(direction, h);
  return out;
}

class AllOps : public testing::TestWithParam<const OpSpec*> {
 protected:
  const OpSpec& op() const { return *GetParam(); }
  std::vector<Sample> samples() const { return op().make_samples(); }
};

TEST_P(AllOps, MatchesF64) {
  for (const Sample& s : samples())
    for (DType t : op().tested_dtypes) {
      if (t == f64) continue;
      expect_result(evaluate(op(), s, t, Device::cpu()), reference(op(), s, t), tolerance_of(op(), t),
                    op().name + " " + s.name + " " + name_of(t));
    }
}

TEST_P(AllOps, Gradient) {
  constexpr double h = 1e-5;
  for (const Sample& s : samples()) {
    auto wants = differentiable_inputs(op(), s);
    Tensors inputs = inputs_of(s);
    Result r = evaluate(op(), s, inputs, f64);
    size_t g = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!wants[i]) continue;
      Tensor grad = r.grads[g++];
      if (inputs[i].numel() == 0) continue;
      ASSERT_TRUE(grad.defined()) << op().name << " " << s.name << ": no gradient for input " << i;
      for (uint64_t trial = 0; trial < 3; ++trial) {
        Tensor v = sample_normal(inputs[i].shape(), 1, 900 + trial);
        double numeric = (objective(s, moved(inputs, i, v, h)) - objective(s, moved(inputs, i, v, -h))) / (2 * h);
        double scale = 1 + std::abs(numeric) + std::sqrt(dot(grad, grad));
        EXPECT_NEAR(dot(grad, v), numeric, 2e-6 * scale) << op().name << " " << s.name << ", input " << i;
      }
    }
  }
}

TEST_P(AllOps, SecondDerivative) {
  if (!op().supports_double_backward) GTEST_SKIP() << "first derivatives only";
  constexpr double h = 1e-5;
  for (const Sample& s : samples()) {
    auto wants = differentiable_inputs(op(), s);
    auto gradients = [&](const Tensors& inputs) {
      rng::seed(1234);
      Tensors leaves;
      for (size_t i = 0; i < inputs.size(); ++i)
        if (wants[i]) leaves.push_back(inputs[i].set_requires_grad());
      auto [roots, seeds] = roots_and_seeds(s.run(inputs), f64);
      return std::pair(leaves, roots.empty() ? Tensors() : grad(roots, leaves, seeds, true, true));
    };
    Tensors inputs = inputs_of(s);
    auto [leaves, first] = gradients(inputs);
    // L = sum_k <first_k, w_k>; its derivative along v must match a difference of first derivatives.
    Tensors roots, weights;
    std::vector<size_t> which;
    for (size_t k = 0; k < first.size(); ++k)
      if (first[k].defined() && first[k].requires_grad() && first[k].numel() > 0) {
        roots.push_back(first[k]);
        weights.push_back(sample_normal(first[k].shape(), 1, 300 + k));
        which.push_back(k);
      }
    if (roots.empty()) continue;  // linear in its inputs
    Tensors second = grad(roots, leaves, weights);
    size_t leaf = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!wants[i]) continue;
      Tensor gradient = second[leaf++];
      Tensor v = sample_normal(inputs[i].shape(), 1, 901);
      auto shifted = [&](double by) {
        auto [unused, g] = gradients(moved(inputs, i, v, by));
        double sum = 0;
        for (size_t k = 0; k < roots.size(); ++k) sum += dot(g[which[k]], weights[k]);
        return sum;
      };
      double numeric = (shifted(h) - shifted(-h)) / (2 * h), analytic = gradient.defined() ? dot(gradient, v) : 0;
      EXPECT_NEAR(analytic, numeric, 1e-5 * (1 + std::abs(numeric))) << op().name << " " << s.name << ", input " << i;
    }
  }
}

TEST_P(AllOps, StridedInputs) {
  for (const Sample& s : samples())
    expect_result(evaluate(op(), s, f64, Device::cpu(), true), evaluate(op(), s, f64, Device::cpu()), 1e-12,
                  op().name + " " + s.name + " strided");
}

TEST_P(AllOps, Repeatable) {
  for (const Sample& s : samples())
    for (DType t : op().tested_dtypes)
      expect_result(evaluate(op(), s, t, Device::cpu()), evaluate(op(), s, t, Device::cpu()), 0,
                    op().name + " " + s.name + " twice");
}

TEST_P(AllOps, CudaMatchesCpu) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  for (const Sample& s : samples())
    for (DType t : op().tested_dtypes) {
      Result want = reference(op(), s, t);
      std::string what = op().name + " " + s.name + " " + name_of(t) + " on CUDA";
      expect_result(evaluate(op(), s, t, Device::cuda()), want, tolerance_of(op(), t), what);
      expect_result(evaluate(op(), s, t, Device::cuda(), true), want, tolerance_of(op(), t), what + ", strided");
    }
}

TEST_P(AllOps, CudaRepeatable) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  for (const Sample& s : samples())
    for (DType t : op().tested_dtypes)
      expect_result(evaluate(op(), s, t, Device::cuda()), evaluate(op(), s, t, Device::cuda()), 0,
                    op().name + " " + s.name + " twice on CUDA");
}

// A capture fails on any synchronisation; the counter shows trips to cudaMalloc.
TEST_P(AllOps, CudaCaptures) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  Device gpu = Device::cuda();
  for (const Sample& s : samples())
    for (DType t : {f32, bf16}) {
      if (std::find(op().tested_dtypes.begin(), op().tested_dtypes.end(), t) == op().tested_dtypes.end()) continue;
      std::string what = op().name + " " + s.name + " " + name_of(t);
      auto wants = differentiable_inputs(op(), s);
      Tensors inputs, seeds;
      for (size_t i = 0; i < s.inputs.size(); ++i) {
        inputs.push_back(as(s.inputs[i], t, gpu));
        if (wants[i]) inputs[i].set_requires_grad();
      }
      for (const Tensor& out : s.run(inputs))
        seeds.push_back(is_float(out.dtype()) ? output_gradient(out, int(seeds.size()), t, gpu) : Tensor());
      Result result;
      auto step = [&] {
        for (const Tensor& in : inputs)
          if (in.defined()) in.zero_grad();
        result.outputs = s.run(inputs);
        Tensors roots, root_seeds;
        for (size_t i = 0; i < result.outputs.size(); ++i)
          if (result.outputs[i].requires_grad()) roots.push_back(result.outputs[i]), root_seeds.push_back(seeds[i]);
        if (!roots.empty()) backward(roots, root_seeds);
      };
      auto restart = [&] {
        rng::seed(1234);
        synchronize(gpu);
      };
      for (int warm = 0; warm < 3; ++warm) restart(), step();
      int64_t calls = allocator(gpu).stats().system_calls;
      restart(), step();
      EXPECT_EQ(allocator(gpu).stats().system_calls, calls) << what << " allocates after warm-up";
      Result eager;
      for (const Tensor& o : result.outputs) eager.outputs.push_back(o.detach().clone());
      for (size_t i = 0; i < inputs.size(); ++i)
        if (wants[i]) eager.grads.push_back(inputs[i].grad().defined() ? inputs[i].grad().clone() : Tensor());
      restart();
      CudaGraph graph;
      ASSERT_NO_THROW(graph.capture(gpu, step)) << what;
      restart();
      graph.replay();
      synchronize(gpu);
      for (size_t i = 0; i < inputs.size(); ++i)
        if (wants[i]) result.grads.push_back(inputs[i].grad());
      for (Tensor& o : result.outputs) o = o.detach();
      expect_result(result, eager, 0, what + " replayed");
    }
}

INSTANTIATE_TEST_SUITE_P(Registry, AllOps, testing::ValuesIn(registered_ops()), [](const auto& info) {
  std::string name = info.param->name;
  for (char& c : name)
    if (!isalnum(c)) c = '_';
  return name;
});

TEST(Registry, EveryOperationHasSamples) {
  for (const OpSpec* op : registered_ops()) EXPECT_TRUE(op->make_samples) << op->name << " names no samples()";
}

TEST(Registry, RefusesDuplicates) { EXPECT_THROW(OpSpec("reshape"), Error); }

}  // namespace
}  // namespace xylem
