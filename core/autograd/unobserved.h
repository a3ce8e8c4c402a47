// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/autograd/autograd.h"

namespace xylem {

// No observer sees the operations of this thread while it lives: for what makes the values of a tensor while an
// operation reads them.
class Unobserved {
 public:
  Unobserved();
  ~Unobserved();
  Unobserved(const Unobserved&) = delete;

 private:
  OpObserver* hidden_;
};

}  // namespace xylem
