// SPDX-License-Identifier: Apache-2.0
#include "ops/optim/update.h"

#include "ops/backend/grad_target.h"

namespace xylem::update {
namespace {

// A device scalar that a kernel reads.
void check_scalar(const char* name, const Tensor& t, DType dtype, Device device) {
  XY_CHECK(t.numel() == 1 && t.dtype() == dtype, name, " must be one ", dtype, ", but it is ", t.dtype(), " ",
           t.shape());
  XY_CHECK(t.device() == device, name, " is on ", t.device(), " and param on ", device);
}

void check_buffer(const char* name, const Tensor& t, const Tensor& param, DType dtype) {
  XY_CHECK(t.defined(), name, " is undefined");
  XY_CHECK(t.shape() == param.shape(), name, " has shape ", t.shape(), " and param ", param.shape());
  XY_CHECK(t.dtype() == dtype, name, " is ", t.dtype(), " but must be ", dtype);
  XY_CHECK(t.device() == param.device(), name, " is on ", t.device(), " and param on ", param.device());
  XY_CHECK(t.is_contiguous(), name, " must be contiguous");
}

}  // namespace

void check(Buffers& b, std::span<const char* const> state_names) {
  const Tensor& param = b.param;
  XY_CHECK(is_float(param.dtype()) && param.is_contiguous(), "param must be contiguous and floating point");
  XY_CHECK(!b.master.defined() || is_half(param.dtype()), "a master copy is for 16-bit parameters, not for ",
           param.dtype());
  const DType type = compute_type(param.dtype());
  const Device device = param.device();
  if (b.master.defined()) check_buffer("master", b.master, param, type);
  XY_CHECK(b.grad.shape() == param.shape(), "grad has shape ", b.grad.shape(), " and param ", param.shape());
  XY_CHECK(b.grad.device() == device, "grad is on ", b.grad.device(), " and param on ", device);
  b.grad = packed(b.grad, b.grad.dtype() == param.dtype() ? param.dtype() : type);
  XY_ASSERT(b.states.size() == state_names.size(), "an update with ", b.states.size(), " buffers for ",
            state_names.size());
  for (size_t i = 0; i < state_names.size(); ++i) check_buffer(state_names[i], b.states[i], param, type);
  XY_CHECK(b.lr.defined(), "lr is undefined");
  check_scalar("lr", b.lr, f32, device);
  if (b.step.defined()) check_scalar("step", b.step, i64, device);
  if (b.grad_scale.defined()) check_scalar("grad_scale", b.grad_scale, f32, device);
  if (b.skip.defined()) check_scalar("skip", b.skip, i32, device);
}

void changed(const Buffers& b) {
  b.param.bump_version();
  if (b.master.defined()) b.master.bump_version();
  for (const Tensor& t : b.states) t.bump_version();
}

}  // namespace xylem::update
