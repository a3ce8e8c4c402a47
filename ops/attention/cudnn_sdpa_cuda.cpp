// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN's fused kernels. The operation graph spells attention out in matrix products, pointwise operations
// and reductions; cuDNN recognises the pattern. Plans are built once per problem, which takes up to two seconds each.
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "core/util/determinism.h"
#include "core/util/warn.h"
#include "ops/attention/attention.h"
#include "ops/backend/choices.h"
#include "ops/backend/cudnn.h"
#include "ops/backend/grad_target.h"

namespace xylem::cuda {
namespace {

using Dims = std::vector<int64_t>;
constexpr auto kFloat = CUDNN_DATA_FLOAT, kInt = CUDNN_DATA_INT32, kBool = CUDNN_DATA_BOOLEAN;

enum Id : int64_t { kQ = 1, kK, kV, kOut, kStats, kScale, kLowest, kShift, kDOut, kDq, kDk, kDv, kDelta, kDqSum, kOne };

enum class Pass : int64_t { forward, backward, backward_in_order };

// One attention problem. Compared and hashed by value, so it has no padding.
struct Problem {
  int64_t device, dtype, batch, heads, key_heads, queries, keys, size, causal;
  Pass pass;
  int64_t q[3], k[3], v[3], out[3], dq[3], dk[3];  // strides of batch, head and row; dv has those of dk
  bool operator==(const Problem& o) const { return std::memcmp(this, &o, sizeof(Problem)) == 0; }
};
static_assert(std::has_unique_object_representations_v<Problem>);
struct HashProblem {
  size_t operator()(const Problem& p) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(&p), sizeof(Problem)});
  }
};

// An operation graph under construction. Tensors are named by their place in the list.
class Graph {
 public:
  using T = size_t;

  explicit Graph(const Problem& p) : p_(p), type_(DType(p.dtype) == bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF) {
    const int64_t b = p.batch, h = p.heads, s = p.queries, t = p.keys, d = p.size;
    scores_ = {b, h, s, t}, scores_strides_ = {h * s * t, s * t, t, 1};
    rows_ = {b, h, s, 1}, rows_strides_ = {h * s, s, 1, 1};
    queries_ = {b, h, s, d}, packed_strides_ = {h * s * d, s * d, d, 1};
    keys_ = {b, p.key_heads, t, d};
  }

  void forward() {
    T q = real(kQ, queries_, along(p_.q)), k = transposed(kK, p_.k), v = real(kV, keys_, along(p_.v));
    T s = masked(scaled(multiply(q, k, scores())));
    T top = reduce(CUDNN_REDUCE_TENSOR_MAX, s, rows());
    T e = pointwise(CUDNN_POINTWISE_EXP, pointwise(CUDNN_POINTWISE_SUB, s, top, scores()), {}, scores());
    T sum = reduce(CUDNN_REDUCE_TENSOR_ADD, e, rows());
    T log = pointwise(CUDNN_POINTWISE_LOG, sum, {}, rows());
    pointwise(CUDNN_POINTWISE_ADD, top, log, tensor(kStats, rows_, rows_strides_, kFloat));
    T p = pointwise(CUDNN_POINTWISE_DIV, e, sum, scores(type_));
    multiply(p, v, real(kOut, queries_, along(p_.out)));
  }

