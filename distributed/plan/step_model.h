// SPDX-License-Identifier: Apache-2.0
// What a training step of a transformer or a ResNet would take on a machine that one need not have: memory, compute and
// communication of every way to lay the model out over the GPUs. docs/plan.md has the formulas and how far they were
// checked.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "distributed/plan/plan.h"

namespace xylem {

// A convolutional network, each convolution with its batch normalization. Its samples are images: sequences of
// length 1.
struct ConvNet {
  struct Layer {
    int64_t in, out, kernel, stride, size;  // channels; height and width of what it reads
    int64_t out_size() const { return (size + stride - 1) / stride; }
    double forward_flops() const;  // of one image
  };
  std::vector<Layer> layers = {};
  int64_t features = 0, classes = 0;  // of the linear layer behind them
  double moved = 0, kept = 0;         // elements of an image: beside the convolutions, and for the backward pass
};

struct ModelShape {
  std::string name;
  int64_t layers = 0, width = 0, heads = 0, kv_heads = 0, hidden = 0, vocab = 0, context = 0;
  bool gated = false;  // SwiGLU: three matrices in the feed-forward part
  bool tied = true;    // the output layer shares the embedding's weight
  bool learned_positions = false;
  bool recompute = false;              // activations of a block are computed again in the backward pass
  std::optional<ConvNet> images = {};  // then nothing of the above but the name counts
  int64_t parameters() const;
  int64_t block_parameters() const;  // of one block
  int64_t kv_width() const;
  double forward_flops(int64_t sequence) const;  // of one token or image
};

struct ResNetShape {
  std::vector<int64_t> blocks = {};  // per stage
  bool bottleneck = false, small_images = false;
  int64_t channels = 3, classes = 1000, width = 64, image = 224;
};
ModelShape resnet_shape(const std::string& name, const ResNetShape& shape);

// gpt2-124m, -355m, -774m, -1.5b, llama-1b, -7b, -8b, -70b, resnet18, resnet50; nothing for other names.
std::optional<ModelShape> known_model(const std::string& name);

struct GpuSpec {
  std::string name;
  double peak_flops = 0;  // dense, of the precision, per second
  double memory = 0;      // bytes
  double copy_gbps = 0;   // GB/s of device memory
};
// Memory and its bandwidth from the table of GPUs; 0 where the name is not there.
GpuSpec gpu_spec(const std::string& name);

struct StepOptions {
  int64_t global_batch = 0, sequence = 0;  // sequences a step; tokens of each (1 for images)
  int64_t micro_batch = 0;                 // sequences of a pass on one replica; 0: the largest that fits
  bool half = true;                        // 16-bit weights with f32 masters
  PlanOptions plan = {};
};

struct Layout {
  int data = 1, tensor = 1, pipeline = 1, zero = 0;
  std::string str() const;  // "data 8, ZeRO 1"
};

struct Memory {  // bytes on one GPU
  double weights = 0, gradients = 0, optimizer = 0, activations = 0, workspace = 0;
  double total() const { return weights + gradients + optimizer + activations + workspace; }
};

struct StepEstimate {
  Layout layout;
  int64_t micro_batch = 0, micro_batches = 0;
  Memory memory = {};
  bool fits = false;
  double compute_ms = 0, optimizer_ms = 0, bubble_ms = 0;
  double communication_ms = 0, exposed_ms = 0;  // all of it, and what compute does not hide
  double step_ms = 0, rate = 0;                 // tokens or images a second
  double utilization = 0;                       // model FLOPs over peak
  std::string bottleneck = {};                  // in words
};

struct StepPlan {
  std::vector<StepEstimate> layouts;  // those that fit first, fastest first
  std::vector<std::string> notes;     // what was assumed
  std::string unknown;                // why there is no estimate
  std::string unit = "tokens";        // that rate counts, or "images"
  std::string str(size_t most = 10) const;
  std::string to_json() const;
};

StepPlan plan_step(const Topology& topology, const ModelShape& model, const GpuSpec& gpu, const StepOptions& options);

// One GPU alone, to compare with measurements: ms of a step.
StepEstimate estimate_single(const ModelShape& model, const GpuSpec& gpu, const StepOptions& options);

}  // namespace xylem
