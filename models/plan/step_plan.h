// SPDX-License-Identifier: Apache-2.0
// What a training step of a model would take on a machine that one need not have: memory, compute and communication of
// every way to lay the model out over the GPUs. docs/plan.md has the formulas and how far they were checked.
#pragma once
#include <string>
#include <vector>

#include "distributed/plan/plan.h"
#include "models/plan/work.h"

namespace xylem {

struct GpuSpec {
  std::string name;
  double peak_flops = 0;  // dense, of the precision, per second
  double memory = 0;      // bytes
  double copy_gbps = 0;   // GB/s of device memory
};
// From the table of GPUs, the peak of a precision (fp32, tf32, bf16, fp16); 0 where the name is not there.
GpuSpec gpu_spec(const std::string& name, const std::string& precision = "bf16");

struct StepOptions {
  int64_t global_batch = 0;  // sequences or images a step
  int64_t sequence = 0;      // tokens of each sequence; 0: the model's context. Images have none
  int64_t micro_batch = 0;   // sequences or images of a pass on one replica; 0: the fastest that fits
  bool half = true;          // 16-bit weights with f32 masters
  PlanOptions plan = {};
};

struct StepLayout {
  int data = 1, tensor = 1, pipeline = 1, zero = 0;
  std::string str() const;  // "data 8, ZeRO 1"
};

struct StepMemory {  // bytes on one GPU
  double weights = 0, gradients = 0, optimizer = 0, activations = 0, workspace = 0;
  double total() const { return weights + gradients + optimizer + activations + workspace; }
};

struct StepEstimate {
  StepLayout layout;
  int64_t micro_batch = 0, micro_batches = 0;
  StepMemory memory = {};
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

StepPlan plan_step(const Topology& topology, const ModelWork& model, const GpuSpec& gpu, const StepOptions& options);

// One GPU alone, to compare with measurements: ms of a step.
StepEstimate estimate_single(const ModelWork& model, const GpuSpec& gpu, const StepOptions& options);

}  // namespace xylem
