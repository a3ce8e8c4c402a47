// SPDX-License-Identifier: Apache-2.0
#include "models/plan/step_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/util/check.h"
#include "distributed/plan/cost_model.h"
#include "distributed/plan/graph_search.h"
#include "distributed/topology/gpu_model.h"
#include "models/loop/flops.h"

namespace xylem {
namespace {

constexpr double kGiB = double(1 << 30), kMiB = double(1 << 20);
constexpr double kBucket = 25 * kMiB;
constexpr double kLogits = kGiB;  // that linear_cross_entropy holds at once
// Shares of what the data sheet promises, measured on one H200 with GPT-2 (bench/results) and its matrix products.
constexpr double kMemoryShare = 0.72, kHidden = 0.9, kUsable = 0.94;
constexpr double kLaunchMs = 0.003;  // small passes wait for the launches of their kernels
// Read and written for each parameter in a step: gradients cleared, read for their norm, and the update.
constexpr double kAdamBytes = 38, kAdamBytes32 = 34;

// On straight lines through the logarithm of x, flat beyond the ends.
template <size_t N>
double on_curve(double x, const double (&xs)[N], const double (&ys)[N]) {
  if (x <= xs[0]) return ys[0];
  for (size_t i = 1; i < N; ++i)
    if (x <= xs[i]) return ys[i - 1] + (ys[i] - ys[i - 1]) * std::log(x / xs[i - 1]) / std::log(xs[i] / xs[i - 1]);
  return ys[N - 1];
}
double product_share(double width) { return on_curve(width, {1600, 4096, 8192}, {0.606, 0.69, 0.77}); }
double attention_share(double sequence, double head) {
  return head >= 128 ? on_curve(sequence, {1024, 4096, 16384}, {0.317, 0.481, 0.545})
                     : on_curve(sequence, {1024, 4096, 16384}, {0.252, 0.387, 0.445});
}

struct Compute {  // seconds for one token or image, forward and backward, on one GPU of a layout
  double products = 0, attention = 0, memory = 0;
  double total() const { return products + attention + memory; }
};

// A product takes what its arithmetic or its bytes take, whichever is more.
Compute compute_of(const ModelWork& m, const GpuSpec& gpu, int64_t sequence, bool half, int split) {
  const double element = half ? 2 : 4, bandwidth = gpu.copy_gbps * 1e9 * kMemoryShare;
  Compute c;
  for (const auto& [product, n] : m.whole.products) {
    const double share = product_share(double(product.width) / split);
    const double flops = product.flops / (gpu.peak_flops * share), bytes = element * product.elements / bandwidth;
    c.products += n * product.times * std::max(flops, bytes) / split;
  }
  const auto length = double(m.language ? sequence : m.patches);
  const double attention = 3.5 * m.whole.attention + m.whole.attention_again;  // 1 forward, 2.5 backward
  c.attention =
      attention * (m.language ? length : 1) / split / (gpu.peak_flops * attention_share(length, double(m.head_size)));
  c.memory = element * m.whole.moved / bandwidth / split;
  return c;
}

class StepPlanner {
 public:
  StepPlanner(const Topology& t, const ModelWork& m, const GpuSpec& gpu, const StepOptions& o)
      : t_(t), m_(m), gpu_(gpu), o_(o), n_(o.plan.ranks > 0 ? o.plan.ranks : int(t.gpus.size())) {
    if (!m.language) o_.sequence = 1;
    if (o_.sequence == 0) o_.sequence = m.context;
  }

  StepPlan run() {
    StepPlan plan;
    if (!m_.language) plan.unit = "images";
    const CostModel* all = model_of(n_);
    if (n_ > 1 && !all->fabric().unknown.empty()) {
      plan.unknown = all->fabric().unknown;
      return plan;
    }
    nodes_ = n_ > 1 ? all->fabric().nodes : 1;
    per_node_ = n_ / nodes_;
    if (n_ > 1) plan.notes = all->fabric().assumptions;
    for (int tensor = 1; tensor <= std::min(per_node_, 8); tensor *= 2) {
      if (per_node_ % tensor || m_.heads % tensor || m_.kv_heads % tensor) continue;
      for (int pipe = 1; pipe * tensor <= n_ && pipe <= 16; pipe *= 2) {
        if (m_.blocks % pipe || n_ % (tensor * pipe)) continue;
        if (pipe > nodes_ ? per_node_ % (tensor * (pipe / nodes_)) || pipe % nodes_ : nodes_ % pipe) continue;
        int data = n_ / tensor / pipe;
        if (o_.global_batch % data) continue;
        for (int zero = 0; zero <= (data > 1 ? 3 : 0); ++zero) {
          if (zero == 3 && pipe > 1) continue;  // weights would be gathered for every micro-batch of every stage
          plan.layouts.push_back(estimate({data, tensor, pipe, zero}));
        }
      }
    }
    if (plan.layouts.empty())
      plan.unknown = detail::concat("a batch of ", o_.global_batch, " does not divide over ", n_, " GPUs");
    std::stable_sort(plan.layouts.begin(), plan.layouts.end(), [](const StepEstimate& x, const StepEstimate& y) {
      return x.fits != y.fits ? x.fits : x.fits ? x.step_ms < y.step_ms : x.memory.total() < y.memory.total();
    });
    return plan;
  }

