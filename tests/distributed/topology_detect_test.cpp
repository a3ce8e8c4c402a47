// SPDX-License-Identifier: Apache-2.0
// Detection: a made-up machine below a folder, and this one, whatever it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "distributed/topology/cpulist.h"
#include "distributed/topology/detect.h"
#include "tests/support.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

// Two sockets. On the first a switch with two GPUs and an InfiniBand card, and a GPU at a root port of its own; on the
// second a GPU in a narrow slot and an Ethernet card.
class FakeMachine : public testing::Test {
 protected:
  void SetUp() override {
    cpu("GenuineIntel", "6", "143", "fpu sse");
    node(0, "0-15,32-47", "10 21");
    node(1, "16-31,48-63", "21 10");
    node(2, "", "80 80");  // memory of a GPU
    bridge("pci0000:10/0000:10:01.0", 5, 16);
    bridge("pci0000:10/0000:10:01.0/0000:11:00.0", 5, 16);
    for (const char* port : {"0000:12:00.0", "0000:12:01.0", "0000:12:02.0"})
      bridge("pci0000:10/0000:10:01.0/0000:11:00.0/" + std::string(port), 5, 16);
    std::string sw = "pci0000:10/0000:10:01.0/0000:11:00.0/";
    gpu(sw + "0000:12:00.0/0000:13:00.0", "0x2330", 0, "0-15,32-47", 5, 16, 16);
    gpu(sw + "0000:12:01.0/0000:14:00.0", "0x2330", 0, "0-15,32-47", 5, 16, 16);
    pci(sw + "0000:12:02.0/0000:15:00.0", "0x020700", "0x15b3", "0x1021", 0, "0-15,32-47", 5, 16, 16);
    bridge("pci0000:10/0000:10:02.0", 5, 16);
    gpu("pci0000:10/0000:10:02.0/0000:18:00.0", "0x2330", 0, "0-15,32-47", 5, 16, 16);
    bridge("pci0000:80/0000:80:01.0", 4, 8);
    gpu("pci0000:80/0000:80:01.0/0000:81:00.0", "0x2330", 1, "16-31,48-63", 5, 16, 8);
    bridge("pci0000:90/0000:90:01.0", 4, 8);
    pci("pci0000:90/0000:90:01.0/0000:91:00.0", "0x020000", "0x8086", "0x1592", 1, "16-31,48-63", 4, 8, 8);
    infiniband("mlx5_0", sw + "0000:12:02.0/0000:15:00.0");
    net("ib0", sw + "0000:12:02.0/0000:15:00.0", "200000", "up");
    net("eth0", "pci0000:90/0000:90:01.0/0000:91:00.0", "100000", "up");
    net("eth1", "pci0000:90/0000:90:01.0/0000:91:00.0", "-1", "down");
    write_file(sys() + "class/net/lo/operstate", "unknown\n");
    write_file(sys() + "devices/system/cpu/online", "0-63\n");
  }

