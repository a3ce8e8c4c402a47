// SPDX-License-Identifier: Apache-2.0
// A rank's dump as JSON.
#include <nlohmann/json.hpp>

#include "core/util/check.h"
#include "distributed/watchdog/verdict.h"

namespace xylem::watchdog {
namespace {

const char* const kStates[] = {"answered", "stopped", "gone", "silent"};

DType parse_dtype(const std::string& name) {
  for (DType t : {f64, f32, f16, bf16, i64, i32, i8, u8, boolean})
    if (name == name_of(t)) return t;
  XY_FAIL("unknown type '", name, "'");
}

RankState parse_state(const std::string& name) {
  for (int i = 0; i < 4; ++i)
    if (name == kStates[i]) return RankState(i);
  XY_FAIL("unknown state '", name, "'");
}

}  // namespace

std::string to_json(const RankDump& dump, const std::string& job) {
  nlohmann::ordered_json j = {{"job", job},
                              {"rank", dump.rank},
                              {"host", dump.host},
                              {"pid", dump.pid},
                              {"state", kStates[int(dump.state)]},
                              {"error", dump.error},
                              {"exit_code", dump.exit_code},
                              {"finished", dump.finished},
                              {"activity", dump.activity},
                              {"time_ns", dump.time_ns},
                              {"groups", dump.groups}};
  nlohmann::ordered_json peers = nlohmann::ordered_json::object();
  for (const auto& [rank, state] : dump.peers) peers[std::to_string(rank)] = kStates[int(state)];
  j["peers"] = peers;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const recorder::Collective& c : dump.collectives)
    list.push_back({{"group", c.group},
                    {"sequence", c.sequence},
                    {"op", c.op},
                    {"dtype", name_of(c.dtype)},
                    {"count", c.count},
                    {"tag", c.tag},
                    {"algorithm", c.algorithm},
                    {"graph", c.graph},
                    {"enqueued_ns", c.enqueued_ns},
                    {"started_ns", c.started_ns},
                    {"finished_ns", c.finished_ns}});
  j["collectives"] = list;
  // Error texts may hold any bytes.
  return j.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

RankDump parse_dump(const std::string& text, const std::string& job) {
  nlohmann::json j = nlohmann::json::parse(text);
  XY_CHECK(j.at("job") == job, "a dump of another job");
  RankDump d;
  d.rank = j.at("rank");
  d.host = j.at("host");
  d.pid = j.at("pid");
  d.state = parse_state(j.at("state"));
  d.error = j.at("error");
  d.exit_code = j.at("exit_code");
  d.finished = j.at("finished");
  d.activity = j.at("activity");
  d.time_ns = j.at("time_ns");
  d.groups = j.at("groups").get<std::map<std::string, std::vector<int>>>();
  for (const auto& [rank, state] : j.at("peers").items()) d.peers[std::stoi(rank)] = parse_state(state);
  for (const auto& c : j.at("collectives"))
    d.collectives.push_back({.group = c.at("group"),
                             .sequence = c.at("sequence"),
                             .op = c.at("op"),
                             .dtype = parse_dtype(c.at("dtype")),
                             .count = c.at("count"),
                             .tag = c.at("tag"),
                             .algorithm = c.at("algorithm"),
                             .graph = c.at("graph"),
                             .enqueued_ns = c.at("enqueued_ns"),
                             .started_ns = c.at("started_ns"),
                             .finished_ns = c.at("finished_ns")});
  return d;
}

}  // namespace xylem::watchdog
