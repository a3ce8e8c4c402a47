// SPDX-License-Identifier: Apache-2.0
// Engines of attention and the rotary kernel.
#pragma once
#include <string>

#include "core/tensor/tensor.h"

namespace xylem {

// q and out [B, S, H, D], k and v [B, T, Hk, D], all with D innermost; every query sees at least one key (with `causal`
// S <= T). lse [B, H, S], contiguous, in compute_type(q): the log of the sum of exponentials of the scaled scores.
struct AttentionCall {
  Tensor q, k, v, out, lse;
  bool causal;
  double scale;
};
// dq like q, dk and dv like k; dout like out.
struct AttentionGrad {
  Tensor q, k, v, out, lse, dout, dq, dk, dv;
  bool causal;
  double scale;
};

// x [B, S, H, D] with D innermost, out contiguous, table [2, S, D/2] with contiguous rows one after the other: cosines,
// then sines. `sign` -1 turns back.
struct RotaryCall {
  Tensor x, table, out;
  double sign;
};

namespace cpu {
void attention(const AttentionCall& a);
void attention_backward(const AttentionGrad& a);
void rotary_table(const Tensor& table, double base);  // of the positions from 0 on; contiguous
void rotary(const RotaryCall& r);
}  // namespace cpu
namespace cuda {
// The plain composition of matrix products and the kernels below; any type and size.
void attention(const AttentionCall& a);
void attention_backward(const AttentionGrad& a);
void rotary_table(const Tensor& table, double base);
void rotary(const RotaryCall& r);

// cuDNN's fused kernels for 16-bit types. The obstacle is the reason why they cannot take a problem, or "": cuDNN then
// has a plan for its forward pass, which may take two seconds to build the first time. cudnn_attention() throws where
// there is an obstacle; the backward pass returns false, having warned and written nothing, where cuDNN has no plan.
std::string cudnn_attention_obstacle(const AttentionCall& a);
void cudnn_attention(const AttentionCall& a);
bool cudnn_attention_backward(const AttentionGrad& a);

// Over the last dimension of scores [.., rows, T], in place; row r of S is a query that sees keys up to r + T - S when
// causal.
void masked_softmax(const Tensor& scores, const Tensor& lse, int64_t queries, bool causal, double scale);
// scores become probabilities, given lse.
void probabilities(const Tensor& scores, const Tensor& lse, int64_t queries, bool causal, double scale);
// dscores = p * (dp - sum(p * dp)) * scale, written over dp.
void softmax_gradient(const Tensor& p, const Tensor& dp, double scale);
}  // namespace cuda

}  // namespace xylem