  void backward() {
    T q = real(kQ, queries_, along(p_.q)), k = transposed(kK, p_.k), v = transposed(kV, p_.v);
    T out = real(kOut, queries_, along(p_.out)), dout = real(kDOut, queries_, along(p_.out));
    T stats = tensor(kStats, rows_, rows_strides_, kFloat);
    // delta = rowsum(dout * out)
    T product = pointwise(CUDNN_POINTWISE_MUL, dout, out, hidden(queries_, packed_strides_, kFloat));
    T delta = pointwise(CUDNN_POINTWISE_MUL, reduce(CUDNN_REDUCE_TENSOR_ADD, product, rows()), value(kOne, kFloat),
                        tensor(kDelta, rows_, rows_strides_, kFloat));
    scale_ = value(kScale, kFloat);
    T s = pointwise(CUDNN_POINTWISE_SUB, scaled(multiply(q, k, scores())), stats, scores());
    T p = pointwise(CUDNN_POINTWISE_EXP, masked(s), {}, scores());
    key_gradient(p, dout, kDv);
    T ds = pointwise(CUDNN_POINTWISE_SUB, multiply(dout, v, scores()), delta, scores());
    ds = scaled(pointwise(CUDNN_POINTWISE_MUL, ds, p, scores()));
    key_gradient(ds, q, kDk);
    T key_rows = reshape(k, hidden(keys_, along(p_.k), type_)), dq = real(kDq, queries_, along(p_.dq));
    if (p_.pass == Pass::backward_in_order)
      multiply(ds, key_rows, dq);
    else
      pointwise(CUDNN_POINTWISE_IDENTITY, multiply(ds, key_rows, tensor(kDqSum, queries_, packed_strides_, kFloat)), {},
                dq);
  }

  std::shared_ptr<const cudnn::Plan> plan(const cudnn::Session& session, const std::optional<cudnn::Trial>& trial) {
    std::vector<cudnn::Descriptor> parts;
    for (auto* list : {&tensors_, &settings_, &operations_})
      for (auto& d : *list) parts.push_back(std::move(d));
    // Which order sums are formed in is settled by the graph; the engines' notes know only the worst case.
    return cudnn::make_plan(session, std::move(parts), int(operations_.size()), {.nondeterministic = false}, trial);
  }

