// SPDX-License-Identifier: Apache-2.0
#include "distributed/plan/measured.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/util/cache_file.h"
#include "core/util/check.h"
#include "core/util/file.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;

std::string versions(const HostInfo& host) {
  std::string text;
  for (const std::string& part : {host.nccl, host.driver}) {
    text += '-';
    for (char c : part.empty() ? std::string("none") : part) text += std::isalnum(uint8_t(c)) || c == '.' ? c : '_';
  }
  return text;
}
HostInfo first_host(const Topology& t) { return t.hosts.empty() ? HostInfo{} : t.hosts[0]; }

}  // namespace

std::optional<double> MeasuredTable::time_us(CollectiveKind kind, Algorithm algorithm, double bytes) const {
  const Row *below = nullptr, *above = nullptr;
  for (const Row& r : rows) {
    if (r.kind != kind || r.algorithm != algorithm) continue;
    if (double(r.bytes) <= bytes && (!below || r.bytes > below->bytes)) below = &r;
    if (double(r.bytes) >= bytes && (!above || r.bytes < above->bytes)) above = &r;
  }
  if (!below || !above) return std::nullopt;
  if (below->bytes == above->bytes) return below->time_us;
  double share = std::log(bytes / double(below->bytes)) / std::log(double(above->bytes) / double(below->bytes));
  return below->time_us * std::pow(above->time_us / below->time_us, share);
}

std::string MeasuredTable::to_json() const {
  nlohmann::ordered_json j = {{"topology", topology}, {"nccl", nccl},   {"driver", driver},
                              {"ranks", ranks},       {"nodes", nodes}, {"rows", nlohmann::ordered_json::array()}};
  for (const Row& r : rows)
    j["rows"].push_back({{"collective", name_of(r.kind)},
                         {"algorithm", name_of(r.algorithm)},
                         {"bytes", r.bytes},
                         {"time_us", r.time_us}});
  return j.dump(1) + "\n";
}

MeasuredTable MeasuredTable::from_json(const std::string& text) {
  try {
    auto j = nlohmann::json::parse(text);
    MeasuredTable t{j.at("topology"), j.at("nccl"), j.at("driver"), j.at("ranks"), j.at("nodes"), {}};
    for (const auto& r : j.at("rows")) {
      auto kind = parse_collective(r.at("collective"));
      auto algorithm = parse_algorithm(r.at("algorithm"));
      XY_CHECK(kind && algorithm, "a measured table has a row for ", r.at("collective").dump(), " by ",
               r.at("algorithm").dump(), ", which are not known");
      Row row{*kind, *algorithm, r.at("bytes"), r.at("time_us")};
      XY_CHECK(row.bytes > 0 && row.time_us > 0, "a measured table has a row of ", row.bytes, " bytes in ", row.time_us,
               " us");
      t.rows.push_back(row);
    }
    return t;
  } catch (const nlohmann::json::exception& e) {
    XY_FAIL("not a measured table: ", e.what());
  }
}

std::string measured_file(const Topology& topology, int ranks, int nodes) {
  std::string name = "collectives-" + topology.fingerprint() + versions(first_host(topology)) + "-" +
                     std::to_string(ranks) + "x" + std::to_string(nodes) + ".json";
  return cache_folder() / name;
}

std::optional<MeasuredTable> load_measured(const Topology& topology, int ranks, int nodes) {
  std::string file = measured_file(topology, ranks, nodes);
  std::optional<std::string> text = read_file_if_any(file);
  if (!text) return std::nullopt;
  try {
    return MeasuredTable::from_json(*text);
  } catch (const Error& e) {
    XY_FAIL(file, ": ", e.message(), "; remove the file, or measure again with `xylem bench collectives --save`");
  }
}

std::string save_measured(const MeasuredTable& table, const Topology& topology) {
  std::string file = measured_file(topology, table.ranks, table.nodes);
  replace_file(file, table.to_json());
  return file;
}

}  // namespace xylem
