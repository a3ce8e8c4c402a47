// SPDX-License-Identifier: Apache-2.0
// The inside of a tensor: for the core, and for who knows tensors by identity and must not keep them alive.
#pragma once
#include <memory>
#include <utility>

#include "core/tensor/tensor.h"

namespace xylem::detail {

struct Access {
  static TensorImpl& impl(const Tensor& t) { return t.impl(); }
  // Whether nobody else holds the tensor or a view of it.
  static bool sole(const Tensor& t) { return t.impl_.use_count() == 1 && t.impl_->storage.use_count() == 1; }
  static Tensor handle(std::shared_ptr<TensorImpl> impl) { return Tensor(std::move(impl)); }
};

}  // namespace xylem::detail