 private:
  T add(const Dims& dims, const Dims& strides, cudnnDataType_t type, int64_t id, bool is_virtual, bool by_value) {
    const int64_t alignment = 16;
    const bool yes = true;
    cudnn::Descriptor t(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type)
        .set(CUDNN_ATTR_TENSOR_DIMENSIONS, dims)
        .set(CUDNN_ATTR_TENSOR_STRIDES, strides)
        .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &id)
        .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment);
    if (is_virtual) t.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &yes);
    if (by_value) t.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, &yes);
    t.finalize();
    tensors_.push_back(std::move(t));
    return tensors_.size() - 1;
  }
  T tensor(int64_t id, const Dims& dims, const Dims& strides, cudnnDataType_t type) {
    return add(dims, strides, type, id, false, false);
  }
  T real(int64_t id, const Dims& dims, const Dims& strides) { return tensor(id, dims, strides, type_); }
  T hidden(const Dims& dims, const Dims& strides, cudnnDataType_t type) {
    return add(dims, strides, type, next_hidden_++, true, false);
  }
  T value(int64_t id, cudnnDataType_t type) { return add({1, 1, 1, 1}, {1, 1, 1, 1}, type, id, false, true); }
  T scores(cudnnDataType_t type = kFloat) { return hidden(scores_, scores_strides_, type); }
  T rows() { return hidden(rows_, rows_strides_, kFloat); }
  static Dims along(const int64_t (&s)[3]) { return {s[0], s[1], s[2], 1}; }
  // k or v seen as [B, Hk, D, T]
  T transposed(int64_t id, const int64_t (&s)[3]) {
    return real(id, {p_.batch, p_.key_heads, p_.size, p_.keys}, {s[0], s[1], 1, s[2]});
  }

  T pointwise(cudnnPointwiseMode_t mode, T x, std::optional<T> b, T y, cudnnDataType_t precision = kFloat,
              int64_t axis = -1, std::optional<T> select = {}) {
    cudnn::Descriptor setting(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    setting.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &mode)
        .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &precision);
    if (axis >= 0) setting.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, &axis);
    setting.finalize();
    const float one = 1;
    cudnn::Descriptor op(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, setting)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensors_[x])
        .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensors_[y]);
    if (b) op.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensors_[*b]);
    if (select) op.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, tensors_[*select]);
    op.set(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, &one)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, &one);
    return finish(std::move(setting), std::move(op), y);
  }
  T multiply(T a, T b, T c) {
    cudnn::Descriptor setting(CUDNN_BACKEND_MATMUL_DESCRIPTOR), op(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    setting.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &kFloat).finalize();
    op.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensors_[a])
        .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensors_[b])
        .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, tensors_[c])
        .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, setting);
    return finish(std::move(setting), std::move(op), c);
  }
  T reduce(cudnnReduceTensorOp_t how, T x, T y) {
    cudnn::Descriptor setting(CUDNN_BACKEND_REDUCTION_DESCRIPTOR), op(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    setting.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &kFloat)
        .set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &how)
        .finalize();
    op.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, setting)
        .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, tensors_[x])
        .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, tensors_[y]);
    return finish(std::move(setting), std::move(op), y);
  }
  T reshape(T x, T y) {
    cudnn::Descriptor op(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    op.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensors_[x]).set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, tensors_[y]);
    op.finalize();
    operations_.push_back(std::move(op));
    return y;
  }
  T finish(cudnn::Descriptor setting, cudnn::Descriptor op, T y) {
    op.finalize();
    settings_.push_back(std::move(setting));
    operations_.push_back(std::move(op));
    return y;
  }

  T scaled(T s) {
    if (!scale_) scale_ = value(kScale, kFloat);
    return pointwise(CUDNN_POINTWISE_MUL, s, scale_, scores());
  }
  // Scores of keys that a query does not see become -inf.
  T masked(T s) {
    if (!p_.causal) return s;
    T row = pointwise(CUDNN_POINTWISE_GEN_INDEX, s, {}, scores(kInt), kFloat, 2);
    T column = pointwise(CUDNN_POINTWISE_GEN_INDEX, s, {}, scores(kInt), kFloat, 3);
    if (p_.keys != p_.queries) row = pointwise(CUDNN_POINTWISE_ADD, row, value(kShift, kInt), scores(kInt), kInt);
    T sees = pointwise(CUDNN_POINTWISE_CMP_GE, row, column, scores(kBool), kBool);
    return pointwise(CUDNN_POINTWISE_BINARY_SELECT, s, value(kLowest, kFloat), scores(), kFloat, -1, sees);
  }
  // The transposed scores times `by`: a gradient of keys or values, summed over the heads that share them.
  void key_gradient(T scores, T by, int64_t id) {
    const int64_t h = p_.heads, s = p_.queries, t = p_.keys, d = p_.size;
    T turned = reshape(scores, hidden({p_.batch, h, t, s}, {h * s * t, s * t, 1, t}, type_));
    T out = real(id, keys_, along(p_.dk));
    if (h == p_.key_heads)
      multiply(turned, by, out);
    else
      reduce(CUDNN_REDUCE_TENSOR_ADD,
             multiply(turned, by, hidden({p_.batch, h, t, d}, {h * t * d, t * d, d, 1}, type_)), out);
  }

  Problem p_;
  cudnnDataType_t type_;
  Dims scores_, scores_strides_, rows_, rows_strides_, queries_, packed_strides_, keys_;
  std::optional<T> scale_;
  std::vector<cudnn::Descriptor> tensors_, settings_, operations_;
  int64_t next_hidden_ = 1000;
};

// Ids and addresses of a plan's tensors. Scalars are passed by the address of a host value.
struct Binding {
  std::vector<int64_t> ids;
  std::vector<void*> addresses;
  float scale, lowest = -std::numeric_limits<float>::infinity(), one = 1;
  int32_t shift;
  Binding(const Problem& p, double s) : scale(float(s)), shift(int32_t(p.keys - p.queries)) {
    bind(kScale, &scale);
    if (!p.causal) return;
    bind(kLowest, &lowest);
    if (shift != 0) bind(kShift, &shift);
  }
  Binding(const Binding&) = delete;
  void bind(int64_t id, void* address) { ids.push_back(id), addresses.push_back(address); }
  void bind(int64_t id, const Tensor& t) { bind(id, t.raw()); }
};

std::string describe(const Problem& p) {
  const char* passes[] = {"forward pass", "backward pass", "backward pass in a fixed order"};
  return detail::concat("the ", passes[size_t(p.pass)], " of attention on q [", p.batch, ", ", p.queries, ", ", p.heads,
                        ", ", p.size, "] and k [", p.batch, ", ", p.keys, ", ", p.key_heads, ", ", p.size, "] in ",
                        DType(p.dtype), p.causal ? ", causal" : "");
}