  std::string sys() const { return dir.path() + "/sys/"; }
  static std::string last(const std::string& path) { return path.substr(path.rfind('/') + 1); }
  static std::string speed(int generation) {
    const char* speeds[] = {"", "2.5", "5.0", "8.0", "16.0", "32.0"};
    return std::string(speeds[generation]) + " GT/s PCIe\n";
  }
  void cpu(const char* vendor, const char* family, const char* model, const std::string& flags) {
    write_file(dir / "proc/cpuinfo", "processor\t: 0\nvendor_id\t: " + std::string(vendor) +
                                         "\ncpu family\t: " + family + "\nmodel\t\t: " + model +
                                         "\nmodel name\t: Some CPU\nflags\t\t: " + flags + "\n\n");
  }
  void node(int id, const std::string& cpus, const std::string& distances) {
    std::string at = sys() + "devices/system/node/node" + std::to_string(id);
    write_file(at + "/cpulist", cpus + "\n");
    write_file(at + "/distance", distances + "\n");
  }
  void pci(const std::string& path, const std::string& kind, const std::string& vendor, const std::string& device,
           int numa, const std::string& cpus, int generation, int width, int width_now) {
    std::string at = sys() + "devices/" + path;
    write_file(at + "/class", kind + "\n");
    write_file(at + "/vendor", vendor + "\n");
    write_file(at + "/device", device + "\n");
    write_file(at + "/numa_node", std::to_string(numa) + "\n");
    write_file(at + "/local_cpulist", cpus + "\n");
    write_file(at + "/max_link_speed", speed(generation));
    write_file(at + "/current_link_speed", speed(1));
    write_file(at + "/max_link_width", std::to_string(width) + "\n");
    write_file(at + "/current_link_width", std::to_string(width_now) + "\n");
    fs::create_directories(sys() + "bus/pci/devices");
    fs::create_directory_symlink(at, sys() + "bus/pci/devices/" + last(path));
  }
  void bridge(const std::string& path, int generation, int width) {
    pci(path, "0x060400", "0x8086", "0x352a", 0, "", generation, width, width);
  }
  void gpu(const std::string& path, const std::string& device, int numa, const std::string& cpus, int generation,
           int width, int width_now) {
    pci(path, "0x030200", "0x10de", device, numa, cpus, generation, width, width_now);
  }
  void infiniband(const std::string& name, const std::string& path) {
    std::string at = sys() + "class/infiniband/" + name;
    write_file(at + "/ports/1/state", "4: ACTIVE\n");
    write_file(at + "/ports/1/rate", "400 Gb/sec (4X NDR)\n");
    write_file(at + "/ports/1/link_layer", "InfiniBand\n");
    fs::create_directory_symlink(sys() + "devices/" + path, at + "/device");
  }
  void net(const std::string& name, const std::string& path, const std::string& mbits, const std::string& state) {
    std::string at = sys() + "class/net/" + name;
    write_file(at + "/speed", mbits + "\n");
    write_file(at + "/operstate", state + "\n");
    fs::create_directory_symlink(sys() + "devices/" + path, at + "/device");
  }
  std::string row(const Topology& t, int a) {
    std::string text;
    for (int b = 0; b < t.devices(); ++b) text += (b ? " " : "") + t.pair(a, b).str();
    return text;
  }
  Scratch dir;
};

TEST_F(FakeMachine, TreeNodesAndCards) {
  Topology t = read_sysfs(dir.path()).topology;
  ASSERT_EQ(t.gpus.size(), 4u);
  EXPECT_EQ(t.gpus[0].pci->str(), "0000:13:00.0");
  EXPECT_EQ(t.gpus[0].parent->str(), "0000:12:00.0");
  EXPECT_EQ(t.gpus[0].name, "H100 80GB HBM3");
  EXPECT_EQ(t.gpus[0].sm, 90);
  EXPECT_EQ(t.gpus[3].numa, 1);
  EXPECT_EQ(t.gpus[3].cpus, "16-31,48-63");
  EXPECT_EQ(t.gpus[3].pcie_max, (PcieLink{5, 16}));
  EXPECT_EQ(t.gpus[3].pcie, (PcieLink{1, 8}));
  ASSERT_EQ(t.nics.size(), 2u) << "ib0 is mlx5_0, eth1 is on the card of eth0";
  EXPECT_EQ(t.nics[0].name, "mlx5_0");
  EXPECT_TRUE(t.nics[0].infiniband && t.nics[0].up);
  EXPECT_DOUBLE_EQ(*t.nics[0].gbps, 50);
  EXPECT_DOUBLE_EQ(*t.nics[1].gbps, 12.5);
  ASSERT_EQ(t.numa.size(), 2u) << "a node without CPUs is no place for a process";
  EXPECT_THAT(t.numa[1].distance, ElementsAre(21, 10));
  EXPECT_EQ(t.bridges.size(), 8u);
  EXPECT_EQ(row(t, 0), "X PIX PHB SYS PIX SYS");
  EXPECT_EQ(row(t, 3), "SYS SYS SYS X SYS NODE");
  EXPECT_DOUBLE_EQ(*t.pair(0, 1).gbps, 48);
  EXPECT_DOUBLE_EQ(*t.pair(0, 3).gbps, 12) << "the slot of GPU3 has eight lanes of Gen4";
  EXPECT_EQ(t.hosts[0].cpu_vendor, "GenuineIntel");
  EXPECT_EQ(t.hosts[0].cpu_model_number, 143);
  EXPECT_FALSE(t.hosts[0].virtual_machine);
}

TEST_F(FakeMachine, NarrowSlotIsFound) {
  SysfsMachine m = read_sysfs(dir.path());
  bool found = false;
  for (const Finding& f : find_topology_problems(m.topology))
    if (f.code == "PCIE_WIDTH") {
      found = true;
      EXPECT_THAT(f.subjects, ElementsAre("GPU3"));
      EXPECT_THAT(f.what, testing::HasSubstr("its slot has no more lanes"));
    }
  EXPECT_TRUE(found);
}