  StepEstimate estimate(const StepLayout& l) {
    const int64_t share = o_.global_batch / l.data;
    if (o_.micro_batch > 0) {
      XY_CHECK(share % o_.micro_batch == 0, "a micro-batch of ", o_.micro_batch, " does not divide the ", share,
               " sequences of each of ", l.data, " replicas");
      return estimate(l, o_.micro_batch);
    }
    // Large passes keep the products efficient; a pipeline wants many.
    StepEstimate best = estimate(l, 1);
    for (int64_t micro = 2; micro <= share && micro <= (m_.language ? 64 : 4096); micro *= 2) {
      if (share % micro) continue;
      StepEstimate e = estimate(l, micro);
      if (e.fits && (!best.fits || e.step_ms <= best.step_ms)) best = e;
    }
    return best;
  }

 private:
  const CostModel* model_of(int ranks) {
    auto& slot = models_[ranks];
    if (!slot) {
      PlanOptions o = o_.plan;
      o.ranks = ranks;
      slot = std::make_unique<CostModel>(search_fabric(t_, o));
    }
    return slot.get();
  }
  // Best time of one collective over the first `ranks` GPUs, ms.
  double collective_ms(int ranks, CollectiveKind kind, double bytes) {
    if (ranks < 2 || bytes <= 0) return 0;
    auto ranked = model_of(ranks)->ranked(kind, bytes);
    return ranked.empty() ? 1e12 : ranked[0].time_us / 1000;
  }

  // The same collective in all groups of replicas at once. Inside a node each GPU has its links to itself; between
  // nodes the groups share the NICs, as one collective of all of them does.
  double replicas_ms(const StepLayout& l, CollectiveKind kind, double bytes) {
    const int stage = n_ / l.pipeline;  // GPUs that hold one stage
    const int stage_nodes = std::max(1, nodes_ / l.pipeline);
    double buckets = std::max(1.0, std::ceil(bytes / kBucket));
    return stage_nodes == 1 ? buckets * collective_ms(l.data, kind, bytes / buckets)
                            : buckets * collective_ms(stage, kind, bytes * l.tensor / buckets);
  }

  StepMemory memory_of(const StepLayout& l, int64_t micro, int64_t micro_batches) const {
    const double mine = double(m_.parameters) / l.tensor / l.pipeline, tokens = double(micro * o_.sequence);
    const double element = o_.half ? 2 : 4;
    auto part = [&](int stage) { return l.zero >= stage ? mine / l.data : mine; };
    StepMemory mem;
    mem.weights = element * part(3);
    mem.gradients = 4 * part(2);
    mem.optimizer = (o_.half ? 12 : 8) * part(1);
    const double blocks = double(m_.blocks) / l.pipeline,
                 in_flight = double(std::min<int64_t>(l.pipeline, micro_batches));
    if (m_.language)
      mem.activations = tokens * element / l.tensor *
                            (blocks * m_.block.kept * in_flight + m_.block_again +
                             (m_.whole.kept - double(m_.blocks) * m_.block.kept) / l.pipeline) +
                        std::min(kLogits, tokens * element / l.tensor * m_.whole.logits) +
                        element / l.tensor * m_.whole.head;
    else
      mem.activations = tokens * element * (m_.whole.kept + m_.whole.largest);  // and the gradient of one of them
    mem.workspace = 64 * kMiB + (n_ > 1 ? kGiB : 0);
    // One block's weights at a time, and the next one on its way.
    if (l.zero == 3) mem.workspace += 2 * element * double(m_.block_parameters) / l.tensor;
    return mem;
  }

