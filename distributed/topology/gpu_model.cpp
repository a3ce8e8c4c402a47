// SPDX-License-Identifier: Apache-2.0
#include "distributed/topology/gpu_model.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>
#include <vector>

namespace xylem {
namespace {

// Of two that a short name may mean, the first is taken.
constexpr GpuModel kModels[] = {
    {"P100 PCIe 16GB", 60, 0, 0, 0, 3, true, 16, 732, 18.7, 9.3, 9.3},
    {"P100 SXM 16GB", 60, 4, 0, 20, 3, true, 16, 732, 21.2, 10.6, 10.6},
    {"V100 SXM 32GB", 70, 6, 0, 25.781, 3, true, 32, 900, 125, 15.7, 15.7},
    {"V100 SXM 16GB", 70, 6, 0, 25.781, 3, true, 16, 900, 125, 15.7, 15.7},
    {"V100 PCIe 32GB", 70, 0, 0, 0, 3, true, 32, 900, 112, 14, 14},
    {"V100 PCIe 16GB", 70, 0, 0, 0, 3, true, 16, 900, 112, 14, 14},
    {"V100S PCIe 32GB", 70, 0, 0, 0, 3, true, 32, 1134, 130, 16.4, 16.4},
    {"T4 16GB", 75, 0, 0, 0, 3, true, 16, 320, 65, 8.1, 8.1},
    {"TITAN RTX", 75, 2, 2, 25.781, 3, false, 24, 672, 130.5, 16.3, 16.3},
    {"RTX 8000", 75, 2, 2, 25.781, 3, false, 48, 672, 130.5, 16.3, 16.3},
    {"RTX 2080 Ti", 75, 2, 2, 25.781, 3, false, 11, 616, 53.8, 13.4, 13.4},
    {"RTX 2080", 75, 1, 1, 25.781, 3, false, 8, 448, 40.3, 10.1, 10.1},
    {"A100 PCIe 80GB", 80, 12, 4, 25, 4, true, 80, 1935, 312, 156, 19.5},
    {"A100 PCIe 40GB", 80, 12, 4, 25, 4, true, 40, 1555, 312, 156, 19.5},
    {"A100 SXM 80GB", 80, 12, 0, 25, 4, true, 80, 2039, 312, 156, 19.5},
    {"A100 SXM 40GB", 80, 12, 0, 25, 4, true, 40, 1555, 312, 156, 19.5},
    {"A800 PCIe 80GB", 80, 8, 4, 25, 4, true, 80, 1935, 312, 156, 19.5},
    {"A800 SXM 80GB", 80, 8, 0, 25, 4, true, 80, 2039, 312, 156, 19.5},
    {"A30 24GB", 80, 4, 4, 25, 4, true, 24, 933, 165, 82, 10.3},
    {"A40 48GB", 86, 4, 4, 14.062, 4, true, 48, 696, 149.7, 74.8, 37.4},
    {"A10G 24GB", 86, 0, 0, 0, 4, true, 24, 600, 70, 35, 35},
    {"A10 24GB", 86, 0, 0, 0, 4, true, 24, 600, 125, 62.5, 31.2},
    {"RTX A6000", 86, 4, 4, 14.062, 4, false, 48, 768, 154.8, 77.4, 38.7},
    {"RTX A5500", 86, 4, 4, 14.062, 4, false, 24, 768, 136.4, 68.2, 34.1},
    {"RTX A5000", 86, 4, 4, 14.062, 4, false, 24, 768, 111.1, 55.6, 27.8},
    {"RTX A4500", 86, 4, 4, 14.062, 4, false, 20, 640, 94.6, 47.3, 23.7},
    {"RTX A4000", 86, 0, 0, 0, 4, false, 16, 448, 76.7, 38.3, 19.2},
    {"RTX 3090 Ti", 86, 4, 4, 14.062, 4, false, 24, 1008, 80, 40, 40},
    {"RTX 3090", 86, 4, 4, 14.062, 4, false, 24, 936, 71, 35.6, 35.6},
    {"RTX 6000 Ada", 89, 0, 0, 0, 4, false, 48, 960, 364.2, 182.1, 91.1},
    {"RTX 4090", 89, 0, 0, 0, 4, false, 24, 1008, 165.2, 82.6, 82.6},
    {"L40S 48GB", 89, 0, 0, 0, 4, true, 48, 864, 362, 183, 91.6},
    {"L40 48GB", 89, 0, 0, 0, 4, true, 48, 864, 181, 90.5, 90.5},
    {"L4 24GB", 89, 0, 0, 0, 4, true, 24, 300, 121, 60, 30.3},
    {"H100 SXM 80GB", 90, 18, 0, 26.562, 5, true, 80, 3350, 989.4, 494.7, 66.9},
    {"H100 PCIe 80GB", 90, 12, 4, 26.562, 5, true, 80, 2000, 756, 378, 51.2},
    {"H100 NVL 94GB", 90, 12, 4, 26.562, 5, true, 94, 3900, 835.5, 417.5, 60},
    {"H200 SXM 141GB", 90, 18, 0, 26.562, 5, true, 141, 4800, 989.4, 494.7, 66.9},
    {"H200 NVL 141GB", 90, 18, 6, 26.562, 5, true, 141, 4800, 835.5, 417.5, 60},
    {"GH200 480GB", 90, 18, 0, 26.562, 5, true, 96, 4000, 989.4, 494.7, 66.9},
    {"GH200 120GB", 90, 18, 0, 26.562, 5, true, 96, 4000, 989.4, 494.7, 66.9},
    {"GH200 96GB", 90, 18, 0, 26.562, 5, true, 96, 4000, 989.4, 494.7, 66.9},
    {"GH200 144G", 90, 18, 0, 26.562, 5, true, 144, 4900, 989.4, 494.7, 66.9},
    {"H20 96GB", 90, 18, 0, 26.562, 5, true, 96, 4000, 148, 74, 44},
    {"H800 SXM 80GB", 90, 8, 0, 26.562, 5, true, 80, 3350, 989.4, 494.7, 66.9},
    {"H800 PCIe 80GB", 90, 8, 4, 26.562, 5, true, 80, 2000, 756, 378, 51.2},
    {"GB200", 100, 18, 0, 53.125, 5, true, 186, 8000, 2500, 1250, 80},
    {"B200 SXM", 100, 18, 0, 53.125, 5, true, 180, 8000, 2250, 1125, 75},
    {"GB300", 103, 18, 0, 53.125, 6, true, 288, 8000, 0, 0, 0},
    {"B300 SXM", 103, 18, 0, 53.125, 6, true, 288, 8000, 0, 0, 0},
    {"RTX PRO 6000 Blackwell Workstation", 120, 0, 0, 0, 5, false, 96, 1792, 503.8, 251.9, 126},
    {"RTX PRO 6000 Blackwell Server", 120, 0, 0, 0, 5, false, 96, 1597, 0, 0, 0},
    {"RTX PRO 6000 Blackwell Max-Q Workstation", 120, 0, 0, 0, 5, false, 96, 1792, 0, 0, 0},
    {"RTX 5090", 120, 0, 0, 0, 5, false, 32, 1792, 209.5, 104.8, 104.8},
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

// A name in three parts: how the GPU is built in (sxm, pcie, nvl), how much memory it has ("80gb"), and the words that
// are left when those that say nothing are gone, in alphabetical order. "" where the name does not tell.
struct NameParts {
  std::string form, memory;
  std::vector<std::string> words;
};

bool says_nothing(const std::string& word) {
  static constexpr std::string_view kWords[] = {"nvidia", "tesla", "quadro", "geforce", "generation", "edition",
                                                "hbm2",   "hbm2e", "hbm3",   "hbm3e",   "ac"};
  return std::find(std::begin(kWords), std::end(kWords), word) != std::end(kWords);
}

// "80gb", "144g"
bool is_memory(const std::string& word) {
  const size_t digits = std::min(word.find_first_not_of("0123456789"), word.size());
  return digits > 0 && (word.substr(digits) == "gb" || word.substr(digits) == "g");
}

NameParts parts_of(std::string_view name) {
  NameParts parts;
  const std::string text = lower(name);
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && std::isalnum(uint8_t(text[end]))) ++end;
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    if (word.empty() || says_nothing(word)) continue;
    const bool sxm = word.starts_with("sxm") && word.size() <= 4;
    if (sxm || word == "pcie" || word == "nvl")
      parts.form = sxm ? "sxm" : word;
    else if (is_memory(word))
      parts.memory = word;
    else
      parts.words.push_back(word);
  }
  std::sort(parts.words.begin(), parts.words.end());
  // "RTX A6000" is written without RTX as well; among numbers alone it makes the difference.
  const bool lettered = std::any_of(parts.words.begin(), parts.words.end(), [](const std::string& w) {
    return w.size() == 5 && w[0] == 'a' && std::all_of(w.begin() + 1, w.end(), [](char c) { return std::isdigit(c); });
  });
  if (lettered) std::erase(parts.words, "rtx");
  return parts;
}

bool fits(const NameParts& name, const NameParts& model) {
  auto agree = [](const std::string& a, const std::string& b) { return a.empty() || b.empty() || a == b; };
  return name.words == model.words && agree(name.form, model.form) && agree(name.memory, model.memory);
}

}  // namespace

const GpuModel* find_gpu_model(const std::string& name) {
  const NameParts parts = parts_of(name);
  for (const GpuModel& model : kModels)
    if (fits(parts, parts_of(model.key))) return &model;
  return nullptr;
}

std::span<const GpuModel> gpu_models() { return kModels; }

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
