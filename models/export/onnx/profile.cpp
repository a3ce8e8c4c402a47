// SPDX-License-Identifier: Apache-2.0
#include "models/export/onnx/profile.h"

#include <utility>

#include "core/util/check.h"

namespace xylem {

namespace {

constexpr std::pair<Profile, const char*> kProfiles[] = {{Profile::exact, "exact"},
                                                         {Profile::trt8, "trt8"},
                                                         {Profile::trt10, "trt10"},
                                                         {Profile::trt11, "trt11"},
                                                         {Profile::ort_cpu, "ort-cpu"}};
constexpr std::pair<ExportPrecision, const char*> kPrecisions[] = {{ExportPrecision::automatic, "automatic"},
                                                                   {ExportPrecision::fp32, "fp32"},
                                                                   {ExportPrecision::fp16, "fp16"},
                                                                   {ExportPrecision::bf16, "bf16"},
                                                                   {ExportPrecision::mixed, "mixed"}};

template <class Table>
auto parse(const Table& table, const std::string& name, const char* what) {
  std::string all;
  for (const auto& [value, known] : table) {
    if (name == known) return value;
    all += (all.empty() ? "" : ", ") + std::string(known);
  }
  XY_FAIL("there is no ", what, " '", name, "'; it is one of ", all);
}
template <class Table, class T>
const char* find_name(const Table& table, T value) {
  for (const auto& [known, name] : table)
    if (known == value) return name;
  return "";
}

}  // namespace

Profile parse_profile(const std::string& name) { return parse(kProfiles, name, "export profile"); }
const char* name_of(Profile p) { return find_name(kProfiles, p); }
ExportPrecision parse_export_precision(const std::string& name) { return parse(kPrecisions, name, "precision"); }
const char* name_of(ExportPrecision p) { return find_name(kPrecisions, p); }

}  // namespace xylem
