// SPDX-License-Identifier: Apache-2.0
// What a rank says about itself before the first collective, so that all ranks can be compared.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "distributed/world/world.h"

namespace xylem {

struct NetworkInterface {
  std::string name, address;  // "eth0", "10.0.0.5"
  int prefix = 0;             // bits of the subnet
  bool loopback = false;
};

struct RankInfo {
  int rank = 0, local_rank = 0, local_size = 1, node = 0;
  std::string host, boot_id;  // boot_id: of the running kernel, the same in all containers of a machine
  int64_t pid = 0;
  std::string pid_namespace;
  std::string device = "cpu";  // "cuda:0"
  std::string gpu, pci;        // name and bus id, "" on the CPU
  int gpus = 0;                // that this rank sees
  bool share_gpu = false;      // XY_SHARE_GPU=1
  std::optional<int> numa;
  std::string cpus;  // a cpulist, "0-7,16-23"
  int cpu_count = 0, cpus_of_machine = 0;
  bool bound = false;  // by Xylem
  int threads = 1;
  std::string nic;                            // nearest InfiniBand or RoCE device, "" none
  std::string executable, arguments, config;  // hashes; executable covers the library too
  std::string config_text;                    // only where configurations differ; not part of the JSON
  std::string version;                        // of Xylem
  int cuda = 0, driver = 0, nccl = 0;         // as the libraries count; 0: none
  std::optional<int64_t> shm_bytes;           // size of /dev/shm
  std::optional<int64_t> memlock_bytes;       // limit on locked memory; none: unlimited
  bool infiniband = false;
  std::map<std::string, std::string> nccl_variables;  // NCCL_* of the environment
  std::vector<NetworkInterface> interfaces;           // that are up
};

RankInfo describe_this_process();  // all but device, gpu, pci, numa, bound, nic, arguments, config
std::string to_json(const RankInfo& info);
RankInfo parse_rank_info(const std::string& json);

// PCI bus id, NUMA node and nearest network device of a GPU; "" and none where unknown.
std::string pci_of_gpu(int cuda_index);
std::optional<int> numa_of_pci(const std::string& pci);
std::string nearest_nic(const std::string& pci);

// The table that rank 0 prints.
std::string launch_report(const std::vector<RankInfo>& ranks);

// "2.28.9" of 22809, "13.0" of 13000
std::string nccl_version_text(int version);
std::string cuda_version_text(int version);

std::string hash_text(const std::string& text);  // 16 hex digits

}  // namespace xylem