struct Choice {
  std::shared_ptr<const cudnn::Plan> plan;
  std::string obstacle;  // why there is no plan
};

std::optional<cudnn::Trial> trial_of(const Problem& p, const Binding& binding) {
  const double flops = 4.0 * double(p.batch * p.heads * p.queries) * double(p.keys * p.size);
  if (!worth_timing(flops)) return {};
  std::string name = "attention";
  for (size_t i = 1; i < sizeof(Problem) / sizeof(int64_t); ++i)  // all but the device
    name += " " + std::to_string(reinterpret_cast<const int64_t*>(&p)[i]);
  return cudnn::Trial{name, binding.ids, binding.addresses, Device::cuda(int(p.device))};
}

// With a binding whose outputs may be written, the first choice is made by timing.
const Choice& choice_for(const cudnn::Session& session, const Problem& p, const Binding* binding) {
  static std::unordered_map<Problem, Choice, HashProblem> choices;  // guarded by the session
  if (auto found = choices.find(p); found != choices.end()) return found->second;
  Choice choice;
  try {
    Graph graph(p);
    p.pass == Pass::forward ? graph.forward() : graph.backward();
    choice.plan = graph.plan(session, binding ? trial_of(p, *binding) : std::nullopt);
    if (!choice.plan) choice.obstacle = detail::concat("cuDNN ", cudnnGetVersion(), " has no kernel for ", describe(p));
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& e) {  // a descriptor that this version of cuDNN refuses
    choice.obstacle = detail::concat("cuDNN ", cudnnGetVersion(), " refuses ", describe(p), " (", e.what(), ")");
  }
  if (!choice.plan) warn_once(choice.obstacle + "; slower matrix products and softmax take its place");
  return choices[p] = choice;
}

// cuDNN reads rows of 16-byte pieces; tensors that are not made of them are copied.
bool is_readable(const Tensor& t) {
  bool ok = t.stride(3) == 1 && reinterpret_cast<uintptr_t>(t.raw()) % 16 == 0;
  for (int i = 0; i < 3; ++i) ok = ok && (t.size(i) == 1 || (t.stride(i) > 0 && t.stride(i) % 8 == 0));
  return ok;
}
Tensor readable(const Tensor& t) { return is_readable(t) ? t : packed(t); }
Strides strides_read(const Tensor& t) { return is_readable(t) ? t.strides() : contiguous_strides(t.shape()); }

// Strides of [B, S, H, D] in cuDNN's order B, H, S. A dimension of size 1 has no stride of its own.
void put_strides(const Shape& shape, const Strides& strides, int64_t (&to)[3]) {
  const int64_t row = shape[2] * shape[3];
  to[0] = shape[0] == 1 ? shape[1] * row : strides[0];
  to[1] = shape[2] == 1 ? shape[3] : strides[2];
  to[2] = shape[1] == 1 ? row : strides[1];
}
void put_strides(const Tensor& t, int64_t (&to)[3]) { put_strides(t.shape(), t.strides(), to); }

Problem problem_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, bool causal, Pass pass) {
  Problem p{};
  p.device = q.device().index;
  p.dtype = int64_t(q.dtype());
  p.batch = q.size(0), p.heads = q.size(2), p.key_heads = k.size(2);
  p.queries = q.size(1), p.keys = k.size(1), p.size = q.size(3);
  p.causal = causal && p.queries > 1;  // a single query is the last: it sees every key
  p.pass = pass;
  put_strides(q.shape(), strides_read(q), p.q);
  put_strides(k.shape(), strides_read(k), p.k);
  put_strides(v.shape(), strides_read(v), p.v);
  put_strides(out, p.out);
  return p;
}

