// SPDX-License-Identifier: Apache-2.0
// Parameters, and an account of where they were made: a layer that its module does not list in XY_MEMBERS computes and
// gets gradients, but is neither trained nor saved.
#pragma once
#include <source_location>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace xylem {

// Marks a tensor as trained: Tensor weight = parameter(empty({out, in})).
Tensor parameter(const Tensor& t, const std::source_location& at = std::source_location::current());

namespace detail {

// From here on the parameter is known to be a member of a module that an optimizer was made over.
void note_member(const Tensor& parameter);
// Living parameters that have a fresh gradient and are no such member: "[5, 3], made by xylem::Linear::Linear".
std::vector<std::string> stray_parameters();

}  // namespace detail
}  // namespace xylem