  StepEstimate estimate(const StepLayout& l, int64_t micro) {
    StepEstimate e{.layout = l, .micro_batch = micro};
    e.micro_batches = o_.global_batch / l.data / micro;
    e.memory = memory_of(l, micro, e.micro_batches);
    e.fits = gpu_.memory <= 0 || e.memory.total() <= kUsable * gpu_.memory;

    const double tokens = double(micro * o_.sequence), element = o_.half ? 2 : 4, m = double(e.micro_batches);
    const Compute c = compute_of(m_, gpu_, o_.sequence, o_.half, l.tensor);
    const double launches = m_.whole.kernels;
    const double busy_ms = 1000 * tokens * c.total() / l.pipeline, launch_ms = kLaunchMs * launches / l.pipeline;
    const double pass_ms = std::max(busy_ms, launch_ms);  // one micro-batch through one stage, both ways
    e.compute_ms = m * pass_ms;

    const double mine = double(m_.parameters) / l.tensor / l.pipeline, layers = double(m_.blocks) / l.pipeline;
    e.optimizer_ms = (o_.half ? kAdamBytes : kAdamBytes32) * (l.zero >= 1 ? mine / l.data : mine) /
                     (gpu_.copy_gbps * 1e9 * kMemoryShare) * 1000;

    // Tensor parallel: two sums forward and two backward for each block, which compute waits for.
    double tensor_ms =
        m * layers * 4 * collective_ms(l.tensor, CollectiveKind::all_reduce, tokens * double(m_.width()) * element);
    double data_ms = 0, data_exposed = 0;
    const double backward = 2.0 / 3 * pass_ms;
    if (l.data > 1) {
      const double sum_bytes = 4 * mine, weight_bytes = element * mine;
      double sums =
          replicas_ms(l, l.zero == 0 ? CollectiveKind::all_reduce : CollectiveKind::reduce_scatter, sum_bytes);
      double gathers = l.zero == 0 ? 0 : replicas_ms(l, CollectiveKind::all_gather, weight_bytes);
      double last = sums / std::max(1.0, std::ceil(sum_bytes / kBucket));
      if (l.zero <= 1) {  // once a step, behind the last micro-batch; gathered weights are waited for
        data_ms = sums + gathers;
        data_exposed = std::max(last, sums - kHidden * backward) + gathers;
      } else if (l.zero == 2) {
        data_ms = m * sums + gathers;
        data_exposed = m * std::max(last, sums - kHidden * backward) + gathers;
      } else {  // weights twice and gradients once, for every micro-batch, ahead of and behind their block
        data_ms = m * (sums + 2 * gathers);
        data_exposed = std::max(m * 2 * gathers / layers, data_ms - kHidden * e.compute_ms);
      }
    }
    double hop_ms = 0;
    if (l.pipeline > 1) {
      const Channels& ring = model_of(n_)->fabric().ring;
      double gbps = nodes_ > 1 ? ring.inter_gbps : ring.count * ring.intra_gbps;
      hop_ms = tokens * double(m_.width()) * element / l.tensor / (gbps * 1e6);
      e.bubble_ms = (l.pipeline - 1) * (pass_ms + tensor_ms / m);
    }
    const double pipe_exposed = 2 * (l.pipeline - 1) * hop_ms;
    e.communication_ms = tensor_ms + data_ms + 2 * m * hop_ms;
    e.exposed_ms = tensor_ms + data_exposed + pipe_exposed;
    e.step_ms = e.compute_ms + e.bubble_ms + e.exposed_ms + e.optimizer_ms;
    const double step_tokens = double(o_.global_batch * o_.sequence);
    e.rate = step_tokens / e.step_ms * 1000;
    e.utilization = 3 * m_.forward_flops(o_.sequence) * e.rate / (n_ * gpu_.peak_flops);

    const double stage = m * tokens / l.pipeline * 1000;
    struct Share {
      double ms;
      const char* what;
    };
    auto most = std::max({Share{stage * c.products, m_.language ? "matrix products" : "convolutions and products"},
                          {stage * c.attention, "attention"},
                          {stage * c.memory, "device memory: norms, activations, loss"},
                          {launch_ms > busy_ms ? e.compute_ms : 0, "launches of kernels: the passes are small"},
                          {e.bubble_ms, "the pipeline's bubble"},
                          {tensor_ms, "tensor parallel sums"},
                          {data_exposed, "gradients and weights between replicas"},
                          {e.optimizer_ms, "the optimizer"}},
                         [](const Share& x, const Share& y) { return x.ms < y.ms; });
    char text[128];
    std::snprintf(text, sizeof text, "%s (%.0f %%)", most.what, 100 * most.ms / e.step_ms);
    e.bottleneck = e.fits ? text : "memory";
    return e;
  }

