// SPDX-License-Identifier: Apache-2.0
// Every operation. Shapes are given in brackets; N batch, C channels, H W image, B batch, S sequence, D head size.
// All work on CPU and CUDA in f64, f32, f16 and bf16 and are differentiable unless noted; 16-bit types compute in f32.
// Errors: xylem::Error naming the operation, the argument and the shapes.
#pragma once
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/tensor/tensor.h"

namespace xylem {

// ---- elementwise: operands broadcast, mixed types promote --------------------------------------------------------
// A number written as an integer leaves an integer tensor one (x + 1), a floating point number makes it f32 (x + 1.0).
// Division is true division: of integers it gives f32.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);  // ties send half the gradient to each side
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor add(const Tensor& a, Scalar b);
Tensor mul(const Tensor& a, Scalar b);
Tensor div(const Tensor& a, Scalar b);  // floating point tensors are multiplied by 1 / b
Tensor pow(const Tensor& a, double exponent);
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);  // condition: bool

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& a, Scalar b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, Scalar b) { return add(a, -b); }
inline Tensor operator*(const Tensor& a, Scalar b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, Scalar b) { return div(a, b); }
inline Tensor operator+(Scalar a, const Tensor& b) { return add(b, a); }
inline Tensor operator*(Scalar a, const Tensor& b) { return mul(b, a); }
inline Tensor operator-(const Tensor& a) { return mul(a, -1); }
inline Tensor operator-(Scalar a, const Tensor& b) { return add(mul(b, -1), a); }

// Comparisons give bool tensors and have no gradient.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, Scalar b);
Tensor lt(const Tensor& a, Scalar b);
Tensor gt(const Tensor& a, Scalar b);

Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor abs(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor erf(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor hardsigmoid(const Tensor& x, double alpha = 1.0 / 6, double beta = 0.5);  // alpha x + beta, cut to [0, 1]
Tensor relu(const Tensor& x);
Tensor leaky_relu(const Tensor& x, double alpha = 0.01);  // alpha x below 0
Tensor silu(const Tensor& x);
Tensor hardswish(const Tensor& x);
Tensor gelu(const Tensor& x);       // exact: x * Phi(x)
Tensor gelu_tanh(const Tensor& x);  // GPT-2's tanh approximation
Tensor softplus(const Tensor& x);
Tensor mish(const Tensor& x);
Tensor elu(const Tensor& x, double alpha = 1);           // alpha (e^x - 1) below 0
Tensor clamp(const Tensor& x, double low, double high);  // gradient 1 where low <= x <= high
Tensor swiglu(const Tensor& gate, const Tensor& up);     // silu(gate) * up, fused

// ---- random (ops/random) --------------------------------------------------------------------------------------------
Tensor rand(const Shape& shape, DType dtype = f32, Device device = {});   // uniform in [0, 1)
Tensor randn(const Shape& shape, DType dtype = f32, Device device = {});  // standard normal
void uniform_(const Tensor& t, double low, double high);
void normal_(const Tensor& t, double mean, double stddev);
Tensor dropout(const Tensor& x, double p, bool training = true);  // keeps with probability 1-p, scales by 1/(1-p)

// ---- reductions: empty dims means all; keepdim leaves size-1 dims --------------------------------------------------
// Of integers there is sum, which gives i64 and is exact; the others want floats.
Tensor sum(const Tensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
Tensor amax(const Tensor& x, const std::vector<int>& dims = {}, bool keepdim = false);  // ties share the gradient
Tensor amin(const Tensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
Tensor var(const Tensor& x, const std::vector<int>& dims = {}, bool keepdim = false, int correction = 1);
Tensor argmax(const Tensor& x, int dim = -1, bool keepdim = false);  // i64; the first of equal values; no gradient
std::pair<Tensor, Tensor> topk(const Tensor& x, int64_t k, int dim = -1);  // sorted values and their i64 indices
Tensor softmax(const Tensor& x, int dim = -1);
Tensor log_softmax(const Tensor& x, int dim = -1);

// ---- matrix products ---------------------------------------------------------------------------------------------
// [.., M, K] x [.., K, N] -> [.., M, N]; batch dims broadcast; 1-D as in NumPy.
Tensor matmul(const Tensor& a, const Tensor& b);
// x [.., in], weight [out, in], bias [out] or undefined -> [.., out]. Weight gradients go into the flat buffer.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

// ---- convolution and pooling, NCHW shapes, any strides (channels-last tensors stay channels-last) ------------------
struct ConvArgs {
  std::array<int, 2> stride{1, 1}, padding{0, 0}, dilation{1, 1};
  int groups = 1;
};
// x [N, C, H, W], weight [K, C/groups, R, S], bias [K] or undefined
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const ConvArgs& args = {});
// x [N, C, H, W], weight [C, K/groups, R, S]
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const ConvArgs& args = {},
                        std::array<int, 2> output_padding = {0, 0});
struct PoolArgs {
  std::array<int, 2> kernel{2, 2}, stride{2, 2}, padding{0, 0};
  bool count_include_pad = true;  // average pooling only
};
Tensor max_pool2d(const Tensor& x, const PoolArgs& args);
Tensor avg_pool2d(const Tensor& x, const PoolArgs& args);
Tensor adaptive_avg_pool2d(const Tensor& x, std::array<int64_t, 2> output);
enum class Interpolation { nearest, bilinear };
Tensor interpolate(const Tensor& x, std::array<int64_t, 2> size, Interpolation mode, bool align_corners = false);

// ---- normalisation: gain and bias are f32 or x's type; statistics in f32 --------------------------------------------
Tensor layer_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double eps = 1e-5);  // over the last dim
Tensor rms_norm(const Tensor& x, const Tensor& gain, double eps = 1e-5);
// x [N, C, ..]
Tensor group_norm(const Tensor& x, int groups, const Tensor& gain, const Tensor& bias, double eps = 1e-5);
// Over all dims but 1. Training uses batch statistics and moves running = (1-momentum)*running + momentum*batch
// (unbiased variance); otherwise uses the running ones. running_*: f32 [C].
Tensor batch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& running_mean,
                  const Tensor& running_var, bool training, double momentum = 0.1, double eps = 1e-5);
