// SPDX-License-Identifier: Apache-2.0
#include "models/plan/work.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/device/allocator.h"
#include "core/util/check.h"
#include "models/nn/init.h"
#include "models/nn/lazy.h"
#include "models/zoo/zoo.h"
#include "ops/ops.h"

namespace xylem {
namespace {

constexpr int64_t kTokens = 8;  // of the sequence that a language model is run on

bool is_in(std::string_view name, std::initializer_list<std::string_view> list) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// Adds up what is recorded while it lives. Operations that run without a graph are those which recomputation repeats.
class WorkCounter : public OpObserver {
 public:
  void on_op(const OpSpec& spec, std::span<const Tensor> outputs, std::span<const Tensor> inputs,
             const Attrs& attrs) override {
    if (outputs.empty() || inputs.empty()) return;                // random numbers
    if (storage_of(outputs[0]) == storage_of(inputs[0])) return;  // a view
    const bool again = !grad_enabled();
    const double out = double(outputs[0].numel());
    for (const Tensor& t : outputs) uses_[storage_of(t)] = 0;
    work_.moved += forks(inputs);
    work_.largest = std::max(work_.largest, out);
    if (is_in(spec.name, {"linear", "matmul", "conv2d", "conv_transpose2d"}))
      add_product(spec, inputs, outputs[0], again);
    else if (spec.name == "linear_cross_entropy")
      add_linear_loss(spec, inputs, outputs);
    else if (spec.name == "attention")
      add_attention(spec, inputs, outputs, attrs, again);
    else
      add_other(spec.name, inputs, out, again);
  }
  const Work& work() const { return work_; }
  const Shape& query() const { return query_; }  // [1, S, heads, size] of the attention; empty without any
  int64_t kv_heads() const { return kv_heads_; }

 private:
  static const Storage* storage_of(const Tensor& t) { return t.defined() ? t.storage().get() : nullptr; }

  // A tensor that several operations read gets a gradient from each, which are summed: two reads and a write.
  double forks(std::span<const Tensor> inputs) {
    double elements = 0;
    std::set<const Storage*> seen;
    for (const Tensor& t : inputs) {
      const Storage* s = storage_of(t);
      auto at = uses_.find(s);  // not of weights
      if (!s || at == uses_.end() || !seen.insert(s).second) continue;
      if (at->second++ > 0) elements += 3 * double(t.numel());
    }
    return elements;
  }

  void add_product(const OpSpec& spec, std::span<const Tensor> inputs, const Tensor& output, bool again) {
    const bool convolution = spec.name.starts_with("conv"), first = !inputs[0].requires_grad() && !again;
    const bool bias = inputs.size() > 2 && inputs[2].defined();
    const Tensor& weight = inputs[1];
    ++work_.products[{.flops = spec.flop_count(inputs, {&output, 1}),
                      .elements = double(inputs[0].numel() + output.numel()),
                      .width = convolution ? 0 : std::min(weight.size(-1), weight.size(-2)),
                      .times = again   ? 4
                               : first ? 2
                                       : 3}];
    if (bias) work_.moved += double(output.numel());
    work_.kernels += (bias ? 4 : 3) + again;
  }

  // The logits of some rows at a time are made, read and written over by their gradient, and multiplied further.
  void add_linear_loss(const OpSpec& spec, std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
    const Tensor &hidden = inputs[0], &weight = inputs[1];
    const double logits = double(hidden.numel()) / double(hidden.size(-1)) * double(weight.size(0));
    ++work_.products[{.flops = spec.flop_count(inputs, outputs),
                      .elements = double(hidden.numel()) + logits,
                      .width = std::min(weight.size(-1), weight.size(-2)),
                      .times = 3}];
    work_.moved += 2 * logits;
    work_.kernels += 5;
    work_.logits = logits;
    work_.head = double(weight.numel());
  }

  void add_attention(const OpSpec& spec, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                     const Attrs& attrs, bool again) {
    double flops = spec.flop_count(inputs, outputs);
    for (const auto& [name, value] : attrs)
      if (name == "causal" && std::get<bool>(value)) flops /= 2;
    work_.attention += flops;
    if (again) work_.attention_again += flops;
    query_ = inputs[0].shape();
    kv_heads_ = inputs[1].size(2);
    // Shared keys' and values' gradients are made for every head, then summed.
    if (kv_heads_ < query_[2]) work_.moved += 4 * double(inputs[0].numel());
    work_.kernels += 4 + again;
  }

