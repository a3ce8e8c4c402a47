// SPDX-License-Identifier: Apache-2.0
#include "models/optim/registry.h"

#include <map>
#include <utility>

namespace xylem {
namespace {

std::map<std::string, OptimizerKind>& kinds() {
  static std::map<std::string, OptimizerKind> all;
  return all;
}

}  // namespace

bool detail::add_optimizer(const std::string& name, OptimizerKind kind) {
  bool fresh = kinds().emplace(name, std::move(kind)).second;
  XY_CHECK(fresh, "there are two optimizers of the name '", name, "'");
  return true;
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const auto& [name, kind] : kinds()) names.push_back(name);
  return names;
}

const OptimizerKind& optimizer_kind(const std::string& name) {
  auto it = kinds().find(name);
  XY_CHECK(it != kinds().end(), "there is no optimizer '", name, "'; the nearest is '",
           nearest_name(name, optimizer_names()), "'");
  return it->second;
}

}  // namespace xylem
