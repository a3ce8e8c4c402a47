// SPDX-License-Identifier: Apache-2.0
#include "models/loop/flops.h"

#include "core/device/info.h"
#include "distributed/topology/gpu_model.h"

namespace xylem {

void FlopCounter::on_op(const OpSpec& spec, std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                        const Attrs&) {
  if (spec.flop_count) total_ += spec.flop_count(inputs, outputs);
}

Peak peak_of_gpu(const std::string& gpu_name, const std::string& precision) {
  const GpuModel* model = find_gpu_model(gpu_name);
  if (!model) return {0, gpu_name + ", whose peak is not in the table"};
  const double tera = precision == "fp32"   ? model->single_tflops
                      : precision == "tf32" ? model->tf32_tflops
                                            : model->half_tflops;
  if (tera == 0) return {0, gpu_name + ", whose peak in " + precision + " is not in the table"};
  return {tera * 1e12, gpu_name + ", " + precision + " dense"};
}

Peak peak_flops(Device device, const std::string& precision) {
  if (!device.is_cuda()) return {0, "the CPU, whose peak is not known"};
  auto all = gpus();
  return size_t(device.index) < all.size() ? peak_of_gpu(all[device.index].name, precision) : Peak{};
}

}  // namespace xylem