// h = x + residual; returns {h, norm(h)}: one pass instead of two.
std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& gain,
                                         const Tensor& bias, double eps = 1e-5);
std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& gain, double eps = 1e-5);

// ---- embedding, gather, scatter -----------------------------------------------------------------------------------
// indices i64 or i32 [..], table [V, C] -> [.., C]; the gradient is deterministic.
Tensor embedding(const Tensor& indices, const Tensor& table);
Tensor gather(const Tensor& x, int dim, const Tensor& index);  // as torch.gather
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
Tensor index_select(const Tensor& x, int dim, const Tensor& indices);  // indices 1-D

// ---- attention ----------------------------------------------------------------------------------------------------
struct AttentionArgs {
  bool causal = false;               // aligned bottom-right: the last query sees the last key
  std::optional<double> scale = {};  // default 1/sqrt(D)
};
// q [B, S, H, D], k v [B, T, Hk, D] with any strides, H a multiple of Hk -> [B, S, H, D]. Rows with no key give 0.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionArgs& args = {});
// The engine that attention() picks for these arguments, and why: {"cudnn", "bf16 on sm_90, head size 64"}.
std::pair<std::string, std::string> attention_engine(const Tensor& q, const Tensor& k, const Tensor& v,
                                                     const AttentionArgs& args = {});
// Rotates pairs of x [B, S, H, D] by position * base^(-2i/D), the positions being offset .. offset+S-1. Pairs are
// (i, i+D/2) as in Hugging Face's Llama. Computed in f32.
Tensor rotary(const Tensor& x, double base = 10000, int64_t offset = 0);

// ---- losses, scalars in f32 (f64 for f64) -------------------------------------------------------------------------
enum class LossReduction { mean, sum };
struct CrossEntropyArgs {
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  LossReduction reduction = LossReduction::mean;  // over the targets that are not ignored; 0 if all are
};
// logits [.., V], targets i64/i32 [..]. A target outside [0, V) is an error that names it (on the GPU: a device-side
// flag checked when the loss is read).
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyArgs& args = {});
// cross_entropy(linear(hidden, weight), targets, args) for hidden [.., C] and weight [V, C] without ever holding all
// logits: they are made for some rows at a time, and where gradients are recorded they become gradients at once, which
// are multiplied further before the next rows. Up to 1 GiB of logits, and a copy of the weight's gradient.
Tensor linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyArgs& args = {});
Tensor mse_loss(const Tensor& x, const Tensor& target);

// ---- optimizer kernels over flat buffers (ops/optim), not differentiable ------------------------------------------
struct AdamWArgs {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
};
// One fused pass. param: any float; master: f32 copy for 16-bit params, else undefined; grad: f32 or param's type;
// m, v: f32 (f64 for f64). `lr` and `step` are one-element device tensors (f32, i64; step counts from 1), `grad_scale`
// a one-element f32 multiplied into the gradient (clipping, unscaling), `skip` a one-element i32 that, when not 0,
// leaves everything unchanged; the last two may be undefined.
void adamw_step(const Tensor& param, const Tensor& master, const Tensor& grad, const Tensor& m, const Tensor& v,
                const Tensor& lr, const Tensor& step, const AdamWArgs& args, const Tensor& grad_scale = {},
                const Tensor& skip = {});
struct SgdArgs {
  double momentum = 0, weight_decay = 0;
  bool nesterov = false;
};
void sgd_step(const Tensor& param, const Tensor& master, const Tensor& grad, const Tensor& momentum, const Tensor& lr,
              const SgdArgs& args, const Tensor& grad_scale = {}, const Tensor& skip = {});
struct LionArgs {
  double lr = 1e-4, beta1 = 0.9, beta2 = 0.99, weight_decay = 0.1;
};
void lion_step(const Tensor& param, const Tensor& master, const Tensor& grad, const Tensor& m, const Tensor& lr,
               const LionArgs& args, const Tensor& grad_scale = {}, const Tensor& skip = {});
// Sum of squares over all tensors, f64 [1] on their device, summed in a fixed order; and whether all are finite.
Tensor sum_of_squares(const Tensors& tensors);
void ema_update(const Tensor& average, const Tensor& value, double decay);  // average = decay*average + (1-decay)*value

}  // namespace xylem
