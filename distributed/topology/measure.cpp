// SPDX-License-Identifier: Apache-2.0
#include "distributed/topology/measure.h"

#include "core/util/check.h"

namespace xylem {

#ifndef XY_WITH_CUDA
void measure(Topology&) { XY_FAIL("this is a CPU build: measuring GPUs needs one with CUDA (cmake --preset release)"); }
#endif

}  // namespace xylem
