// SPDX-License-Identifier: Apache-2.0
// Convolutions by cuDNN. An engine is chosen once per problem. Where cuDNN has none for the tensors as they are, the
// operands are copied into a memory order or type that it has one for.
#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "core/util/determinism.h"
#include "ops/backend/choices.h"
#include "ops/backend/cudnn.h"
#include "ops/conv/conv.h"
#include "ops/matmul/matmul.h"

namespace xylem::cuda {
namespace {

enum class Pass : int32_t { forward, data, weight };
enum : int64_t { kX = 1, kW, kY };

// What the engine sees: all three tensors in one memory order and one type.
struct Form {
  bool channels_last;
  DType dtype;
};

// Compared and hashed by value, so it has no padding.
struct Problem {
  int64_t n, c, h, w, k, r, s, p, q, groups;
  int32_t stride[2], padding[2], dilation[2];
  Pass pass;
  int32_t dtype, channels_last, device, tf32, in_order;
  bool operator==(const Problem& o) const { return std::memcmp(this, &o, sizeof(Problem)) == 0; }
};
static_assert(std::has_unique_object_representations_v<Problem>);
struct HashProblem {
  size_t operator()(const Problem& p) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(&p), sizeof(Problem)});
  }
};

struct Choice {
  Form form;
  std::shared_ptr<const cudnn::Plan> plan;
};

cudnnDataType_t type_of(DType t) {
  switch (t) {
    case f64:
      return CUDNN_DATA_DOUBLE;
    case f32:
      return CUDNN_DATA_FLOAT;
    case f16:
      return CUDNN_DATA_HALF;
    case bf16:
      return CUDNN_DATA_BFLOAT16;
    default:
      XY_FAIL("no convolutions in ", t);
  }
}

Strides strides_of(const Shape& shape, bool channels_last) {
  if (!channels_last) return contiguous_strides(shape);
  return {shape[1] * shape[2] * shape[3], 1, shape[3] * shape[1], shape[1]};
}

// 16-bit tensor-core engines read channels-last; f64 engines read NCHW. The rest follows the tensors.
std::vector<Form> forms_for(DType dtype, bool channels_last) {
  if (dtype == f64) return {{false, f64}, {true, f64}};
  if (dtype == f32) return {{channels_last, f32}, {!channels_last, f32}};
  return {{true, dtype}, {false, dtype}, {true, f32}, {false, f32}};
}

std::shared_ptr<const cudnn::Plan> build(const cudnn::Session& session, const Problem& p, const Form& form,
                                         const cudnn::Forbid& forbid, const std::optional<cudnn::Trial>& trial) {
  auto vec = [](const Shape& s) { return s.vec(); };
  cudnnDataType_t type = type_of(form.dtype), compute = form.dtype == f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  std::vector<cudnn::Descriptor> parts;
  auto tensor = [&](int64_t id, const Shape& shape) {
    parts.push_back(cudnn::tensor(id, type, vec(shape), vec(strides_of(shape, form.channels_last))));
  };
  tensor(kX, {p.n, p.c, p.h, p.w});
  tensor(kW, {p.k, p.c / p.groups, p.r, p.s});
  tensor(kY, {p.n, p.k, p.p, p.q});
  auto pair = [](const int32_t(&v)[2]) { return std::vector<int64_t>{v[0], v[1]}; };
  cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  int64_t spatial = 2;
  parts.emplace_back(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)
      .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &compute)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, &mode)
      .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, &spatial)
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, pair(p.dilation))
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, pair(p.stride))
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, pair(p.padding))
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, pair(p.padding))
      .finalize();
  // Type of operation, and its names for x, w, y, the convolution and the two factors.
  struct Names {
    cudnnBackendDescriptorType_t operation;
    cudnnBackendAttributeName_t x, w, y, convolution, alpha, beta;
  };
  static const Names names[] = {
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}};
  const Names& name = names[int(p.pass)];
  double one64 = 1, zero64 = 0;
  float one32 = 1, zero32 = 0;
  bool wide = form.dtype == f64;
  cudnnBackendAttributeType_t factor = wide ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
  cudnn::Descriptor operation(name.operation);
  operation.set(name.x, parts[0]).set(name.w, parts[1]).set(name.y, parts[2]).set(name.convolution, parts[3]);
  operation.set(name.alpha, factor, wide ? static_cast<const void*>(&one64) : &one32);
  operation.set(name.beta, factor, wide ? static_cast<const void*>(&zero64) : &zero32);
  operation.finalize();
  parts.push_back(std::move(operation));
  return cudnn::make_plan(session, std::move(parts), 1, forbid, trial);
}

