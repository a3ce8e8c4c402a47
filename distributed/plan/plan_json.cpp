// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "core/util/check.h"
#include "distributed/plan/plan.h"

namespace xylem {

std::string Plan::to_json() const {
  nlohmann::ordered_json j = {{"ranks", ranks}, {"nodes", nodes}, {"topology", topology}, {"notes", notes}};
  for (int k = 4; k >= 0; --k) {
    auto& list = j[name_of(CollectiveKind(k))] = nlohmann::ordered_json::array();
    for (const PlanEntry& e : entries) {
      if (int(e.kind) != k) continue;
      list.push_back(
          {{"from_bytes", e.from_bytes},
           {"to_bytes", e.to_bytes == INT64_MAX ? nlohmann::ordered_json() : nlohmann::ordered_json(e.to_bytes)},
           {"algorithm", name_of(e.algorithm)},
           {"protocol", e.protocol ? nlohmann::ordered_json(name_of(*e.protocol)) : nlohmann::ordered_json()},
           {"channels", e.channels},
           {"at_bytes", e.at_bytes},
           {"time_us", e.time_us},
           {"busbw_gbps", e.busbw_gbps},
           {"basis", name_of(e.basis)},
           {"clear", e.clear},
           {"reason", e.reason}});
    }
  }
  return j.dump();
}

Plan Plan::from_json(const std::string& text) {
  try {
    auto j = nlohmann::json::parse(text);
    Plan plan{.entries = {},
              .ranks = j.at("ranks"),
              .nodes = j.at("nodes"),
              .topology = j.at("topology"),
              .notes = j.at("notes")};
    for (int k = 0; k < 5; ++k)
      for (const auto& e : j.at(name_of(CollectiveKind(k)))) {
        auto algorithm = parse_algorithm(e.at("algorithm"));
        auto basis = parse_basis(e.at("basis"));
        std::optional<Protocol> protocol;
        if (!e.at("protocol").is_null()) protocol = parse_protocol(e.at("protocol"));
        XY_CHECK(algorithm && basis && (protocol || e.at("protocol").is_null()),
                 "a plan has an entry of unknown words: ", e.dump());
        plan.entries.push_back({.kind = CollectiveKind(k),
                                .from_bytes = e.at("from_bytes"),
                                .to_bytes = e.at("to_bytes").is_null() ? INT64_MAX : e.at("to_bytes").get<int64_t>(),
                                .algorithm = *algorithm,
                                .protocol = protocol,
                                .channels = e.at("channels"),
                                .at_bytes = e.at("at_bytes"),
                                .time_us = e.at("time_us"),
                                .busbw_gbps = e.at("busbw_gbps"),
                                .basis = *basis,
                                .clear = e.at("clear"),
                                .reason = e.at("reason")});
      }
    return plan;
  } catch (const nlohmann::json::exception& e) {
    XY_FAIL("not a plan: ", e.what());
  }
}

}  // namespace xylem
