// SPDX-License-Identifier: Apache-2.0
// NVML, loaded at run time and declared by the real nvml.h. Every function may be missing from an older driver, and
// "not supported" is an answer: what it does not tell stays unknown.
#include "distributed/topology/detect.h"

#ifdef XY_WITH_NVML
#include <dlfcn.h>
#include <nvml.h>

#include <algorithm>
#include <cstring>

#include "distributed/topology/cpulist.h"
#endif

namespace xylem {

#ifdef XY_WITH_NVML
namespace {

struct Nvml {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  std::string trouble;

  // Calls a function of the library; `name` is the symbol, whose version belongs to the types used with it.
  template <class F, class... Args>
  bool call(F*, const char* name, Args... args) const {
    void* function = library ? dlsym(library, name) : nullptr;
    return function && reinterpret_cast<F*>(function)(args...) == NVML_SUCCESS;
  }

  Nvml() {
    if (!library) {
      trouble = "libnvidia-ml.so.1 is not there (no driver, or a container without it)";
      return;
    }
    auto* init = reinterpret_cast<decltype(&nvmlInit_v2)>(dlsym(library, "nvmlInit_v2"));
    nvmlReturn_t status = init ? init() : NVML_ERROR_FUNCTION_NOT_FOUND;
    if (status == NVML_SUCCESS) return;
    auto* text = reinterpret_cast<decltype(&nvmlErrorString)>(dlsym(library, "nvmlErrorString"));
    trouble = text ? text(status) : "NVML error " + std::to_string(status);
    if (status == NVML_ERROR_LIB_RM_VERSION_MISMATCH) trouble = "version mismatch of driver and library";
  }
  bool works() const { return trouble.empty(); }
};

const Nvml& nvml() {
  static const Nvml* instance = new Nvml;  // stays loaded
  return *instance;
}

#define XY_NVML(name, ...) nvml().call(static_cast<decltype(::name)*>(nullptr), #name __VA_OPT__(, ) __VA_ARGS__)

std::optional<PciAddress> address_of(const nvmlPciInfo_t& info) {
  std::string text(info.busId, strnlen(info.busId, sizeof info.busId));
  if (text.starts_with("FFFFFFFF") || text.starts_with("ffffffff")) return std::nullopt;
  return PciAddress::parse(text);
}

std::optional<unsigned> field(nvmlDevice_t device, unsigned id, unsigned scope = 0) {
  nvmlFieldValue_t value{};
  value.fieldId = id;
  value.scopeId = scope;
  if (!XY_NVML(nvmlDeviceGetFieldValues, device, 1, &value) || value.nvmlReturn != NVML_SUCCESS) return std::nullopt;
  switch (value.valueType) {
    case NVML_VALUE_TYPE_UNSIGNED_INT:
      return value.value.uiVal;
    case NVML_VALUE_TYPE_UNSIGNED_LONG:
      return unsigned(value.value.ulVal);
    case NVML_VALUE_TYPE_UNSIGNED_LONG_LONG:
      return unsigned(value.value.ullVal);
    case NVML_VALUE_TYPE_SIGNED_INT:
      return unsigned(value.value.siVal);
    default:
      return std::nullopt;
  }
}

// nullopt: there is no such link, or the driver does not tell.
std::optional<bool> link_active(nvmlDevice_t device, unsigned link) {
  nvmlEnableState_t state{};
  if (XY_NVML(nvmlDeviceGetNvLinkState, device, link, &state)) return state == NVML_FEATURE_ENABLED;
  if (auto value = field(device, NVML_FI_DEV_NVLINK_GET_STATE, link)) return *value == 1;
  return std::nullopt;
}

// Transfers that links repeated or recovered, and flits that came in damaged. Newer GPUs tell them as fields only.
LinkErrors read_errors(nvmlDevice_t device) {
  constexpr std::pair<nvmlNvLinkErrorCounter_t, unsigned> kCounters[] = {
      {NVML_NVLINK_ERROR_DL_REPLAY, NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY},
      {NVML_NVLINK_ERROR_DL_RECOVERY, NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY},
      {NVML_NVLINK_ERROR_DL_CRC_FLIT, NVML_FI_DEV_NVLINK_ERROR_DL_CRC}};
  LinkErrors errors;
  for (unsigned link = 0; link < NVML_NVLINK_MAX_LINKS; ++link) {
    if (!link_active(device, link).value_or(false)) continue;
    for (auto [counter, id] : kCounters) {
      unsigned long long count = 0;
      if (XY_NVML(nvmlDeviceGetNvLinkErrorCounter, device, link, counter, &count)) {
        errors.nvlink = errors.nvlink.value_or(0) + count;
      } else if (auto value = field(device, id, link)) {
        errors.nvlink = errors.nvlink.value_or(0) + *value;
      }
    }
  }
  unsigned replays = 0;
  if (XY_NVML(nvmlDeviceGetPcieReplayCounter, device, &replays)) errors.pcie = replays;
  return errors;
}

void read_links(nvmlDevice_t device, int gpu, GpuDevice& g, std::vector<NvlinkEnd>& ends) {
  for (unsigned link = 0; link < NVML_NVLINK_MAX_LINKS; ++link) {
    std::optional<bool> active = link_active(device, link);
    if (!active) continue;
    g.nvlinks_existing = g.nvlinks_existing.value_or(0) + 1;
    g.nvlinks_active = g.nvlinks_active.value_or(0) + *active;
    if (!*active) {
      g.nvlinks_down.push_back(int(link));
      continue;
    }
    nvmlPciInfo_t remote{};
    nvmlIntNvLinkDeviceType_t type = NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    bool known = XY_NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2, device, link, &remote);
    XY_NVML(nvmlDeviceGetNvLinkRemoteDeviceType, device, link, &type);
    NvlinkEnd end;
    end.gpu = gpu;
    if (known) end.target = address_of(remote);
    // A target that cannot be seen is a switch: its address is hidden from virtual machines.
    end.to_switch = type == NVML_NVLINK_DEVICE_TYPE_SWITCH || (type != NVML_NVLINK_DEVICE_TYPE_GPU && !end.target);
    auto same = std::find_if(ends.begin(), ends.end(), [&](const NvlinkEnd& o) {
      return o.gpu == end.gpu && o.target == end.target && o.to_switch == end.to_switch;
    });
    if (same == ends.end())
      ends.push_back(end);
    else
      ++same->count;
  }
  if (auto speed = field(device, NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON); speed && *speed > 0)
    g.nvlink_gbps = *speed / 1000.0;
}

void read_fabric(nvmlDevice_t device, GpuDevice& g) {
  nvmlGpuFabricInfoV_t info{};
  info.version = nvmlGpuFabricInfo_v2;  // the first one with the health mask; v3 only adds at the end
  if (!XY_NVML(nvmlDeviceGetGpuFabricInfoV, device, &info)) return;
  NvFabric fabric{.state = info.state, .clique = info.cliqueId, .health_mask = info.healthMask, .cluster_uuid = ""};
  constexpr char kHex[] = "0123456789abcdef";
  bool any = false;
  for (unsigned char byte : info.clusterUuid) {
    any |= byte != 0;
    fabric.cluster_uuid += {kHex[byte >> 4], kHex[byte & 15]};
  }
  if (!any) fabric.cluster_uuid.clear();
  if (fabric.state != 0) g.fabric = fabric;
}

void read_state(nvmlDevice_t device, GpuDevice& g) {
  unsigned a = 0, b = 0;
  if (XY_NVML(nvmlDeviceGetMigMode, device, &a, &b)) g.mig = a == NVML_DEVICE_MIG_ENABLE;
  nvmlEnableState_t state{};
  if (XY_NVML(nvmlDeviceGetPersistenceMode, device, &state)) g.persistence = state == NVML_FEATURE_ENABLED;
  nvmlComputeMode_t mode{};
  if (XY_NVML(nvmlDeviceGetComputeMode, device, &mode)) g.exclusive_compute = mode != NVML_COMPUTEMODE_DEFAULT;
  unsigned long long count = 0;
  if (XY_NVML(nvmlDeviceGetTotalEccErrors, device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, &count))
    g.ecc_errors = count > 0;
  if (XY_NVML(nvmlDeviceGetCurrentClocksEventReasons, device, &count)) g.throttle_reasons = count;
  LinkErrors errors = read_errors(device);
  g.nvlink_errors = errors.nvlink;
  g.pcie_replays = errors.pcie;
}

std::optional<int> only_node(nvmlDevice_t device) {
  unsigned long nodes[16] = {};
  if (!XY_NVML(nvmlDeviceGetMemoryAffinity, device, 16, nodes, NVML_AFFINITY_SCOPE_NODE)) return std::nullopt;
  std::optional<int> found;
  for (int i = 0; i < 16 * 64; ++i)
    if (nodes[i / 64] >> (i % 64) & 1) {
      if (found) return std::nullopt;
      found = i;
    }
  return found;
}

std::string cpus_near(nvmlDevice_t device) {
  unsigned long words[64] = {};
  if (!XY_NVML(nvmlDeviceGetCpuAffinityWithinScope, device, 64, words, NVML_AFFINITY_SCOPE_NODE)) return "";
  std::vector<int> cpus;
  for (int i = 0; i < 64 * 64; ++i)
    if (words[i / 64] >> (i % 64) & 1) cpus.push_back(i);
  return format_cpulist(cpus);
}

GpuDevice read_gpu(nvmlDevice_t device, GpuDevice g) {
  char text[128] = "";
  if (XY_NVML(nvmlDeviceGetName, device, text, unsigned(sizeof text))) g.name = text;
  if (XY_NVML(nvmlDeviceGetUUID, device, text, unsigned(sizeof text))) g.uuid = text;
  int major = 0, minor = 0;
  if (XY_NVML(nvmlDeviceGetCudaComputeCapability, device, &major, &minor)) g.sm = major * 10 + minor;
  nvmlMemory_t memory{};
  if (XY_NVML(nvmlDeviceGetMemoryInfo, device, &memory)) g.memory = int64_t(memory.total);
  unsigned value = 0;
  if (g.pcie.generation == 0 && XY_NVML(nvmlDeviceGetCurrPcieLinkGeneration, device, &value))
    g.pcie.generation = int(value);
  if (g.pcie.width == 0 && XY_NVML(nvmlDeviceGetCurrPcieLinkWidth, device, &value)) g.pcie.width = int(value);
  // The generation of the card alone where the driver tells it: the other is that of card and slot together.
  if (g.pcie_max.generation == 0 && (XY_NVML(nvmlDeviceGetGpuMaxPcieLinkGeneration, device, &value) ||
                                     XY_NVML(nvmlDeviceGetMaxPcieLinkGeneration, device, &value)))
    g.pcie_max.generation = int(value);
  if (g.pcie_max.width == 0 && XY_NVML(nvmlDeviceGetMaxPcieLinkWidth, device, &value)) g.pcie_max.width = int(value);
  if (!g.numa) g.numa = only_node(device);
  if (g.cpus.empty()) g.cpus = cpus_near(device);
  read_state(device, g);
  read_fabric(device, g);
  return g;
}

PathClass class_of(nvmlGpuTopologyLevel_t level) {
  switch (level) {
    case NVML_TOPOLOGY_INTERNAL:
    case NVML_TOPOLOGY_SINGLE:
      return PathClass::pix;
    case NVML_TOPOLOGY_MULTIPLE:
      return PathClass::pxb;
    case NVML_TOPOLOGY_HOSTBRIDGE:
      return PathClass::phb;
    case NVML_TOPOLOGY_NODE:
      return PathClass::node;
    case NVML_TOPOLOGY_SYSTEM:
      return PathClass::sys;
  }
  return PathClass::unknown;
}

PeerAccess access_of(nvmlGpuP2PStatus_t status) {
  switch (int(status)) {
    case NVML_P2P_STATUS_OK:
      return PeerAccess::ok;
    case NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED:
      return PeerAccess::chipset;
    case NVML_P2P_STATUS_GPU_NOT_SUPPORTED:
    case NVML_P2P_STATUS_NOT_SUPPORTED:
      return PeerAccess::not_supported;
    case NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED:
      return PeerAccess::topology;
    case NVML_P2P_STATUS_DISABLED_BY_REGKEY:
      return PeerAccess::disabled;
    default:
      return PeerAccess::unknown;
  }
}

void read_pairs(const std::vector<nvmlDevice_t>& devices, Topology& t) {
  for (size_t i = 0; i < devices.size(); ++i)
    for (size_t j = 0; j < devices.size(); ++j) {
      if (i == j) continue;
      DevicePair& p = t.pairs[i][j];
      nvmlGpuTopologyLevel_t level{};
      if (XY_NVML(nvmlDeviceGetTopologyCommonAncestor, devices[i], devices[j], &level)) p.path = class_of(level);
      nvmlGpuP2PStatus_t read{}, write{};
      if (!XY_NVML(nvmlDeviceGetP2PStatus, devices[i], devices[j], NVML_P2P_CAPS_INDEX_READ, &read) ||
          !XY_NVML(nvmlDeviceGetP2PStatus, devices[i], devices[j], NVML_P2P_CAPS_INDEX_WRITE, &write))
        continue;
      p.peer = access_of(read == NVML_P2P_STATUS_OK ? write : read);
    }
}

}  // namespace