  // Elements read and written forward and backward, nothing fused that the model does not fuse itself.
  void add_other(std::string_view name, std::span<const Tensor> inputs, double out, bool again) {
    double elements = 0;
    int kernels = 2;
    if (name.ends_with("norm")) {
      elements = 8 * out;
      kernels = 3;
    } else if (name == "embedding") {
      elements = 5 * out;
    } else if (name == "rotary") {
      elements = 4 * out;
    } else if (is_in(name, {"add", "sub"})) {
      elements = 3 * out;
    } else if (name.ends_with("pool2d") || is_in(name, {"interpolate", "cat"})) {
      elements = 3 * out;
      for (const Tensor& t : inputs) elements += 3 * double(t.numel());
    } else if (is_in(name, {"cross_entropy", "mse_loss"})) {
      elements = 3 * double(inputs[0].numel());
    } else {  // pointwise with k operands: they and the result, and back the gradients and what was kept
      int operands = 0;
      for (const Tensor& t : inputs) operands += t.defined() && double(t.numel()) == out;
      elements = (3 * operands + 2) * out;
    }
    work_.moved += elements * (again ? 4.0 / 3 : 1);
    work_.kernels += kernels + again;
  }

  Work work_;
  std::map<const Storage*, int> uses_;
  Shape query_;
  int64_t kv_heads_ = 0;
};

// A sample for the model: so many tokens, or an image of that size.
Tensor sample_for(const ZooModel& model, int64_t image) {
  if (model.task() == RecordSpec::Task::language_modelling) return zeros({1, kTokens}, i64);
  Tensor example = model.example();
  return example.rank() == 4 ? zeros({1, example.size(1), image, image}) : example;
}

std::unique_ptr<ZooModel> make_shapes(const std::string& name, const zoo::Options& options) {
  init::ShapesScope shapes;
  return zoo::create(name, options);
}

struct Count {
  Work work;
  Shape query;
  int64_t kv_heads = 0, parameters = 0;
};

// Weights have no memory of their own: one after the other lives while an operation reads it.
Count count(ZooModel& model, int64_t image) {
  LazyScope weights;
  forget_lazy_values();
  auto live = [] { return double(allocator(Device::cpu()).stats().allocated); };
  const double before = live();
  const Tensor sample = sample_for(model, image);
  const bool language = model.task() == RecordSpec::Task::language_modelling;
  const Tensor target = language                                         ? zeros({1, kTokens}, i64)
                        : model.task() == RecordSpec::Task::segmentation ? zeros({1, image, image}, i64)
                                                                         : zeros({1}, i64);
  WorkCounter counter;
  const Tensor loss = model.loss(sample, target);  // holds what the backward pass needs
  forget_lazy_values();
  Count c{counter.work(), counter.query(), counter.kv_heads(), model.num_parameters()};
  const double kept = live() - before;
  const Tensor head =
      empty({int64_t(c.work.head)});  // as much as the gradient of the head's weight takes, rounded alike
  c.work.kept = (kept - (live() - before - kept)) / double(size_of(f32));
  if (!language) return c;
  // Of one token; attention is quadratic in the sequence.
  Work token = Work{}.plus(c.work, 1.0 / kTokens);
  token.attention /= kTokens;
  token.attention_again /= kTokens;
  token.kernels = c.work.kernels;
  token.products.clear();
  for (const auto& [p, n] : c.work.products)
    token.products[{p.flops / kTokens, p.elements / kTokens, p.width, p.times}] += n;
  c.work = token;
  return c;
}

}  // namespace

Work Work::plus(const Work& o, double times) const {
  Work sum = *this;
  for (const auto& [product, n] : o.products) sum.products[product] += n * times;
  sum.attention += o.attention * times;
  sum.attention_again += o.attention_again * times;
  sum.moved += o.moved * times;
  sum.kept += o.kept * times;
  sum.logits += o.logits * times;
  sum.largest = std::max(sum.largest, o.largest);
  sum.head = std::max(sum.head, o.head);
  sum.kernels += o.kernels * times;
  return sum;
}

double ModelWork::forward_flops(int64_t sequence) const {
  double flops = 0;
  for (const auto& [product, n] : whole.products) flops += n * product.flops;
  // Backward takes 2.5 times the forward pass of attention, not 2: a third of the whole is what a step counts.
  return flops + 7.0 / 6 * whole.attention * double(language ? sequence : 1);
}

ModelWork count_work(const std::string& name, const zoo::Options& options, int64_t image) {
  const std::unique_ptr<ZooModel> model = make_shapes(name, options);
  ModelWork m{.name = name, .parameters = model->num_parameters()};
  const auto* language = dynamic_cast<const LanguageModel*>(model.get());
  if (!language) {
    const auto own = options.find("image");
    if (image == 0) image = own != options.end() ? std::get<int64_t>(own->second) : 224;
    const Count c = count(*model, image);
    m.whole = c.work;
    if (c.query.rank() == 4) m.patches = c.query[1], m.head_size = c.query[3];
    return m;
  }
  // One block and two tell what each adds; a model of many need not be run.
  auto with = [&](int64_t layers) {
    zoo::Options few = options;
    few["layers"] = layers;
    return count(*make_shapes(name, few), 0);
  };
  const Count one = with(1), two = with(2);
  m.language = true;
  m.context = language->context();
  m.heads = one.query[2];
  m.kv_heads = one.kv_heads;
  m.head_size = one.query[3];
  m.block_parameters = two.parameters - one.parameters;
  m.blocks = 1 + (m.parameters - one.parameters) / m.block_parameters;
  m.block = two.work.plus(one.work, -1);
  std::erase_if(m.block.products, [](const auto& entry) { return entry.second == 0; });
  m.whole = one.work.plus(m.block, double(m.blocks - 1));
  if (const auto again = options.find("recompute"); again != options.end() && std::get<bool>(again->second)) {
    zoo::Options keeping = options;
    keeping["recompute"] = false;
    m.block_again = count_work(name, keeping, 0).block.kept;
  }
  return m;
}

namespace {

struct PublishedSize {
  const char* name;
  int64_t layers, width, heads, kv_heads = 0, hidden = 0, vocab = 0;
  bool tied = true;
  const char* model() const { return kv_heads == 0 ? "gpt2" : "llama"; }
  zoo::Options options() const {
    zoo::Options o{{"layers", layers}, {"width", width}, {"heads", heads}};
    if (kv_heads > 0)
      o.insert(
          {{"kv_heads", kv_heads}, {"hidden", hidden}, {"vocab", vocab}, {"tied", tied}, {"context", int64_t(8192)}});
    return o;
  }
};
constexpr PublishedSize kSizes[] = {
    {"gpt2-124m", 12, 768, 12},
    {"gpt2-355m", 24, 1024, 16},
    {"gpt2-774m", 36, 1280, 20},
    {"gpt2-1.5b", 48, 1600, 25},
    {"llama-1b", 16, 2048, 32, 8, 8192, 128256},
    {"llama-7b", 32, 4096, 32, 32, 11008, 32000, false},
    {"llama-8b", 32, 4096, 32, 8, 14336, 128256, false},
    {"llama-70b", 80, 8192, 64, 8, 28672, 128256, false},
};

}  // namespace

std::optional<ModelWork> known_work(const std::string& name, int64_t image) {
  for (const PublishedSize& s : kSizes)
    if (name == s.name) {
      ModelWork m = count_work(s.model(), s.options(), image);
      m.name = name;
      return m;
    }
  const std::vector<std::string> zoo = zoo::names();
  if (std::find(zoo.begin(), zoo.end(), name) == zoo.end()) return std::nullopt;
  return count_work(name, {}, image);
}

std::string known_sizes() {
  std::string text;
  for (const PublishedSize& s : kSizes) text += (text.empty() ? "" : ", ") + std::string(s.name);
  for (const std::string& name : zoo::names()) text += ", " + name;
  return text;
}

}  // namespace xylem
