// SPDX-License-Identifier: Apache-2.0
#include "models/loop/flops.h"

#include "core/device/info.h"

namespace xylem {
namespace {

// Dense peak in TFLOP/s as the vendor states it without sparsity, f32 accumulation; the first match counts.
struct Row {
  const char* name;
  double half, tf32, fp32;
};
constexpr Row kPeaks[] = {
    {"GB200", 2500, 1250, 80},
    {"B200", 2250, 1125, 75},
    {"H200 NVL", 835.5, 417.5, 60},
    {"GH200", 989.4, 494.7, 66.9},
    {"H200", 989.4, 494.7, 66.9},
    {"H100 PCIe", 756, 378, 51.2},
    {"H100 NVL", 835.5, 417.5, 60},
    {"H100", 989.4, 494.7, 66.9},
    {"H800", 989.4, 494.7, 66.9},
    {"H20", 148, 74, 44},
    {"A100", 312, 156, 19.5},
    {"A800", 312, 156, 19.5},
    {"A30", 165, 82, 10.3},
    {"A40", 149.7, 74.8, 37.4},
    {"A10G", 70, 35, 35},
    {"A10", 125, 62.5, 31.2},
    {"RTX A6000", 154.8, 77.4, 38.7},
    {"L40S", 362, 183, 91.6},
    {"L40", 181, 90.5, 90.5},
    {"L4", 121, 60, 30.3},
    {"RTX 6000 Ada", 364.2, 182.1, 91.1},
    {"RTX 4090", 165.2, 82.6, 82.6},
    {"RTX 3090", 71, 35.6, 35.6},
    {"V100", 125, 15.7, 15.7},
};

}  // namespace

void FlopCounter::on_op(const OpSpec& spec, std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                        const Attrs&) {
  if (spec.flop_count) total_ += spec.flop_count(inputs, outputs);
}

Peak peak_of_gpu(const std::string& gpu_name, const std::string& precision) {
  for (const Row& row : kPeaks)
    if (gpu_name.find(row.name) != std::string::npos) {
      double tera = precision == "fp32" ? row.fp32 : precision == "tf32" ? row.tf32 : row.half;
      return {tera * 1e12, std::string(gpu_name).append(", ").append(precision).append(" dense")};
    }
  return {0, gpu_name + ", whose peak is not in the table"};
}

Peak peak_flops(Device device, const std::string& precision) {
  if (!device.is_cuda()) return {0, "the CPU, whose peak is not known"};
  auto all = gpus();
  return size_t(device.index) < all.size() ? peak_of_gpu(all[device.index].name, precision) : Peak{};
}

}  // namespace xylem
