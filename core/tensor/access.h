// SPDX-License-Identifier: Apache-2.0
// The inside of a tensor, for the core alone.
#pragma once
#include <memory>
#include <utility>

#include "core/tensor/tensor.h"

namespace xylem::detail {

struct Access {
  static TensorImpl& impl(const Tensor& t) { return t.impl(); }
  static Tensor handle(std::shared_ptr<TensorImpl> impl) { return Tensor(std::move(impl)); }
};

}  // namespace xylem::detail
