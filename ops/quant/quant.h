// SPDX-License-Identifier: Apache-2.0
// Quantization simulated in floating point, and the statistics that its scales come from.
#pragma once
#include <cstdint>
#include <string>

#include "core/tensor/tensor.h"

namespace xylem {

// int8 and int4: whole numbers. fp8: e4m3, whose largest value is 448.
enum class QuantFormat { int8, int4, fp8 };
const char* name_of(QuantFormat f);
QuantFormat parse_quant_format(const std::string& name);

struct FakeQuantizeArgs {
  QuantFormat format = QuantFormat::int8;
  int axis = -1;                   // the dimension of x that a scale [C] belongs to; -1: one scale for all
  int64_t low = -128, high = 127;  // of whole numbers; fp8 saturates at 448
  int64_t block = 0;               // > 0: a scale for every `block` neighbours along the last dimension of x
};

// What x becomes when it is stored as q = clamp(round(x / scale), low, high), halves to even, and read back as
// q * scale. scale: positive, f32 (f64 with an f64 x); one element, [C], or with a block [.., K / block].
// The gradient of x passes where round(x / scale) needed no clamp and is 0 elsewhere (straight through, clipped). That
// of scale is the sum over dy * (q - x / scale), with q alone where it was clamped, times 1 / sqrt(n * high) for n
// values that share the scale (learned step size, Esser et al. 2020).
Tensor fake_quantize(const Tensor& x, const Tensor& scale, const FakeQuantizeArgs& args = {});

// The largest |x|, f32 (f64 of an f64 x): of all values [], along `axis` [C], or of blocks [.., K / block].
Tensor abs_max(const Tensor& x, int axis = -1, int64_t block = 0);

// How many |x| fall into each of `bins` equal parts of [0, range], i64 [bins]; larger values count in the last bin and
// NaNs nowhere. Exact for powers of two, whatever the type of x.
Tensor abs_histogram(const Tensor& x, double range, int64_t bins);

}  // namespace xylem