TEST_F(FakeMachine, AcsAndIommu) {
  Environment e = read_sysfs(dir.path()).environment;
  EXPECT_FALSE(e.acs_redirects) << "only root reads it";
  EXPECT_EQ(e.iommu_translates, false);
  EXPECT_EQ(e.nvidia_on_pci, 4);
  EXPECT_EQ(e.online_cpus, "0-63");
  auto config = [&](const std::string& path, char control) {
    std::string bytes(4096, '\0');
    bytes[0x100] = 0x01;  // another capability first: next at 0x150
    bytes[0x103] = 0x15;
    bytes[0x150] = 0x0d;
    bytes[0x156] = control;
    write_file(sys() + "devices/" + path + "/config", bytes);
  };
  config("pci0000:10/0000:10:01.0", 0x1d);
  config("pci0000:10/0000:10:02.0", 0);
  write_file(sys() + "devices/pci0000:10/0000:10:02.0/0000:18:00.0/iommu_group/type", "DMA-FQ\n");
  e = read_sysfs(dir.path()).environment;
  ASSERT_TRUE(e.acs_redirects);
  EXPECT_THAT(*e.acs_redirects, ElementsAre(*PciAddress::parse("0000:10:01.0")));
  EXPECT_EQ(e.iommu_translates, true);
}

TEST_F(FakeMachine, VirtualMachineWithoutNumaNodes) {
  cpu("AuthenticAMD", "25", "17", "fpu hypervisor sse");
  write_file(sys() + "devices/pci0000:80/0000:80:01.0/0000:81:00.0/numa_node", "-1\n");
  write_file(sys() + "devices/pci0000:80/0000:80:01.0/0000:81:00.0/max_link_width", "255\n");
  Topology t = read_sysfs(dir.path()).topology;
  EXPECT_TRUE(t.hosts[0].virtual_machine);
  EXPECT_FALSE(t.gpus[3].numa);
  EXPECT_EQ(t.gpus[3].pcie_max.width, 0);
  EXPECT_EQ(t.pair(0, 3).path, PathClass::unknown) << "not guessed";
}

TEST(Detect, AnEmptyFolderIsAnEmptyMachine) {
  Scratch dir;
  Topology t = read_sysfs(dir.path()).topology;
  EXPECT_EQ(t.devices(), 0);
  EXPECT_EQ(t.hosts.size(), 1u);
}

TEST(Detect, ThisMachine) {
  Detection d = detect();
  const Topology& t = d.topology;
  EXPECT_EQ(t.source, TopologySource::live);
  ASSERT_EQ(t.hosts.size(), 1u);
  char name[256] = "";
  gethostname(name, sizeof name);
  EXPECT_EQ(t.hosts[0].name, name);
  EXPECT_FALSE(t.hosts[0].arch.empty());
  auto allowed = parse_cpulist(d.environment.allowed_cpus);
  ASSERT_TRUE(allowed);
  EXPECT_FALSE(allowed->empty());
  EXPECT_GT(d.environment.shm_bytes.value_or(1), 0);
  if (fs::exists("/sys/devices/system/node/node0/cpulist")) {
    EXPECT_FALSE(t.numa.empty());
  }
  EXPECT_EQ(to_json(parse_topology_json(to_json(t), t.origin)), to_json(t));
  for (const Finding& f : find_problems(t, d.environment)) {
    EXPECT_FALSE(f.what.empty());
  }
}

TEST(JoinHosts, NetworkBetweenHostsAndNvlinkWhereADomainSpansThem) {
  Topology one = load_topology(std::string(XY_FIXTURES) + "/topologies/gb200_tray_4.json");
  one.hosts[0].name = "tray0";
  Topology two = one;
  two.hosts[0].name = "tray1";
  Topology apart = join_hosts({one, two});
  EXPECT_EQ(apart.pair(0, 4).path, PathClass::net);
  EXPECT_EQ(apart.device_name(5), "tray1:GPU1");
  EXPECT_EQ(apart.islands().size(), 2u);
  for (Topology* t : {&one, &two})
    for (GpuDevice& g : t->gpus) g.fabric = NvFabric{.state = 3, .clique = 1, .health_mask = 0, .cluster_uuid = "ab"};
  Topology joined = join_hosts({one, two});
  EXPECT_EQ(joined.pair(0, 4).str(), "NV18");
  EXPECT_EQ(joined.islands().size(), 1u);
  EXPECT_EQ(to_json(parse_topology_json(to_json(joined), joined.origin)), to_json(joined));
  two.gpus[0].fabric->clique = 2;
  EXPECT_EQ(join_hosts({one, two}).pair(0, 4).path, PathClass::net);
}

}  // namespace
}  // namespace xylem
