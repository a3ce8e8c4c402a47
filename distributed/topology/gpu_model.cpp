// SPDX-License-Identifier: Apache-2.0
#include "distributed/topology/gpu_model.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace xylem {
namespace {

// The first entry whose words all occur in the name is the model, so what is special stands before what is general.
constexpr GpuModel kModels[] = {
    {"P100 SXM", 60, 4, false, 20, 3, true},
    {"P100", 60, 0, false, 0, 3, true},
    {"V100 PCIE", 70, 0, false, 0, 3, true},
    {"V100", 70, 6, false, 25.781, 3, true},
    {"T4", 75, 0, false, 0, 3, true},
    {"TITAN RTX", 75, 2, true, 25.781, 3, false},
    {"RTX 2080", 75, 2, true, 25.781, 3, false},
    {"RTX 8000", 75, 2, true, 25.781, 3, false},
    {"A100 SXM", 80, 12, false, 25, 4, true},
    {"A100", 80, 12, true, 25, 4, true},
    {"A800 SXM", 80, 8, false, 25, 4, true},
    {"A800", 80, 8, true, 25, 4, true},
    {"A30", 80, 4, true, 25, 4, true},
    {"A40", 86, 4, true, 14.062, 4, true},
    {"A10G", 86, 0, false, 0, 4, true},
    {"A10", 86, 0, false, 0, 4, true},
    {"A6000", 86, 4, true, 14.062, 4, false},
    {"A5500", 86, 4, true, 14.062, 4, false},
    {"A5000", 86, 4, true, 14.062, 4, false},
    {"A4500", 86, 4, true, 14.062, 4, false},
    {"RTX 3090", 86, 4, true, 14.062, 4, false},
    {"RTX 6000 Ada", 89, 0, false, 0, 4, false},
    {"RTX 4090", 89, 0, false, 0, 4, false},
    {"L40S", 89, 0, false, 0, 4, true},
    {"L40", 89, 0, false, 0, 4, true},
    {"L4", 89, 0, false, 0, 4, true},
    {"H100 PCIe", 90, 12, true, 26.562, 5, true},
    {"H100 NVL", 90, 12, true, 26.562, 5, true},
    {"H100", 90, 18, false, 26.562, 5, true},
    {"H200 NVL", 90, 18, true, 26.562, 5, true},
    {"H200", 90, 18, false, 26.562, 5, true},
    {"GH200", 90, 18, false, 26.562, 5, true},
    {"H20", 90, 18, false, 26.562, 5, true},
    {"H800 PCIe", 90, 8, true, 26.562, 5, true},
    {"H800", 90, 8, false, 26.562, 5, true},
    {"GB200", 100, 18, false, 53.125, 5, true},
    {"B200", 100, 18, false, 53.125, 5, true},
    {"GB300", 103, 18, false, 53.125, 6, true},
    {"B300", 103, 18, false, 53.125, 6, true},
    {"RTX PRO 6000", 120, 0, false, 0, 5, false},
    {"RTX 5090", 120, 0, false, 0, 5, false},
};

constexpr std::pair<const char*, const char*> kPciIds[] = {
    {"0x1db1", "Tesla V100-SXM2-16GB"},
    {"0x1db4", "Tesla V100-PCIE-16GB"},
    {"0x1db5", "Tesla V100-SXM2-32GB"},
    {"0x1db6", "Tesla V100-PCIE-32GB"},
    {"0x1db8", "Tesla V100-SXM3-32GB"},
    {"0x1eb8", "Tesla T4"},
    {"0x20b0", "A100-SXM4-40GB"},
    {"0x20b2", "A100-SXM4-80GB"},
    {"0x20b5", "A100 80GB PCIe"},
    {"0x20b7", "A30"},
    {"0x20f1", "A100-PCIE-40GB"},
    {"0x2204", "GeForce RTX 3090"},
    {"0x2230", "RTX A6000"},
    {"0x2235", "A40"},
    {"0x2236", "A10"},
    {"0x2237", "A10G"},
    {"0x2321", "H100 NVL"},
    {"0x2324", "H800"},
    {"0x2329", "H20"},
    {"0x2330", "H100 80GB HBM3"},
    {"0x2331", "H100 PCIe"},
    {"0x2335", "H200"},
    {"0x233b", "H200 NVL"},
    {"0x2684", "GeForce RTX 4090"},
    {"0x26b5", "L40"},
    {"0x26b9", "L40S"},
    {"0x27b8", "L4"},
    {"0x2901", "B200"},
    {"0x2941", "GB200"},
    {"0x2b85", "GeForce RTX 5090"},
};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = char(std::tolower(uint8_t(c)));
  return out;
}

// `word` in `name`, not as a part of a longer model number ("H200" is not in "GH200", nor "A10" in "A100").
bool has_word(const std::string& name, const std::string& word, bool whole) {
  for (size_t at = 0; (at = name.find(word, at)) != std::string::npos; ++at) {
    size_t end = at + word.size();
    bool starts = at == 0 || !std::isalnum(uint8_t(name[at - 1])),
         ends = end == name.size() || !std::isalnum(uint8_t(name[end]));
    if (starts && (ends || !whole)) return true;
  }
  return false;
}

}  // namespace

const GpuModel* find_gpu_model(const std::string& name) {
  std::string text = lower(name);
  for (const GpuModel& model : kModels) {
    std::string key = lower(model.key);
    bool all = true;
    for (size_t at = 0; all && at < key.size();) {
      size_t end = std::min(key.find(' ', at), key.size());
      std::string word = key.substr(at, end - at);
      all = has_word(text, word, word != "sxm");  // "SXM4"
      at = end + 1;
    }
    if (all) return &model;
  }
  return nullptr;
}

std::string gpu_name_of_pci_id(const std::string& device_id) {
  for (auto [id, name] : kPciIds)
    if (lower(device_id) == id) return name;
  return "";
}

double nvlink_gbps_of_sm(int sm) {
  if (sm >= 100) return 40.1;
  if (sm >= 90) return 20.6;
  if (sm >= 86) return 12;
  if (sm >= 70) return 20;
  return 18;
}

}  // namespace xylem
