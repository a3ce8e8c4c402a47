// SPDX-License-Identifier: Apache-2.0
// Silent corruption: replicas that ought to be equal to the last bit are compared by hash.
#pragma once
#include <optional>
#include <string>

#include "core/tensor/tensor.h"
#include "distributed/group/group.h"

namespace xylem {

// Collective over the group. Nothing if all ranks hold the same bits in `tensors` and have called the same collectives;
// otherwise, the same on all ranks, which rank differs and where: "the parameters of rank 3 (host b) differ from those
// of ranks 0-2 since tensor 12 ...". With two ranks nobody can tell which is right.
std::optional<std::string> verify_replicas(const Tensors& tensors, const Group& group,
                                           const std::vector<std::string>& names = {});

uint64_t hash_of(const Tensor& t);  // of type, shape and bits

}  // namespace xylem
