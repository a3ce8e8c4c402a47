// SPDX-License-Identifier: Apache-2.0
// Eigen as Xylem uses it: one thread per product (the callers split the work), matrices over foreign memory.
// Included by .cpp files alone.
#pragma once
#ifndef __clang__
// GCC 12 takes the deliberately undefined operands of its own AVX-512 intrinsics for uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>
#include <cstdint>

namespace xylem::eigen {

template <class T, int Order>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Order>;
// A matrix whose rows (RowMajor) or columns (ColMajor) lie `ld` elements apart.
template <class T, int Order = Eigen::RowMajor>
using ConstMap = Eigen::Map<const Matrix<T, Order>, Eigen::Unaligned, Eigen::OuterStride<>>;
template <class T, int Order = Eigen::RowMajor>
using Map = Eigen::Map<Matrix<T, Order>, Eigen::Unaligned, Eigen::OuterStride<>>;

}  // namespace xylem::eigen
