// SPDX-License-Identifier: Apache-2.0
// Whether this thread records what it computes.
#pragma once
#include <cstdint>

namespace xylem {

namespace detail {
// probing: nothing is recorded, but what would be is noted (core/autograd/probe.h).
enum class GradMode : uint8_t { off, probing, on };
GradMode grad_mode();

class GradModeScope {
 public:
  explicit GradModeScope(GradMode mode);
  ~GradModeScope();
  GradModeScope(const GradModeScope&) = delete;

 private:
  GradMode previous_;
};
}  // namespace detail

inline bool grad_enabled() { return detail::grad_mode() == detail::GradMode::on; }

// Nothing is recorded inside the scope.
class NoGrad : detail::GradModeScope {
 public:
  NoGrad() : GradModeScope(detail::GradMode::off) {}
};
class EnableGrad : detail::GradModeScope {
 public:
  explicit EnableGrad(bool on = true) : GradModeScope(on ? detail::GradMode::on : detail::GradMode::off) {}
};
template <class F>
decltype(auto) no_grad(F&& f) {
  NoGrad guard;
  return f();
}

}  // namespace xylem
