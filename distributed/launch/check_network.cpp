// SPDX-License-Identifier: Apache-2.0
// The checks of NCCL's variables and of the network.
#include <arpa/inet.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "distributed/launch/checks.h"
#include "distributed/watchdog/verdict.h"

namespace xylem {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

std::string lower(std::string s) {
  for (char& c : s) c = char(std::tolower(static_cast<unsigned char>(c)));
  return s;
}

const std::set<std::string> kFunctions = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"};
const std::map<std::string, std::set<std::string>> kNames = {
    {"NCCL_ALGO", {"tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"}},
    {"NCCL_PROTO", {"ll", "ll128", "simple"}}};

// What is wrong with NCCL_ALGO or NCCL_PROTO ("[function:]list;function:list", a list may begin with ^); "" nothing.
std::string judge_choice(const std::string& variable, const std::string& value) {
  const std::set<std::string>& names = kNames.at(variable);
  std::string set = variable + "=\"" + value + "\" ";
  auto join = [](const std::set<std::string>& all) {
    std::string text;
    for (const std::string& name : all) text += (text.empty() ? "" : ", ") + name;
    return text;
  };
  bool first = true;
  for (const std::string& part : split(lower(value), ';')) {
    size_t colon = part.find(':');
    if (colon == part.npos && !first)
      return set + "has a second list without a function before it; write function:list, with " + join(kFunctions);
    if (colon != part.npos && !kFunctions.contains(part.substr(0, colon)))
      return set + "names the function \"" + part.substr(0, colon) + "\", which NCCL does not know; it knows " +
             join(kFunctions);
    std::string list = colon == part.npos ? part : part.substr(colon + 1);
    bool negated = list.starts_with('^');
    std::set<std::string> chosen;
    for (const std::string& name : split(negated ? list.substr(1) : list, ',')) {
      if (!names.contains(name))
        return set + "names \"" + name + "\", which NCCL does not know; it knows " + join(names);
      chosen.insert(name);
    }
    // Ring is what every function has.
    if (variable == "NCCL_ALGO" && colon == part.npos && negated == chosen.contains("ring"))
      return set +
             "leaves broadcast and others without any algorithm, which NCCL answers with \"no algorithm/protocol "
             "available\"; name the function, as in NCCL_ALGO=\"allreduce:" +
             (negated ? "tree" : list) + "\"";
    first = false;
  }
  return "";
}

std::string list_names(const std::vector<NetworkInterface>& interfaces) {
  std::string text;
  for (const NetworkInterface& i : interfaces)
    text += (text.empty() ? "" : ", ") + i.name + " (" + i.address + "/" + std::to_string(i.prefix) + ")";
  return text.empty() ? "none" : text;
}

}  // namespace

std::vector<NetworkInterface> matching_interfaces(const std::string& specification,
                                                  const std::vector<NetworkInterface>& interfaces) {
  bool exclude = specification.starts_with('^');
  std::string rest = exclude ? specification.substr(1) : specification;
  bool exact = rest.starts_with('=');
  if (exact) rest = rest.substr(1);
  std::vector<NetworkInterface> list;
  for (const NetworkInterface& i : interfaces) {
    if (specification.empty()) {
      if (!i.loopback && !i.name.starts_with("docker")) list.push_back(i);
      continue;
    }
    bool named = false;
    for (const std::string& name : split(rest, ',')) named |= exact ? i.name == name : i.name.starts_with(name);
    if (named != exclude) list.push_back(i);
  }
  return list;
}

std::string subnet_of(const NetworkInterface& i) {
  unsigned char bytes[16] = {};
  bool v6 = i.address.find(':') != std::string::npos;
  int family = v6 ? AF_INET6 : AF_INET;
  if (inet_pton(family, i.address.c_str(), bytes) != 1) return i.address;
  for (int bit = i.prefix; bit < (v6 ? 128 : 32); ++bit)
    bytes[bit / 8] &= static_cast<unsigned char>(~(0x80 >> bit % 8));
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family, bytes, text, sizeof text);
  return std::string(text) + "/" + std::to_string(i.prefix);
}

