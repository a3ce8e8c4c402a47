// SPDX-License-Identifier: Apache-2.0
// Attention as matrix products and softmax on the GPU. The query heads that share a key head are stacked into one
// matrix of group * S rows, so that grouping costs nothing.
#include "ops/attention/attention.h"
#include "ops/backend/grad_target.h"
#include "ops/ops.h"

namespace xylem::cuda {
namespace {

// [B, S, H, D] -> [B * heads, (H / heads) * S, D], in the compute type.
Tensor by_head(const Tensor& t, int64_t heads) {
  return packed(t.detach().to(compute_type(t.dtype())).permute({0, 2, 1, 3})).view({t.size(0) * heads, -1, t.size(3)});
}

// The other way round, into `to`.
void put_back(const Tensor& to, const Tensor& from) {
  to.copy_(from.view({to.size(0), to.size(2), to.size(1), to.size(3)}).permute({0, 2, 1, 3}));
}

Tensor transposed(const Tensor& t) { return t.transpose(1, 2); }

}  // namespace

void attention(const AttentionCall& a) {
  NoGrad guard;
  const int64_t heads = a.k.size(2);
  Tensor q = by_head(a.q, heads), k = by_head(a.k, heads), v = by_head(a.v, heads);
  Tensor scores = packed(matmul(q, transposed(k)));
  masked_softmax(scores, a.lse, a.q.size(1), a.causal, a.scale);
  put_back(a.out, matmul(scores, v));
}

void attention_backward(const AttentionGrad& a) {
  NoGrad guard;
  const int64_t heads = a.k.size(2);
  Tensor q = by_head(a.q, heads), k = by_head(a.k, heads), v = by_head(a.v, heads), dout = by_head(a.dout, heads);
  Tensor p = packed(matmul(q, transposed(k)));
  probabilities(p, a.lse, a.q.size(1), a.causal, a.scale);
  put_back(a.dv, matmul(transposed(p), dout));
  Tensor dscores = packed(matmul(dout, transposed(v)));
  softmax_gradient(p, dscores, a.scale);
  put_back(a.dq, matmul(dscores, k));
  put_back(a.dk, matmul(transposed(dscores), q));
}

}  // namespace xylem::cuda