std::string add_nvml(SysfsMachine& machine) {
  if (!nvml().works()) return nvml().trouble;
  Topology& t = machine.topology;
  char text[96] = "";
  if (XY_NVML(nvmlSystemGetDriverVersion, text, unsigned(sizeof text))) t.hosts[0].driver = text;
  int cuda = 0;
  if (XY_NVML(nvmlSystemGetCudaDriverVersion_v2, &cuda))
    t.hosts[0].cuda = std::to_string(cuda / 1000) + "." + std::to_string(cuda % 1000 / 10);
  unsigned count = 0;
  if (!XY_NVML(nvmlDeviceGetCount_v2, &count)) return "it does not count its GPUs";
  // The GPUs that the driver gives, in its order; what the bus has beyond them is not for this process.
  std::vector<GpuDevice> gpus;
  std::vector<PciPlace> places;
  std::vector<nvmlDevice_t> devices;
  std::vector<NvlinkEnd> ends;
  for (unsigned i = 0; i < count; ++i) {
    nvmlDevice_t device{};
    nvmlPciInfo_t info{};
    if (!XY_NVML(nvmlDeviceGetHandleByIndex_v2, i, &device) || !XY_NVML(nvmlDeviceGetPciInfo_v3, device, &info))
      continue;
    GpuDevice g;
    PciPlace place;
    g.pci = address_of(info);
    for (size_t k = 0; k < t.gpus.size(); ++k)
      if (t.gpus[k].pci == g.pci) {
        g = t.gpus[k];
        place = machine.gpu_places[k];
      }
    g.index = int(i);
    g = read_gpu(device, g);
    read_links(device, int(gpus.size()), g, ends);
    gpus.push_back(g);
    places.push_back(place);
    devices.push_back(device);
  }
  t.gpus = gpus;
  machine.gpu_places = places;
  places.insert(places.end(), machine.nic_places.begin(), machine.nic_places.end());
  derive_pci_pairs(t, places, 2);
  read_pairs(devices, t);
  add_nvlinks(t, ends, false);
  for (size_t i = 0; i < devices.size(); ++i)
    if (auto links = field(devices[i], NVML_FI_DEV_C2C_LINK_COUNT); links && *links > 0 && t.gpus[i].numa) {
      FabricLink c2c{.a = t.device_name(int(i)),
                     .b = "NUMA" + std::to_string(*t.gpus[i].numa),
                     .kind = LinkKind::c2c,
                     .count = int(*links),
                     .gbps = {}};
      if (auto speed = field(devices[i], NVML_FI_DEV_C2C_LINK_GET_MAX_BW)) c2c.gbps = *speed * *links / 1000.0;
      t.links.push_back(c2c);
    }
  return "";
}

