// SPDX-License-Identifier: Apache-2.0
#include "models/zoo/hub_config.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "core/util/check.h"
#include "core/util/git_lfs.h"

namespace xylem::zoo {

struct HubConfig::Json {
  nlohmann::json value;
};

HubConfig::HubConfig(std::string file, std::string prefix, std::shared_ptr<const Json> json)
    : file_(std::move(file)), prefix_(std::move(prefix)), json_(std::move(json)) {}

HubConfig::HubConfig(const std::string& file) : file_(file) {
  refuse_git_lfs_pointer(file);
  std::ifstream in(file);
  auto json = nlohmann::json::parse(in, nullptr, false);
  XY_CHECK(json.is_object(), "'", file, "' is not a model's configuration: it holds no JSON object");
  json_ = std::make_shared<const Json>(Json{std::move(json)});
}

std::optional<HubConfig> HubConfig::beside(const std::string& weights) {
  namespace fs = std::filesystem;
  fs::path folder = fs::is_directory(weights) ? fs::path(weights) : fs::path(weights).parent_path();
  fs::path file = folder / "config.json";
  if (!fs::exists(file)) return {};
  return HubConfig(file.string());
}

const std::string& HubConfig::file() const { return file_; }

bool HubConfig::has(const std::string& key) const {
  auto it = json_->value.find(key);
  return it != json_->value.end() && !it->is_null();
}

template <class T>
T HubConfig::get(const std::string& key, T fallback, const char* type) const {
  if (!has(key)) return fallback;
  const nlohmann::json& v = json_->value[key];
  bool fits = v.is_string();
  if constexpr (std::is_same_v<T, bool>) fits = v.is_boolean();
  if constexpr (std::is_same_v<T, int64_t>) fits = v.is_number_integer();
  if constexpr (std::is_same_v<T, double>) fits = v.is_number();
  if (!fits) refuse(key, type);
  return v.get<T>();
}

int64_t HubConfig::integer(const std::string& key, int64_t fallback) const { return get(key, fallback, "integers"); }
double HubConfig::number(const std::string& key, double fallback) const { return get(key, fallback, "numbers"); }
bool HubConfig::flag(const std::string& key, bool fallback) const { return get(key, fallback, "true and false"); }
std::string HubConfig::text(const std::string& key, const std::string& fallback) const {
  return get(key, fallback, "texts");
}

std::optional<HubConfig> HubConfig::object(const std::string& key) const {
  if (!has(key)) return {};
  if (!json_->value[key].is_object()) refuse(key, "an object");
  return HubConfig(file_, prefix_ + key + ".", std::make_shared<const Json>(Json{json_->value[key]}));
}

void HubConfig::refuse(const std::string& key, const std::string& supported) const {
  XY_FAIL("'", file_, "' has ", prefix_, key, " = ", has(key) ? json_->value[key].dump() : "null",
          ", which Xylem does not support; it supports ", supported);
}

void HubConfig::require(const std::string& key, bool value) const {
  if (flag(key, value) != value) refuse(key, value ? "true" : "false");
}

void check_options(const HubConfig& config, const OptionValues& published, const OptionValues& model) {
  std::string differences;
  for (const auto& [name, value] : published) {
    auto own = model.find(name);
    XY_ASSERT(own != model.end(), "the model has no option '", name, "'");
    if (own->second != value) differences += "\n    " + name + " = " + show(value) + ", not " + show(own->second);
  }
  XY_CHECK(differences.empty(), "the model was made with other options than its weights need, says '", config.file(),
           "'; set", differences);
}

}  // namespace xylem::zoo