bool backward_part(const AttentionGrad& a, const Tensor& q, const Tensor& k, const Tensor& v, Pass pass) {
  Problem p = problem_of(q, k, v, a.out, a.causal, pass);
  put_strides(a.dq, p.dq), put_strides(a.dk, p.dk);
  Tensor delta = empty({p.batch, p.heads, p.queries}, f32, q.device()), sum;
  Binding binding(p, a.scale);
  binding.bind(kQ, q), binding.bind(kK, k), binding.bind(kV, v), binding.bind(kOut, a.out), binding.bind(kDOut, a.dout);
  binding.bind(kStats, a.lse), binding.bind(kDelta, delta), binding.bind(kOne, &binding.one);
  binding.bind(kDq, a.dq), binding.bind(kDk, a.dk), binding.bind(kDv, a.dv);
  if (pass == Pass::backward) {
    sum = empty({p.batch, p.heads, p.queries, p.size}, f32, q.device());
    binding.bind(kDqSum, sum);
  }
  cudnn::Session session(q.device());
  std::shared_ptr<const cudnn::Plan> plan = choice_for(session, p, &binding).plan;
  if (!plan) return false;
  cudnn::execute(session, *plan, binding.ids, binding.addresses, q.device());
  return true;
}

// The forward pass's tensors, given q, k and v as cuDNN reads them.
void bind_forward(Binding& binding, const AttentionCall& a, const Tensor& q, const Tensor& k, const Tensor& v) {
  binding.bind(kQ, q), binding.bind(kK, k), binding.bind(kV, v), binding.bind(kOut, a.out), binding.bind(kStats, a.lse);
}

}  // namespace

std::string cudnn_attention_obstacle(const AttentionCall& a) {
  const Tensor& q = a.q;
  if (!is_half(q.dtype())) return detail::concat("cuDNN's fused kernels are for 16-bit types, not ", q.dtype());
  if (q.size(3) % 8 != 0 || q.size(3) > 128)
    return detail::concat("cuDNN's fused kernels need a head size that is a multiple of 8 up to 128, not ", q.size(3));
  Problem p = problem_of(q, a.k, a.v, a.out, a.causal, Pass::forward);
  Binding binding(p, a.scale);
  bind_forward(binding, a, q, a.k, a.v);
  const bool readable_as_they_are = is_readable(q) && is_readable(a.k) && is_readable(a.v);
  cudnn::Session session(q.device());
  return choice_for(session, p, readable_as_they_are ? &binding : nullptr).obstacle;
}

void cudnn_attention(const AttentionCall& a) {
  Tensor q = readable(a.q), k = readable(a.k), v = readable(a.v);
  Problem p = problem_of(q, k, v, a.out, a.causal, Pass::forward);
  Binding binding(p, a.scale);
  bind_forward(binding, a, q, k, v);
  cudnn::Session session(q.device());
  const Choice& choice = choice_for(session, p, &binding);
  XY_CHECK(choice.plan, choice.obstacle);
  cudnn::execute(session, *choice.plan, binding.ids, binding.addresses, q.device());
}

bool cudnn_attention_backward(const AttentionGrad& a) {
  Tensor q = readable(a.q), k = readable(a.k), v = readable(a.v);
  if (!deterministic()) return backward_part(a, q, k, v, Pass::backward);
  // In a fixed order cuDNN holds all probabilities' gradients at once: take as much of the batch as fits into this.
  constexpr int64_t kHeld = int64_t(384) << 20;
  const int64_t batch = q.size(0), each = q.size(2) * q.size(1) * k.size(1) * 2;
  const int64_t parts = (batch + std::max<int64_t>(1, kHeld / each) - 1) / std::max<int64_t>(1, kHeld / each);
  const int64_t step = (batch + parts - 1) / parts;
  for (int64_t from = 0; from < batch; from += step) {
    auto part = [&](const Tensor& t) {
      Tensor piece = t.narrow(0, from, std::min(step, batch - from));
      // Rows keep their alignment; only the statistics, one number each, can lose it.
      return reinterpret_cast<uintptr_t>(piece.raw()) % 16 == 0 ? piece : piece.clone();
    };
    AttentionGrad g{a.q,        a.k,        a.v,        part(a.out), part(a.lse), part(a.dout),
                    part(a.dq), part(a.dk), part(a.dv), a.causal,    a.scale};
    if (!backward_part(g, part(q), part(k), part(v), Pass::backward_in_order)) return false;
  }
  return true;
}

}  // namespace xylem::cuda
