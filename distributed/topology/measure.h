// SPDX-License-Identifier: Apache-2.0
// Measurements that judge what cannot be read: the PCIe link while a copy runs, and copies between GPUs, checked and
// timed.
#pragma once
#include "distributed/topology/topology.h"

namespace xylem {

// Fills pcie, pcie_judged, host_copy_gbps and the errors of the links under load of the GPUs of this host
// that the process sees, and measured_gbps, copies_right and peer of their pairs. Takes about half a second for each
// GPU. Throws without CUDA.
void measure(Topology& topology);

}  // namespace xylem