  const Topology& t_;
  const ModelWork& m_;
  const GpuSpec& gpu_;
  StepOptions o_;
  int n_, nodes_ = 1, per_node_ = 1;
  std::map<int, std::unique_ptr<CostModel>> models_;
};

}  // namespace

std::string StepLayout::str() const {
  std::string text = "data " + std::to_string(data);
  if (zero > 0) text += ", ZeRO " + std::to_string(zero);
  if (tensor > 1) text += ", tensor " + std::to_string(tensor);
  if (pipeline > 1) text += ", pipeline " + std::to_string(pipeline);
  return text;
}

GpuSpec gpu_spec(const std::string& name, const std::string& precision) {
  const GpuModel* model = find_gpu_model(name);
  if (!model) return {.name = name};
  return {name, peak_of_gpu(name, precision).flops, model->memory_gb * 1e9, model->memory_gbps};
}

StepPlan plan_step(const Topology& topology, const ModelWork& model, const GpuSpec& gpu, const StepOptions& options) {
  StepPlan plan;
  XY_CHECK(options.global_batch > 0, "a step needs a batch");
  if (gpu.peak_flops <= 0 || gpu.copy_gbps <= 0) {
    plan.unknown = "the peak of " + (gpu.name.empty() ? std::string("the GPU") : gpu.name) + " is not known";
    return plan;
  }
  return StepPlanner(topology, model, gpu, options).run();
}

StepEstimate estimate_single(const ModelWork& model, const GpuSpec& gpu, const StepOptions& options) {
  Topology one;
  one.gpus.resize(1);
  one.gpus[0].name = gpu.name;
  one.pairs.assign(1, std::vector<DevicePair>(1));
  StepOptions o = options;
  o.plan.ranks = 1;
  return StepPlanner(one, model, gpu, o).estimate({});
}

std::string StepPlan::str(size_t most) const {
  if (!unknown.empty()) return "no estimate: " + unknown + "\n";
  std::string text;
  char line[256];
  std::snprintf(line, sizeof line, "  %-30s %6s %9s %9s %8s %8s %9s %6s  %s\n", "layout", "micro", "compute", "hidden",
                "exposed", "step ms", (unit + "/s").c_str(), "MFU", "bottleneck");
  text += line;
  const size_t shown = std::min(most, layouts.size());
  for (size_t i = 0; i < shown; ++i) {
    const StepEstimate& e = layouts[i];
    std::snprintf(line, sizeof line, "  %-30s %6lld %9.1f %9.1f %8.1f %8.1f %9.0f %5.1f%%  %s\n",
                  e.layout.str().c_str(), static_cast<long long>(e.micro_batch), e.compute_ms,
                  std::max(0.0, e.communication_ms - e.exposed_ms), e.exposed_ms, e.step_ms, e.rate,
                  100 * e.utilization, e.fits ? e.bottleneck.c_str() : "does not fit");
    text += line;
  }
  text += "  hidden, exposed: ms of communication behind compute, and of waiting for it\n\n";
  std::snprintf(line, sizeof line, "  %-30s %9s %9s %9s %9s %11s %9s\n", "GiB on each GPU", "weights", "gradients",
                "optimizer", "activat.", "workspace", "together");
  text += line;
  for (size_t i = 0; i < shown; ++i) {
    const StepMemory& m = layouts[i].memory;
    std::snprintf(line, sizeof line, "  %-30s %9.1f %9.1f %9.1f %9.1f %11.1f %9.1f\n", layouts[i].layout.str().c_str(),
                  m.weights / kGiB, m.gradients / kGiB, m.optimizer / kGiB, m.activations / kGiB, m.workspace / kGiB,
                  m.total() / kGiB);
    text += line;
  }
  if (layouts.size() > shown) text += detail::concat("  left out: ", layouts.size() - shown, " (--most)\n");
  for (const std::string& n : notes) text += "  note: " + n + "\n";
  return text;
}

std::string StepPlan::to_json() const {
  nlohmann::ordered_json j = {{"unknown", unknown}, {"notes", notes}, {"layouts", nlohmann::ordered_json::array()}};
  for (const StepEstimate& e : layouts)
    j["layouts"].push_back({{"data", e.layout.data},
                            {"zero", e.layout.zero},
                            {"tensor", e.layout.tensor},
                            {"pipeline", e.layout.pipeline},
                            {"micro_batch", e.micro_batch},
                            {"micro_batches", e.micro_batches},
                            {"fits", e.fits},
                            {"memory",
                             {{"weights", e.memory.weights},
                              {"gradients", e.memory.gradients},
                              {"optimizer", e.memory.optimizer},
                              {"activations", e.memory.activations},
                              {"workspace", e.memory.workspace}}},
                            {"compute_ms", e.compute_ms},
                            {"optimizer_ms", e.optimizer_ms},
                            {"bubble_ms", e.bubble_ms},
                            {"communication_ms", e.communication_ms},
                            {"hidden_ms", std::max(0.0, e.communication_ms - e.exposed_ms)},
                            {"exposed_ms", e.exposed_ms},
                            {"step_ms", e.step_ms},
                            {unit + "_per_s", e.rate},
                            {"utilization", e.utilization},
                            {"bottleneck", e.bottleneck}});
  return j.dump(1) + "\n";
}

}  // namespace xylem
