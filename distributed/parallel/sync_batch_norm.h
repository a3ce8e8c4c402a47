// SPDX-License-Identifier: Apache-2.0
// Batch normalisation over the samples of all ranks of a group.
#pragma once
#include "distributed/group/group.h"

namespace xylem {

// As batch_norm() in training: x [N, C, ..], gain and bias [C], of which N may differ from rank to rank. Means and
// variances are those of all ranks' samples together (Chan et al. 1979 for combining them), and gradients with respect
// to x reach the other ranks' losses. Those of gain and bias are of this rank's samples, as data parallel training
// expects. Running statistics are f32 [C], or both undefined; they move alike on all ranks.
Tensor sync_batch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& running_mean,
                       const Tensor& running_var, const Group& group, double momentum = 0.1, double eps = 1e-5);

}  // namespace xylem
