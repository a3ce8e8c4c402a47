// SPDX-License-Identifier: Apache-2.0
// On a machine with GPUs: what is detected agrees with what NCCL writes of the machine, and measurements are sane.
// XY_TOPOLOGY_KEEP=folder: NCCL's XML and our JSON are left there, nccl.xml and xylem.json, whether they agree or not.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "core/device/device.h"
#include "distributed/topology/detect.h"
#include "distributed/topology/measure.h"
#include "tests/support.h"

namespace xylem {
namespace {

template <class F>
F* symbol(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_DEFAULT, name));
}

// NCCL writes the topology of a communicator's GPUs when it is made.
std::string nccl_dump(int gpus) {
  auto* init = symbol<int(void**, int, const int*)>("ncclCommInitAll");
  auto* destroy = symbol<int(void*)>("ncclCommDestroy");
  if (!init || !destroy) return "";
  Scratch dir;
  setenv("NCCL_TOPO_DUMP_FILE", (dir / "topo.xml").c_str(), 1);
  std::vector<void*> communicators(size_t(gpus), nullptr);
  int status = init(communicators.data(), gpus, nullptr);
  unsetenv("NCCL_TOPO_DUMP_FILE");
  EXPECT_EQ(status, 0);
  for (void* c : communicators)
    if (c) destroy(c);
  return read_file(dir / "topo.xml");
}

// NCCL has no class NODE.
PathClass folded(PathClass c) { return c == PathClass::node ? PathClass::phb : c; }

TEST(TopologyCuda, DetectionAgreesWithNcclsDump) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  std::string xml = nccl_dump(cuda_device_count());
  if (xml.empty()) GTEST_SKIP() << "NCCL is not in this build, or writes no topology";
  Topology theirs, ours = detect_topology();
  if (const char* folder = std::getenv("XY_TOPOLOGY_KEEP")) {
    std::filesystem::create_directories(folder);
    write_file(std::string(folder) + "/nccl.xml", xml);
    write_file(std::string(folder) + "/xylem.json", to_json(ours));
  }
  try {
    theirs = parse_nccl_xml(xml, "NCCL");
  } catch (const std::exception& e) {
    GTEST_SKIP() << e.what();
  }
  std::vector<int> at;  // ours, of each of theirs
  for (const GpuDevice& g : theirs.gpus) {
    SCOPED_TRACE(g.pci->str());
    int found = -1;
    for (size_t i = 0; i < ours.gpus.size(); ++i)
      if (ours.gpus[i].pci == g.pci) found = int(i);
    ASSERT_GE(found, 0) << "NCCL has a GPU that detection has not:\n" << xml;
    at.push_back(found);
    const GpuDevice& mine = ours.gpus[size_t(found)];
    EXPECT_EQ(mine.sm, g.sm);
    if (g.numa) {
      EXPECT_EQ(mine.numa, g.numa);
    }
    if (g.nvlinks_active) {
      EXPECT_EQ(mine.nvlinks_active, g.nvlinks_active);
    }
    // Theirs is what card and slot can do together.
    if (g.pcie_max.generation > 0) {
      EXPECT_LE(g.pcie_max.generation, mine.pcie_max.generation);
    }
    if (g.pcie_max.width > 0) {
      EXPECT_LE(g.pcie_max.width, mine.pcie_max.width);
    }
  }
  for (size_t i = 0; i < at.size(); ++i)
    for (size_t j = 0; j < at.size(); ++j) {
      const DevicePair &x = theirs.pair(int(i), int(j)), &y = ours.pair(at[i], at[j]);
      EXPECT_EQ(x.nvlinks, y.nvlinks) << i << " " << j;
      if (x.path != PathClass::unknown && y.path != PathClass::unknown) {
        EXPECT_EQ(folded(x.path), folded(y.path)) << i << " " << j;
      }
    }
  EXPECT_EQ(theirs.hosts[0].cpu_vendor, ours.hosts[0].cpu_vendor);
  EXPECT_EQ(theirs.hosts[0].cpu_model_number, ours.hosts[0].cpu_model_number);
}

TEST(TopologyCuda, DetectionKnowsTheGpus) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  Topology t = detect_topology();
  ASSERT_GE(int(t.gpus.size()), cuda_device_count());
  for (const GpuDevice& g : t.gpus) {
    EXPECT_FALSE(g.name.empty());
    EXPECT_TRUE(g.pci && g.sm && g.memory);
    EXPECT_FALSE(g.uuid.empty());
  }
  EXPECT_FALSE(t.hosts[0].driver.empty());
}

TEST(TopologyCuda, MeasurementsAreSane) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  Topology t = detect_topology();
  measure(t);
  int measured = 0;
  for (const GpuDevice& g : t.gpus)
    if (g.host_copy_gbps) {
      ++measured;
      EXPECT_GT(*g.host_copy_gbps, 1);
      EXPECT_LT(*g.host_copy_gbps, 500);
    }
  EXPECT_EQ(measured, cuda_device_count());
  for (int a = 0; a < int(t.gpus.size()); ++a)
    for (int b = 0; b < int(t.gpus.size()); ++b)
      if (a != b && t.pair(a, b).copies_right) {
        EXPECT_TRUE(*t.pair(a, b).copies_right) << a << " " << b;
      }
}

}  // namespace
}  // namespace xylem
