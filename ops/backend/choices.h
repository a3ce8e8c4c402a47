// SPDX-License-Identifier: Apache-2.0
// Kernels of the vendor's libraries that are chosen by timing. The first program that meets a problem times it, later
// ones on such a GPU find the choice in a file (core/util/cache_file.h), which ranks that share a folder agree on.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "core/device/device.h"
#include "core/util/cache_file.h"

namespace xylem::cuda {

// Whether a problem of so many floating point operations is worth timing: it takes some microseconds.
bool worth_timing(double flops);
// Not while a CUDA graph is captured, nor where XY_KERNEL_TIMING=0: a library's own first proposal is taken then.
bool may_time(Device device);

// The choices for a library on this kind of GPU: "gemm-cublaslt-130101" names the library with its version.
CacheFile& kept_choices(const std::string& library, Device device);

// The shortest of a few times, in ms, that the work `enqueue` puts on the current stream takes; nothing where it
// returns false. What takes twice as long as `best` at the first attempt is not tried again.
std::optional<float> time_of(Device device, float best, const std::function<bool()>& enqueue);

}  // namespace xylem::cuda
