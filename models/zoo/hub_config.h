// SPDX-License-Identifier: Apache-2.0
// The config.json that the Hugging Face hub keeps beside weights. It decides what they compute as much as they do, so a
// model takes each value that matters or refuses it, by name.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/util/options.h"

namespace xylem::zoo {

class HubConfig {
 public:
  explicit HubConfig(const std::string& file);
  // Of the folder that `weights` is or lies in; nothing if there is none.
  static std::optional<HubConfig> beside(const std::string& weights);

  const std::string& file() const;
  bool has(const std::string& key) const;  // and it is not null
  // Absent or null: the fallback, which is what the publisher's code assumes then. Throw if the value is of another
  // type.
  int64_t integer(const std::string& key, int64_t fallback) const;
  double number(const std::string& key, double fallback) const;
  bool flag(const std::string& key, bool fallback) const;
  std::string text(const std::string& key, const std::string& fallback) const;
  std::optional<HubConfig> object(const std::string& key) const;  // a value that holds keys of its own

  // "'.../config.json' has rope_scaling = {...}, which Xylem does not support; it supports <what>"
  [[noreturn]] void refuse(const std::string& key, const std::string& supported) const;
  // Refuses a value other than that.
  void require(const std::string& key, bool value) const;

 private:
  struct Json;
  HubConfig(std::string file, std::string prefix, std::shared_ptr<const Json> json);
  template <class T>
  T get(const std::string& key, T fallback, const char* type) const;
  std::string file_, prefix_;
  std::shared_ptr<const Json> json_;
};

// Throws, listing them, if values of `model` are not those that `published` has for the same options.
void check_options(const HubConfig& config, const OptionValues& published, const OptionValues& model);

}  // namespace xylem::zoo
