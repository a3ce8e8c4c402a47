// SPDX-License-Identifier: Apache-2.0
// AdamW (Loshchilov and Hutter, 2019) and SGD with momentum, with the semantics of torch.optim.
#include "ops/optim/optim.h"

#include "core/tensor/dispatch.h"
#include "ops/backend/grad_target.h"

namespace xylem {
namespace {

// A device scalar that a kernel reads.
void check_scalar(const char* name, const Tensor& t, DType dtype, Device device, bool optional) {
  if (optional && !t.defined()) return;
  XY_CHECK(t.defined(), name, " is undefined");
  XY_CHECK(t.numel() == 1 && t.dtype() == dtype, name, " must be one ", dtype, ", but it is ", t.dtype(), " ",
           t.shape());
  XY_CHECK(t.device() == device, name, " is on ", t.device(), " and param on ", device);
}

void check_buffer(const char* name, const Tensor& t, const Tensor& param, DType dtype) {
  XY_CHECK(t.shape() == param.shape(), name, " has shape ", t.shape(), " and param ", param.shape());
  XY_CHECK(t.dtype() == dtype, name, " is ", t.dtype(), " but must be ", dtype);
  XY_CHECK(t.device() == param.device(), name, " is on ", t.device(), " and param on ", param.device());
  XY_CHECK(t.is_contiguous(), name, " must be contiguous");
}

// The gradient in a type the kernel takes, after the checks that AdamW and SGD share.
Tensor check_update(const Tensor& param, const Tensor& master, const Tensor& grad) {
  XY_CHECK(is_float(param.dtype()) && param.is_contiguous(), "param must be contiguous and floating point");
  XY_CHECK(!master.defined() || is_half(param.dtype()), "a master copy is for 16-bit parameters, not for ",
           param.dtype());
  const DType type = compute_type(param.dtype());
  if (master.defined()) check_buffer("master", master, param, type);
  XY_CHECK(grad.shape() == param.shape(), "grad has shape ", grad.shape(), " and param ", param.shape());
  XY_CHECK(grad.device() == param.device(), "grad is on ", grad.device(), " and param on ", param.device());
  return packed(grad, grad.dtype() == param.dtype() ? param.dtype() : type);
}

void changed(const Tensor& t) {
  if (t.defined()) t.bump_version();
}

}  // namespace

void adamw_step(const Tensor& param, const Tensor& master, const Tensor& grad, const Tensor& m, const Tensor& v,
                const Tensor& lr, const Tensor& step, const AdamWArgs& args, const Tensor& grad_scale,
                const Tensor& skip) {
  OpScope scope("adamw_step");
  NoGrad guard;
  Tensor g = check_update(param, master, grad);
  const DType type = compute_type(param.dtype());
  check_buffer("m", m, param, type);
  check_buffer("v", v, param, type);
  check_scalar("lr", lr, f32, param.device(), false);
  check_scalar("step", step, i64, param.device(), false);
  check_scalar("grad_scale", grad_scale, f32, param.device(), true);
  check_scalar("skip", skip, i32, param.device(), true);
  if (param.numel() == 0) return;
  XY_ON_DEVICE(param, adamw, AdamWStep{param, master, g, m, v, lr, step, grad_scale, skip, args});
  for (const Tensor& t : {param, master, m, v}) changed(t);
}

void sgd_step(const Tensor& param, const Tensor& master, const Tensor& grad, const Tensor& momentum, const Tensor& lr,
              const SgdArgs& args, const Tensor& grad_scale, const Tensor& skip) {
  OpScope scope("sgd_step");
  NoGrad guard;
  Tensor g = check_update(param, master, grad);
  XY_CHECK(momentum.defined() || args.momentum == 0, "momentum ", args.momentum, " needs a momentum buffer");
  XY_CHECK(!args.nesterov || args.momentum > 0, "nesterov needs a momentum greater than 0");
  const Tensor buffer = args.momentum == 0 ? Tensor() : momentum;
  if (buffer.defined()) check_buffer("momentum", buffer, param, compute_type(param.dtype()));
  check_scalar("lr", lr, f32, param.device(), false);
  check_scalar("grad_scale", grad_scale, f32, param.device(), true);
  check_scalar("skip", skip, i32, param.device(), true);
  if (param.numel() == 0) return;
  XY_ON_DEVICE(param, sgd, SgdStep{param, master, g, buffer, lr, grad_scale, skip, args});
  for (const Tensor& t : {param, master, buffer}) changed(t);
}

Tensor sum_of_squares(const Tensors& tensors) {
  OpScope scope("sum_of_squares");
  NoGrad guard;
  XY_CHECK(!tensors.empty(), "needs at least one tensor");
  Tensors flat;
  for (const Tensor& t : tensors) {
    XY_CHECK(is_float(t.dtype()), "needs floating point tensors, not ", t.dtype());
    XY_CHECK(t.device() == tensors[0].device(), "tensors are on ", tensors[0].device(), " and ", t.device());
    flat.push_back(packed(t));
  }
  Tensor result = empty({1}, f64, tensors[0].device());
  XY_ON_DEVICE(result, sum_of_squares, flat, result);
  return result;
}

void ema_update(const Tensor& average, const Tensor& value, double decay) {
  OpScope scope("ema_update");
  NoGrad guard;
  XY_CHECK(average.shape() == value.shape(), "average has shape ", average.shape(), " and value ", value.shape());
  XY_CHECK(average.device() == value.device(), "average is on ", average.device(), " and value on ", value.device());
  XY_CHECK(is_float(average.dtype()) && average.is_contiguous(), "average must be contiguous and floating point");
  if (average.numel() == 0) return;
  XY_ON_DEVICE(average, ema, average, packed(value, average.dtype()), decay);
  changed(average);
}

}  // namespace xylem
