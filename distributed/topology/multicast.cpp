// SPDX-License-Identifier: Apache-2.0
// Whether the switches may add (NVLS), as the CUDA driver states it. Nothing is bound to a multicast object: that can
// fail late, and on some virtual machines badly.
#include <dlfcn.h>

#include "distributed/topology/detect.h"

namespace xylem {

void read_multicast(Topology& t) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return;
  auto* init = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit"));
  auto* find = reinterpret_cast<int (*)(int*, const char*)>(dlsym(library, "cuDeviceGetByPCIBusId"));
  auto* attribute = reinterpret_cast<int (*)(int*, int, int)>(dlsym(library, "cuDeviceGetAttribute"));
  if (!init || !find || !attribute || init(0) != 0) return;
  constexpr int kMulticastSupported = 132;
  for (GpuDevice& g : t.gpus) {
    int device = 0, value = 0;
    if (g.pci && find(&device, g.pci->str().c_str()) == 0 && attribute(&value, kMulticastSupported, device) == 0)
      g.multicast = value != 0;
  }
}

}  // namespace xylem
