// SPDX-License-Identifier: Apache-2.0
// What is known about the GPUs of this machine.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace xylem {

struct GpuInfo {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory = 0;  // bytes
};

std::vector<GpuInfo> gpus();  // empty in a CPU build, without a driver or without a GPU; never throws

}  // namespace xylem
