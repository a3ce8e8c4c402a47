// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <set>

#include "distributed/record/recorder.h"
#include "models/nn/layers.h"
#include "models/optim/optimizers.h"
#include "models/optim/registry.h"

namespace xylem {
namespace {

const char *kOrthogonal = "orthogonal", *kAdamW = "adamw";

void check(const MuonArgs& a) {
  check_decay_rate("momentum", a.momentum);
  check_decay_rate("beta1", a.beta1);
  check_decay_rate("beta2", a.beta2);
  XY_CHECK(a.iterations > 0, "iterations must be at least 1, but is ", a.iterations);
}

[[maybe_unused]] const bool kRegistered = register_optimizer<MuonArgs>(
    "muon", "orthogonal steps for hidden matrices, adamw for everything else",
    [](OptionTable& option, MuonArgs& a) {
      option("momentum", a.momentum, "matrices: decay of the sum of gradients that a step follows");
      option("nesterov", a.nesterov, "matrices: look ahead");
      option("iterations", a.iterations, "matrices: Newton-Schulz iterations of a step");
      option("beta1", a.beta1, "the others: decay of the mean of gradients");
      option("beta2", a.beta2, "the others: decay of the mean of squared gradients");
      option("eps", a.eps, "the others: added to the root");
    },
    check,
    [](Module& module, const FlatOptions& flat, const MuonArgs& a) -> std::unique_ptr<Optimizer> {
      return std::make_unique<Muon>(module, a, flat);
    });

// Names of the matrices between the ends of a network: its tables and the layer that gives its result stay out.
std::set<std::string> hidden_matrices(Module& module) {
  std::vector<NamedTensor> parameters = module.parameters();
  auto name_of = [&](const Tensor& t) {
    auto it = std::find_if(parameters.begin(), parameters.end(), [&](auto& p) { return p.tensor.same_as(t); });
    return it == parameters.end() ? "" : it->name;
  };
  std::set<std::string> names;
  for (const NamedTensor& p : parameters)
    if (p.tensor.rank() == 2 || p.tensor.rank() == 4) names.insert(p.name);
  const Linear* last = nullptr;
  std::set<int64_t> widths;  // of tables
  for (const auto& [name, m] : module.modules()) {
    if (auto* table = dynamic_cast<Embedding*>(m)) {
      names.erase(name_of(table->weight));
      widths.insert(table->weight.size(1));
    }
    if (auto* linear = dynamic_cast<Linear*>(m)) last = linear;
  }
  // A last layer that leads back to the width of a table is one of the hidden ones: the table is the head.
  if (last && !widths.contains(last->weight.size(0))) names.erase(name_of(last->weight));
  return names;
}

FlatOptions with_rules(Module& module, FlatOptions options) {
  options.group = [given = options.group, hidden = hidden_matrices(module)](const NamedTensor& p) {
    ParamOptions group = given(p);
    if (group.rule.empty()) group.rule = hidden.contains(p.name) ? kOrthogonal : kAdamW;
    XY_CHECK(group.rule != kOrthogonal || p.tensor.rank() > 1, "'", p.name, "' of shape ", p.tensor.shape(),
             " is no matrix: its steps cannot be orthogonal");
    return group;
  };
  return options;
}

// The nearest (semi-)orthogonal matrix of x [rows, cols], about: singular values end between 0.7 and 1.2. The quintic
// Newton-Schulz iteration with the coefficients of Jordan et al. (2024).
Tensor orthogonal(const Tensor& matrix, int64_t iterations) {
  bool tall = matrix.size(0) > matrix.size(1);
  Tensor x = tall ? matrix.transpose(0, 1) : matrix;
  DType wide = x.dtype() == f64 ? f64 : f32;
  Tensor squares = sum(x.to(wide) * x.to(wide));
  x = (x.to(wide) / (sqrt(squares) + 1e-7)).to(x.dtype());
  for (int64_t i = 0; i < iterations; ++i) {
    Tensor a = matmul(x, x.transpose(0, 1));
    Tensor b = a * -4.7750 + matmul(a, a) * 2.0315;
    x = x * 3.4445 + matmul(b, x);
  }
  return tall ? x.transpose(0, 1) : x;
}

// What matrices are orthogonalised in: bf16 is enough (Jordan et al.) and fast on a GPU; on a CPU f32 is faster.
DType type_for(const Tensor& t) { return t.dtype() == f64 ? f64 : t.is_cuda() ? bf16 : f32; }

}  // namespace

Muon::Muon(Module& module, const MuonArgs& args, const FlatOptions& options)
    : Optimizer(FlatParams(module, with_rules(module, options)), args.lr, {kOrthogonal, kAdamW}),
      args_(args),
      momentum_(params_.like(f32, kOrthogonal)),
      m_(params_.like(f32, kAdamW)),
      v_(params_.like(f32, kAdamW)) {
  check(args);
}

void Muon::update_all(const Tensor& step, const Tensor& grad_scale, const Tensor& skip) {
  for (const FlatSpan& s : params_.spans())
    if (const ParamOptions& options = params_.groups()[s.group].options; options.rule == kAdamW)
      update({s, options, lr_of(s.group), step, grad_scale, skip});
  list_matrices();
  for (size_t begin = 0, end; begin < matrices_.size(); begin = end) {
    for (end = begin; end < matrices_.size() && matrices_[end].bucket == matrices_[begin].bucket;) ++end;
    move({matrices_.data() + begin, end - begin}, grad_scale, skip);
  }
}

void Muon::update(const Update& u) {
  const FlatSpan& s = u.span;
  adamw_step(s.params, s.masters, s.grads, s.state(m_[s.group]), s.state(v_[s.group]), u.lr, u.step,
             {.beta1 = u.options.beta1.value_or(args_.beta1),
              .beta2 = u.options.beta2.value_or(args_.beta2),
              .eps = args_.eps,
              .weight_decay = u.options.weight_decay.value_or(args_.weight_decay)},
             u.grad_scale, u.skip);
}

// Anew when parameters were frozen or unfrozen.
void Muon::list_matrices() {
  std::vector<bool> now = params_.trained();
  if (now == trained_) return;
  trained_ = std::move(now);
  matrices_.clear();
  for (const FlatGroup& group : params_.groups()) {
    if (group.options.rule != kOrthogonal) continue;
    for (const FlatBucket& b : group.buckets)
      for (size_t i = b.first_slot; i < b.end_slot; ++i) {
        const FlatSlot& slot = group.slots[i];
        if (!trained_now(slot)) continue;
        FlatRange mine;
        for (const FlatRange& r : params_.parallel().ranges([&](const FlatSlot& s) { return &s == &slot; })) mine = r;
        // Without the gap that follows the matrix.
        mine.size = std::clamp<int64_t>(slot.offset + slot.param.numel() - mine.begin, 0, mine.size);
        mine.group = size_t(&group - params_.groups().data());
        matrices_.push_back({.bucket = &b, .slot = &slot, .mine = mine});
      }
  }
}

// The direction of a matrix's step, this rank's part of it; follows the gradient.
Tensor Muon::direction(const FlatRange& mine, const Tensor& grad_scale, const Tensor& skip) {
  Tensor momentum = momentum_[mine.group].narrow(0, mine.state, mine.size);
  Tensor grad = params_.groups()[mine.group].grads.narrow(0, mine.grads, mine.size).to(momentum.dtype());
  if (grad_scale.defined()) grad = grad * grad_scale.to(grad.dtype());
  Tensor next = momentum * args_.momentum + grad;
  momentum.copy_(skip.defined() ? where(eq(skip.to(f32), 0.0), next, momentum) : next);
  return args_.nesterov ? grad + momentum * args_.momentum : momentum;
}

// With ZeRO the parts of a matrix lie on several ranks: the directions of a bucket are gathered, and every rank makes
// those matrices orthogonal of which it updates a part.
void Muon::move(std::span<const Matrix> matrices, const Tensor& grad_scale, const Tensor& skip) {
  const FlatBucket& bucket = *matrices[0].bucket;
  const FlatGroup& group = params_.groups()[matrices[0].mine.group];
  DataParallel& parallel = params_.parallel();
  Tensor all = empty({bucket.size()}, type_for(group.params), group.params.device());
  for (const Matrix& m : matrices)
    if (m.mine.size > 0)
      all.narrow(0, m.mine.begin - bucket.begin, m.mine.size).copy_(direction(m.mine, grad_scale, skip));
  if (parallel.zero() > 0) {
    recorder::Tag tag("directions");
    FlatPart part = part_of(bucket, parallel.group().rank(), parallel.group().size());
    parallel.group().all_gather(all, all.narrow(0, part.begin - bucket.begin, part.size())).wait();
  }
  for (const Matrix& m : matrices) {
    if (m.mine.size == 0) continue;
    int64_t numel = m.slot->param.numel(), rows = m.slot->param.size(0), columns = numel / rows;
    Tensor matrix = all.narrow(0, m.slot->offset - bucket.begin, numel).view({rows, columns});
    // So that a value moves by about 0.2 lr, as with AdamW (Liu et al. 2025).
    double size = 0.2 * std::sqrt(double(std::max(rows, columns)));
    DType wide = group.dtype == f64 ? f64 : f32;
    Tensor step = orthogonal(matrix, args_.iterations).to(wide).reshape({numel}) * size;
    auto mine = [&](const Tensor& t, int64_t at) { return t.defined() ? t.narrow(0, at, m.mine.size) : t; };
    sgd_step(mine(group.params, m.mine.params), mine(group.masters, m.mine.state),
             mine(step, m.mine.begin - m.slot->offset), {}, lr_of(m.mine.group),
             {.weight_decay = group.options.weight_decay.value_or(args_.weight_decay)}, {}, skip);
  }
}

std::vector<std::pair<std::string, Tensors>> Muon::buffers() const {
  return {{"momentum.", momentum_}, {"exp_avg.", m_}, {"exp_avg_sq.", v_}};
}

}  // namespace xylem
