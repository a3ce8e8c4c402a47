// SPDX-License-Identifier: Apache-2.0
#include "distributed/topology/detect.h"

#ifdef XY_WITH_HWLOC
#include <hwloc.h>
#endif

namespace xylem {

#ifdef XY_WITH_HWLOC
std::optional<int> hwloc_numa_node(const PciAddress& device) {
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return std::nullopt;
  std::optional<int> node;
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(topology) == 0) {
    hwloc_obj_t pci = hwloc_get_pcidev_by_busid(topology, device.domain, device.bus, device.device, device.function);
    hwloc_obj_t above = pci ? hwloc_get_non_io_ancestor_obj(topology, pci) : nullptr;
    if (above && above->nodeset && hwloc_bitmap_weight(above->nodeset) == 1) node = hwloc_bitmap_first(above->nodeset);
  }
  hwloc_topology_destroy(topology);
  return node;
}
#else
std::optional<int> hwloc_numa_node(const PciAddress&) { return std::nullopt; }
#endif

}  // namespace xylem
