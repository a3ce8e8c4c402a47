// SPDX-License-Identifier: Apache-2.0
// Scaled dot-product attention (Vaswani et al., 2017) with grouped key heads (Ainslie et al., 2023). The probabilities
// are recomputed in the backward pass from one number per row (Dao et al., 2022).
#include "ops/attention/attention.h"

#include <cmath>
#include <limits>

#include "core/tensor/dispatch.h"
#include "ops/attention/attention_lowering.h"
#include "ops/backend/composed.h"
#include "ops/backend/grad_target.h"
#include "ops/ops.h"

namespace xylem {
namespace {

std::vector<Sample> samples() {
  struct Case {
    const char* name;
    int64_t batch, queries, keys, heads, key_heads, size;
    bool causal;
    double spread = 1;
  };
  const Case cases[] = {{"full", 2, 5, 7, 2, 2, 4, false},
                        {"causal", 2, 9, 9, 2, 2, 8, true},
                        {"grouped", 1, 6, 6, 6, 2, 8, true},
                        {"one key head", 2, 3, 5, 4, 1, 16, false},
                        {"one query", 2, 1, 6, 2, 2, 8, true},
                        {"one key", 2, 4, 1, 1, 1, 8, false},
                        {"fewer queries than keys", 1, 3, 8, 2, 1, 8, true},
                        {"queries without a key", 1, 6, 3, 2, 2, 8, true},
                        {"no keys", 1, 4, 0, 2, 2, 8, false},
                        {"no queries", 1, 0, 4, 2, 2, 8, false},
                        {"across blocks", 1, 131, 131, 1, 1, 8, true},
                        {"odd size", 2, 7, 7, 2, 2, 5, true},
                        {"large scores", 1, 8, 8, 1, 1, 8, true, 12}};
  std::vector<Sample> list;
  for (const Case& c : cases)
    list.push_back({c.name,
                    {sample_normal({c.batch, c.queries, c.heads, c.size}, c.spread, 1),
                     sample_normal({c.batch, c.keys, c.key_heads, c.size}, c.spread, 2),
                     sample_normal({c.batch, c.keys, c.key_heads, c.size}, 1, 3)},
                    [causal = c.causal](const Tensors& t) -> Tensors {
                      return {attention(t[0], t[1], t[2], {.causal = causal})};
                    }});
  list.push_back(
      {"head size 64",
       {sample_normal({2, 70, 4, 64}, 1, 1), sample_normal({2, 70, 2, 64}, 1, 2), sample_normal({2, 70, 2, 64}, 1, 3)},
       [](const Tensors& t) -> Tensors { return {attention(t[0], t[1], t[2], {.causal = true, .scale = 0.2})}; }});
  return list;
}

const OpSpec& kAttention = (new OpSpec("attention"))
                               ->role(OpRole::attention)
                               .onnx(lower_attention)
                               .samples(samples)
                               .double_backward()
                               .flops([](std::span<const Tensor> in, std::span<const Tensor>) {
                                 return 4.0 * double(in[0].numel()) * double(in[1].size(1));
                               });

void check(const Tensor& q, const Tensor& k, const Tensor& v) {
  XY_CHECK(q.rank() == 4, "q must be [B, S, H, D], but its shape is ", q.shape());
  XY_CHECK(k.rank() == 4 && k.shape() == v.shape(), "k and v must be [B, T, Hk, D], but their shapes are ", k.shape(),
           " and ", v.shape());
  XY_CHECK(q.size(0) == k.size(0), "q of shape ", q.shape(), " and k of shape ", k.shape(), " differ in batch size");
  XY_CHECK(q.size(3) == k.size(3) && q.size(3) > 0, "q of shape ", q.shape(), " and k of shape ", k.shape(),
           " differ in head size");
  XY_CHECK(k.size(2) > 0 && q.size(2) % k.size(2) == 0, "q of shape ", q.shape(), " has ", q.size(2),
           " heads, not a multiple of k's ", k.size(2));
  XY_CHECK(is_float(q.dtype()) && q.dtype() == k.dtype() && q.dtype() == v.dtype(),
           "q, k and v must hold one floating ", "point type, not ", q.dtype(), ", ", k.dtype(), " and ", v.dtype());
  XY_CHECK(q.device() == k.device() && q.device() == v.device(), "q, k and v must be on one device, not ", q.device(),
           ", ", k.device(), " and ", v.device());
}

enum class Engine { cpu, cudnn, composed };

struct Choice {
  Engine engine;
  std::string reason;
};

Choice choose(const AttentionCall& a) {
  if (a.q.numel() == 0 || a.k.numel() == 0) return {Engine::cpu, "there is nothing to compute"};
#ifdef XY_WITH_CUDA
  if (a.q.is_cuda()) {
    std::string obstacle = cuda::cudnn_attention_obstacle(a);
    if (!obstacle.empty()) return {Engine::composed, obstacle + ": matrix products and softmax"};
    return {Engine::cudnn, detail::concat("cuDNN's fused kernels for ", a.q.dtype(), ", head size ", a.q.size(3))};
  }
#endif
  detail::require_cpu(a.q);
  return {Engine::cpu, "on the CPU: blocks of rows, heads in parallel"};
}

// How many of the first queries see no key at all.
int64_t blind_queries(int64_t queries, int64_t keys, bool causal) {
  if (keys == 0) return queries;
  return causal ? std::max<int64_t>(0, queries - keys) : 0;
}

// With D innermost, which is all the engines need.
Tensor rows_packed(const Tensor& t) { return t.stride(3) == 1 || t.size(3) == 1 ? t.detach() : packed(t); }

// The queries that see a key, and the outputs and statistics that belong to them.
struct Prepared {
  int64_t blind;
  double scale;
  Tensor out;
  AttentionCall call;
  Prepared(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionArgs& args)
      : blind(blind_queries(q.size(1), k.size(1), args.causal)),
        scale(args.scale.value_or(1 / std::sqrt(double(q.size(3))))),
        out(empty(q.shape(), q.dtype(), q.device())) {
    const int64_t seeing = q.size(1) - blind;
    call = {.q = rows_packed(q).narrow(1, blind, seeing),
            .k = rows_packed(k),
            .v = rows_packed(v),
            .out = out.narrow(1, blind, seeing),
            .lse = empty({q.size(0), q.size(2), seeing}, compute_type(q.dtype()), q.device()),
            .causal = args.causal,
            .scale = scale};
  }
  bool none() const { return call.q.numel() == 0; }  // no query sees a key
};

void forward([[maybe_unused]] Engine engine, const AttentionCall& a) {
#ifdef XY_WITH_CUDA
  if (engine == Engine::cudnn) return cuda::cudnn_attention(a);
  if (engine == Engine::composed) return cuda::attention(a);
#endif
  cpu::attention(a);
}
void backward([[maybe_unused]] Engine engine, const AttentionGrad& a) {
#ifdef XY_WITH_CUDA
  if (engine == Engine::cudnn && cuda::cudnn_attention_backward(a)) return;
  if (engine != Engine::cpu) return cuda::attention_backward(a);
#endif
  cpu::attention_backward(a);
}

// Whether q, k and v are the parts of one projection [B, S, (H + 2 Hk) * D], as split() gives them.
bool parts_of_one(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto& storage = q.storage();
  if (k.storage() != storage || v.storage() != storage || q.size(1) != k.size(1)) return false;
  const int64_t size = q.size(3), row = (q.size(2) + 2 * k.size(2)) * size;
  for (const Tensor& t : {q, k, v})
    if ((size > 1 && t.stride(3) != 1) || (t.size(2) > 1 && t.stride(2) != size) ||
        (t.size(1) > 1 && t.stride(1) != row))
      return false;
  return k.offset() == q.offset() + q.size(2) * size && v.offset() == k.offset() + k.size(2) * size;
}

// Where the gradients go. Those of the parts of one projection lie side by side as the parts do, so that the backward
// pass of split() has nothing to copy.
struct Gradients {
  Tensor q, k, v;
  Gradients(const Tensor& qs, const Tensor& ks, const Tensor& vs) {
    if (!parts_of_one(qs, ks, vs)) {
      q = empty(qs.shape(), qs.dtype(), qs.device());
      k = empty(ks.shape(), ks.dtype(), ks.device());
      v = empty(vs.shape(), vs.dtype(), vs.device());
      return;
    }
    const int64_t heads = qs.size(2), shared = ks.size(2);
    Tensor all = empty({qs.size(0), qs.size(1), heads + 2 * shared, qs.size(3)}, qs.dtype(), qs.device());
    q = all.narrow(2, 0, heads), k = all.narrow(2, heads, shared), v = all.narrow(2, heads + shared, shared);
  }
};

// The same in differentiable operations, for second derivatives.
Tensor composition(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionArgs& args, double scale) {
  const int64_t batch = q.size(0), size = q.size(3), heads = k.size(2), keys = k.size(1);
  const int64_t blind = blind_queries(q.size(1), keys, args.causal), queries = q.size(1) - blind;
  const DType type = compute_type(q.dtype());
  auto by_head = [&](const Tensor& t, int64_t rows) {
    return t.to(type).permute({0, 2, 1, 3}).reshape({batch, heads, -1, rows, size});
  };
  Tensor qh = by_head(q.narrow(1, blind, queries), queries), kh = by_head(k, keys), vh = by_head(v, keys);
  Tensor scores = matmul(qh, kh.transpose(3, 4)) * scale;
  if (args.causal) {
    Tensor row = arange(queries, i64, q.device()).reshape({queries, 1}), column = arange(keys, i64, q.device());
    Tensor visible = lt(column.reshape({1, keys}) - row, keys - queries + 1);
    scores = where(visible, scores, full({}, -std::numeric_limits<double>::infinity(), type, q.device()));
  }
  Tensor out = matmul(softmax(scores), vh).reshape({batch, q.size(2), queries, size}).permute({0, 2, 1, 3});
  return cat({zeros({batch, blind, q.size(2), size}, q.dtype(), q.device()), out.to(q.dtype())}, 1);
}

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionArgs& args) {
  OpScope scope(kAttention);
  check(q, k, v);
  Prepared p(q, k, v, args);
  const Engine engine = choose(p.call).engine;
  if (p.blind > 0) p.out.narrow(1, 0, p.blind).zero_();
  if (!p.none()) forward(engine, p.call);

  return record(
      kAttention, p.out, {q, k, v}, {{"causal", args.causal}, {"scale", p.scale}},
      [q = Saved(q), k = Saved(k), v = Saved(v), out = Saved::output(p.out), lse = p.call.lse, args, scale = p.scale,
       blind = p.blind, none = p.none(), engine](const Tensor& dy, const Wanted& want) -> Tensors {
        Tensor qs = q.get(), ks = k.get(), vs = v.get();
        if (want.create_graph() && !none) {
          auto fn = [&](const Tensors& t) -> Tensors { return {composition(t[0], t[1], t[2], args, scale)}; };
          return composed_backward(fn, {qs, ks, vs}, {want[0], want[1], want[2]}, {dy});
        }
        if (none) return {zeros_like(qs), zeros_like(ks), zeros_like(vs)};
        Gradients d(qs, ks, vs);
        if (blind > 0) d.q.narrow(1, 0, blind).zero_();
        const int64_t seeing = qs.size(1) - blind;
        AttentionGrad a{.q = rows_packed(qs).narrow(1, blind, seeing),
                        .k = rows_packed(ks),
                        .v = rows_packed(vs),
                        .out = out.get().detach().narrow(1, blind, seeing),
                        .lse = lse,
                        .dout = packed(dy).narrow(1, blind, seeing),
                        .dq = d.q.narrow(1, blind, seeing),
                        .dk = d.k,
                        .dv = d.v,
                        .causal = args.causal,
                        .scale = scale};
        backward(engine, a);
        return {d.q, d.k, d.v};
      });
}

std::pair<std::string, std::string> attention_engine(const Tensor& q, const Tensor& k, const Tensor& v,
                                                     const AttentionArgs& args) {
  check(q, k, v);
  auto [engine, why] = choose(Prepared(q, k, v, args).call);
  const char* name = engine == Engine::cpu ? "cpu" : engine == Engine::cudnn ? "cudnn" : "composed";
  return {name, why};
}

}  // namespace xylem