bool fits(const Tensor& t, const Form& form) {
  if (t.dtype() != form.dtype || reinterpret_cast<uintptr_t>(t.raw()) % 16 != 0) return false;
  Strides wanted = strides_of(t.shape(), form.channels_last);
  for (int i = 0; i < 4; ++i)
    if (t.size(i) > 1 && t.stride(i) != wanted[i]) return false;
  return true;
}
Tensor blank(const Tensor& like, const Form& form) {
  return empty_strided(like.shape(), strides_of(like.shape(), form.channels_last), form.dtype, like.device());
}

double flops(const Problem& p) {
  return 2.0 * double(p.n) * double(p.k) * double(p.p) * double(p.q) * double(p.c / p.groups) * double(p.r) *
         double(p.s);
}

// For timing: the operands where they fit, else memory of the right form.
std::optional<cudnn::Trial> trial_of(const Problem& p, const Form& form, const Tensor (&operands)[3],
                                     std::vector<Tensor>& kept) {
  if (!cuda::worth_timing(flops(p))) return {};
  std::string name = detail::concat("conv ", int(p.pass), " ", form.dtype, form.channels_last ? " nhwc" : " nchw");
  for (int64_t v : {p.n, p.c, p.h, p.w, p.k, p.r, p.s, p.p, p.q, p.groups}) name += " " + std::to_string(v);
  for (auto& pair : {p.stride, p.padding, p.dilation})
    for (int i = 0; i < 2; ++i) name += " " + std::to_string(pair[i]);
  name += detail::concat(" ", p.tf32, " ", p.in_order);
  cudnn::Trial trial{name, {kX, kW, kY}, {}, Device::cuda(p.device)};
  for (const Tensor& t : operands) {
    kept.push_back(fits(t, form) ? t : blank(t, form));
    trial.addresses.push_back(kept.back().raw());
  }
  return trial;
}

const Choice& choose(const cudnn::Session& session, const Problem& p, const Tensor (&operands)[3]) {
  static std::unordered_map<Problem, Choice, HashProblem> choices;  // guarded by the session
  if (auto found = choices.find(p); found != choices.end()) return found->second;
  DType dtype = DType(p.dtype);
  for (bool transforms : {false, true})
    for (const Form& form : forms_for(dtype, p.channels_last)) {
      // 16-bit values survive the rounding to TF32 unchanged.
      cudnn::Forbid forbid = {
          .nondeterministic = p.in_order != 0, .rounded_inputs = dtype == f32 && !p.tf32, .transforms = !transforms};
      std::vector<Tensor> kept;
      if (auto plan = build(session, p, form, forbid, trial_of(p, form, operands, kept)))
        return choices[p] = {form, plan};
    }
  XY_FAIL("cuDNN ", cudnnGetVersion(), " has no ", p.in_order ? "deterministic " : "", "engine for x [", p.n, ", ", p.c,
          ", ", p.h, ", ", p.w, "], weight [", p.k, ", ", p.c / p.groups, ", ", p.r, ", ", p.s, "] in ", dtype);
}

// One pass: two of the tensors are read and the third, which the pass names, is written.
void run(Pass pass, Tensor x, Tensor w, Tensor y, const ConvShape& s) {
  Problem p = {.n = s.n,
               .c = s.c,
               .h = s.h,
               .w = s.w,
               .k = s.k,
               .r = s.r,
               .s = s.s,
               .p = s.p,
               .q = s.q,
               .groups = s.groups,
               .stride = {s.stride[0], s.stride[1]},
               .padding = {s.padding[0], s.padding[1]},
               .dilation = {s.dilation[0], s.dilation[1]},
               .pass = pass,
               .dtype = int32_t(x.dtype()),
               .channels_last = is_channels_last(x) || is_channels_last(y),
               .device = x.device().index,
               .tf32 = allow_tf32(),
               .in_order = deterministic()};
  cudnn::Session session(x.device());
  const Choice& choice = choose(session, p, {x, w, y});
  Tensor& output = pass == Pass::forward ? y : pass == Pass::data ? x : w;
  Tensor result = output;
  for (Tensor* t : {&x, &w, &y}) {
    if (fits(*t, choice.form)) continue;
    Tensor copy = blank(*t, choice.form);
    if (t != &output) copy.copy_(*t);
    *t = copy;
  }
  int64_t ids[] = {kX, kW, kY};
  void* addresses[] = {x.raw(), w.raw(), y.raw()};
  cudnn::execute(session, *choice.plan, ids, addresses, x.device());
  if (!result.same_as(output)) result.copy_(output);
}

}  // namespace

void conv_forward(const Tensor& x, const Tensor& w, const Tensor& y, const ConvShape& s) {
  run(Pass::forward, x, w, y, s);
}
void conv_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx, const ConvShape& s) {
  run(Pass::data, dx, w, dy, s);
}
void conv_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dw, const ConvShape& s) {
  run(Pass::weight, x, dw, dy, s);
}

}  // namespace xylem::cuda
