// SPDX-License-Identifier: Apache-2.0
// Collectives as operations: recorded and differentiable, so that parallel layers are ordinary modules.
#pragma once
#include "distributed/group/group.h"

namespace xylem {

// The sum over the group, on every rank. Backward: the sum of the gradients.
Tensor all_reduce(const Tensor& x, const Group& group);
// Parts of all ranks joined along `dim`, in rank order. Backward: reduce_scatter.
Tensor all_gather(const Tensor& x, const Group& group, int dim = 0);
// The sum over the group, of which rank r keeps part r along `dim` (whose size the group's size divides). Backward:
// all_gather.
Tensor reduce_scatter(const Tensor& x, const Group& group, int dim = 0);
// Part r along `dim` goes to rank r. Backward: all_to_all.
Tensor all_to_all(const Tensor& x, const Group& group, int dim = 0);
// The value of `root`. Backward: the sum of the gradients, at root; zero elsewhere.
Tensor broadcast(const Tensor& x, const Group& group, int root = 0);
// Identity forward, all_reduce backward, and the other way round: the two ends of a tensor-parallel region.
Tensor enter_parallel(const Tensor& x, const Group& group);
Tensor leave_parallel(const Tensor& x, const Group& group);

}  // namespace xylem