std::optional<PcieLink> nvml_current_pcie(const PciAddress& gpu) {
  if (!nvml().works()) return std::nullopt;
  nvmlDevice_t device{};
  PcieLink link;
  unsigned value = 0;
  if (!XY_NVML(nvmlDeviceGetHandleByPciBusId_v2, gpu.str().c_str(), &device)) return std::nullopt;
  if (XY_NVML(nvmlDeviceGetCurrPcieLinkGeneration, device, &value)) link.generation = int(value);
  if (XY_NVML(nvmlDeviceGetCurrPcieLinkWidth, device, &value)) link.width = int(value);
  return link;
}

LinkErrors nvml_link_errors(const PciAddress& gpu) {
  nvmlDevice_t device{};
  if (!nvml().works() || !XY_NVML(nvmlDeviceGetHandleByPciBusId_v2, gpu.str().c_str(), &device)) return {};
  return read_errors(device);
}

#else

std::string add_nvml(SysfsMachine&) {
  return "this build has no NVML: install nvml.h (pip nvidia-nvml-dev) and configure again";
}
std::optional<PcieLink> nvml_current_pcie(const PciAddress&) { return std::nullopt; }
LinkErrors nvml_link_errors(const PciAddress&) { return {}; }

#endif

}  // namespace xylem
