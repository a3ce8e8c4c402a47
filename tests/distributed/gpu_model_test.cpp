// SPDX-License-Identifier: Apache-2.0
// Names that drivers give to GPUs, and what the one table of GPUs makes of them.
#include "distributed/topology/gpu_model.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace xylem {
namespace {

std::string key(const std::string& name) {
  const GpuModel* m = find_gpu_model(name);
  return m ? m->key : "";
}

TEST(GpuModels, NamesOfDrivers) {
  const std::map<std::string, std::string> names{
      {"Tesla P100-SXM2-16GB", "P100 SXM 16GB"},
      {"Tesla P100-PCIE-16GB", "P100 PCIe 16GB"},
      {"Tesla V100-SXM2-16GB", "V100 SXM 16GB"},
      {"Tesla V100-SXM2-32GB", "V100 SXM 32GB"},
      {"Tesla V100-SXM3-32GB", "V100 SXM 32GB"},
      {"Tesla V100-PCIE-16GB", "V100 PCIe 16GB"},
      {"Tesla V100S-PCIE-32GB", "V100S PCIe 32GB"},
      {"Tesla T4", "T4 16GB"},
      {"TITAN RTX", "TITAN RTX"},
      {"Quadro RTX 8000", "RTX 8000"},
      {"NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"},
      {"GeForce RTX 2080", "RTX 2080"},
      {"A100-SXM4-40GB", "A100 SXM 40GB"},
      {"NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"},
      {"NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"},
      {"NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"},
      {"NVIDIA A800-SXM4-80GB", "A800 SXM 80GB"},
      {"NVIDIA A30", "A30 24GB"},
      {"NVIDIA A40", "A40 48GB"},
      {"NVIDIA A10", "A10 24GB"},
      {"NVIDIA A10G", "A10G 24GB"},
      {"NVIDIA RTX A4000", "RTX A4000"},
      {"NVIDIA RTX A5000", "RTX A5000"},
      {"Quadro RTX A6000", "RTX A6000"},
      {"NVIDIA RTX A6000", "RTX A6000"},
      {"NVIDIA GeForce RTX 3090", "RTX 3090"},
      {"NVIDIA GeForce RTX 3090 Ti", "RTX 3090 Ti"},
      {"NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"},
      {"NVIDIA GeForce RTX 4090", "RTX 4090"},
      {"NVIDIA L4", "L4 24GB"},
      {"NVIDIA L40", "L40 48GB"},
      {"NVIDIA L40S", "L40S 48GB"},
      {"NVIDIA H100 80GB HBM3", "H100 SXM 80GB"},
      {"NVIDIA H100 PCIe", "H100 PCIe 80GB"},
      {"NVIDIA H100 NVL", "H100 NVL 94GB"},
      {"NVIDIA H200", "H200 SXM 141GB"},
      {"NVIDIA H200 NVL", "H200 NVL 141GB"},
      {"NVIDIA GH200 480GB", "GH200 480GB"},
      {"NVIDIA GH200 144G HBM3e", "GH200 144G"},
      {"NVIDIA H20", "H20 96GB"},
      {"NVIDIA H800", "H800 SXM 80GB"},
      {"NVIDIA H800 PCIe", "H800 PCIe 80GB"},
      {"NVIDIA B200", "B200 SXM"},
      {"NVIDIA GB200", "GB200"},
      {"NVIDIA B300 SXM6 AC", "B300 SXM"},
      {"NVIDIA GB300", "GB300"},
      {"NVIDIA GeForce RTX 5090", "RTX 5090"},
      {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell Workstation"},
      {"NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server"},
      {"NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 Blackwell Max-Q Workstation"},
  };
  for (const auto& [name, expected] : names) EXPECT_EQ(key(name), expected) << name;
}

TEST(GpuModels, NamesThatPeopleWrite) {
  EXPECT_EQ(key("A100"), "A100 PCIe 80GB");
  EXPECT_EQ(key("H100 SXM5"), "H100 SXM 80GB");
  EXPECT_EQ(key("h100 80gb"), "H100 SXM 80GB");
  EXPECT_EQ(key("A6000"), "RTX A6000");
  EXPECT_EQ(key("H200 SXM"), "H200 SXM 141GB");
  EXPECT_EQ(key("L4 PCIe"), "L4 24GB");
}

// Relatives of known GPUs, whose figures are others: slower, halved, cut in slices.
TEST(GpuModels, RelativesAreNotTakenForTheirNamesakes) {
  for (const char* name : {"NVIDIA RTX A1000",
                           "NVIDIA RTX A2000 12GB",
                           "NVIDIA RTX 4000 Ada Generation",
                           "NVIDIA RTX 4000 SFF Ada Generation",
                           "Quadro RTX 4000",
                           "Quadro RTX 6000",
                           "NVIDIA GeForce RTX 4090 D",
                           "NVIDIA GeForce RTX 4090 Laptop GPU",
                           "NVIDIA GeForce RTX 3080",
                           "NVIDIA GeForce RTX 2080 SUPER",
                           "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
                           "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
                           "GRID A100D-10C",
                           "NVIDIA A40-48Q",
                           "NVIDIA A10-24Q",
                           "NVIDIA A100-SXM-64GB",
                           "NVIDIA A100X",
                           "NVIDIA A2",
                           "NVIDIA A16",
                           "Tesla T40",
                           "NVIDIA H20-3e",
                           "NVIDIA H20 141GB",
                           "NVIDIA L40G",
                           "NVIDIA L400",
                           "NVIDIA RTX PRO 5000 Blackwell",
                           "NVIDIA GB10",
                           "GeForce GTX 1080 Ti",
                           "Voodoo 2",
                           "NVIDIA",
                           ""})
    EXPECT_EQ(key(name), "") << name;
}

TEST(GpuModels, EveryRowIsFoundAndPlausible) {
  for (const GpuModel& m : gpu_models()) {
    EXPECT_EQ(key(m.key), m.key);
    EXPECT_TRUE(m.nvlinks > 0 || (m.bridge_links == 0 && m.link_gbps == 0)) << m.key;
    if (m.bridged()) {
      EXPECT_EQ(m.nvlinks % m.bridge_links, 0) << m.key;
    }
    EXPECT_GT(m.memory_gb, 0) << m.key;
    EXPECT_GT(m.memory_gbps, 0) << m.key;
    if (m.half_tflops > 0) {
      EXPECT_GE(m.half_tflops, m.tf32_tflops) << m.key;
      EXPECT_GE(m.tf32_tflops, m.single_tflops) << m.key;
    }
  }
}

TEST(GpuModels, EveryPciIdNamesAModel) {
  for (const char* id :
       {"0x1db1", "0x1eb8", "0x20b0", "0x20b5", "0x20f1", "0x2204", "0x2230", "0x2237", "0x2321", "0x2324", "0x2330",
        "0x2331", "0x2335", "0x233b", "0x2684", "0x26b9", "0x2901", "0x2941", "0x2b85"}) {
    ASSERT_NE(gpu_name_of_pci_id(id), "") << id;
    EXPECT_NE(key(gpu_name_of_pci_id(id)), "") << id;
  }
  EXPECT_EQ(gpu_name_of_pci_id("0x0000"), "");
}

}  // namespace
}  // namespace xylem