LaunchProblems check_nccl_variables(const std::vector<RankInfo>& ranks) {
  LaunchProblems p;
  std::set<std::string> all;
  bool gpus = false;
  for (const RankInfo& r : ranks) {
    gpus |= r.device != "cpu";
    for (const auto& [name, value] : r.nccl_variables) all.insert(name);
  }
  if (!gpus) return p;
  for (const std::string& name : all) {
    // Names of devices may differ between hosts, and NCCL_HOSTID must.
    if (name == "NCCL_HOSTID" || name == "NCCL_SOCKET_IFNAME" || name == "NCCL_IB_HCA" ||
        name.find("FILE") != name.npos)
      continue;
    std::map<std::string, std::vector<int>> values;
    for (const RankInfo& r : ranks) {
      auto at = r.nccl_variables.find(name);
      values[at == r.nccl_variables.end() ? "(unset)" : at->second].push_back(r.rank);
    }
    if (values.size() < 2) continue;
    std::string text;
    for (const auto& [value, who] : values)
      text += (text.empty() ? "" : ", ") + value + " on " + watchdog::name_ranks(who);
    p.push_back({kNames.contains(name),
                 name + " differs between ranks: " + text + "; mpirun -x " + name + " gives all ranks the same"});
  }
  for (const auto& [variable, names] : kNames) {
    std::set<std::string> told;
    for (const RankInfo& r : ranks)
      if (auto at = r.nccl_variables.find(variable); at != r.nccl_variables.end())
        if (std::string trouble = judge_choice(variable, at->second); !trouble.empty() && told.insert(trouble).second)
          p.push_back({true, trouble});
  }
  return p;
}

LaunchProblems check_network(const std::vector<RankInfo>& ranks) {
  LaunchProblems p;
  std::map<int, const RankInfo*> nodes;  // one rank speaks for its host
  bool gpus = false;
  for (const RankInfo& r : ranks) nodes.insert({r.node, &r}), gpus |= r.device != "cpu";
  if (!gpus || ranks.size() < 2) return p;
  bool several = nodes.size() > 1;
  std::map<std::string, int> subnets;  // on how many hosts
  std::string offers;
  for (const auto& [node, r] : nodes) {
    auto at = r->nccl_variables.find("NCCL_SOCKET_IFNAME");
    std::string wanted = at == r->nccl_variables.end() ? "" : at->second;
    std::vector<NetworkInterface> found = matching_interfaces(wanted, r->interfaces);
    std::string setting = "NCCL_SOCKET_IFNAME=" + wanted;
    if (!wanted.empty() && found.empty()) {
      p.push_back({true, r->host + ": " + setting + " matches no interface that is up; there are " +
                             list_names(r->interfaces) +
                             ". Unset it, or name one of these (a name matches as a prefix, =NAME exactly)"});
      continue;
    }
    if (!several) continue;
    bool loopback = std::all_of(found.begin(), found.end(), [](const NetworkInterface& i) { return i.loopback; });
    if (loopback) {
      p.push_back({true, r->host + ": " +
                             (wanted.empty() ? "there is no interface but loopback"
                                             : setting + " matches only loopback (" + list_names(found) + ")") +
                             ", over which other hosts cannot be reached; there are " + list_names(r->interfaces) +
                             ". Name an interface to the other hosts"});
      continue;
    }
    std::set<std::string> mine;
    for (const NetworkInterface& i : found)
      if (!i.loopback) mine.insert(subnet_of(i));
    for (const std::string& s : mine) ++subnets[s];
    offers += (offers.empty() ? "" : "; ") + r->host + ": " + list_names(found);
  }
  if (several && p.empty() &&
      std::none_of(subnets.begin(), subnets.end(), [&](const auto& s) { return s.second == int(nodes.size()); }))
    p.push_back({false, "the hosts share no subnet (" + offers +
                            "): unless their networks are routed, NCCL hangs when it connects. Name the right "
                            "interfaces with NCCL_SOCKET_IFNAME and, for Open MPI, --mca btl_tcp_if_include"});
  return p;
}

}  // namespace xylem
