// SPDX-License-Identifier: Apache-2.0
// Our own JSON. Names of fields are those of the structs; what is unknown is left out.
#include "distributed/topology/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/util/check.h"
#include "distributed/topology/cpulist.h"
#include "distributed/topology/derive.h"

namespace xylem {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSources[] = {"live", "nccl_xml", "topo_m", "json"};
constexpr const char* kLinkKinds[] = {"nvlink", "c2c", "pcie", "upi", "network"};
constexpr const char* kPeers[] = {"unknown", "ok", "not_supported", "disabled", "chipset", "topology"};
constexpr const char* kSeverities[] = {"info", "warning", "error"};

template <class Enum, size_t n>
Enum enum_of(const char* const (&names)[n], const std::string& name) {
  for (size_t i = 0; i < n; ++i)
    if (name == names[i]) return Enum(i);
  XY_FAIL("'", name, "' is none of ", names[0], " ... ", names[n - 1]);
}

// ---- one field, in either direction ---------------------------------------------------------------------------------
// Each struct lists its fields once, in visit(); Writer and Parser are what is done with each.

double rounded(double v) { return std::round(v * 1e6) / 1e6; }  // 721.8, not 721.8000000000001

struct Writer {
  Json& j;
  template <class T>
  void operator()(const char* key, const T& value) {
    j[key] = value;
  }
  void operator()(const char* key, const std::string& value) {
    if (!value.empty()) j[key] = value;
  }
  template <class T>
  void operator()(const char* key, const std::optional<T>& value) {
    if (value) (*this)(key, *value);
  }
  void operator()(const char* key, double value) { j[key] = rounded(value); }
  void operator()(const char* key, const std::vector<int>& value) {
    if (!value.empty()) j[key] = value;
  }
  void operator()(const char* key, const PciAddress& value) { j[key] = value.str(); }
  void operator()(const char* key, const PcieLink& value) {
    if (value.generation || value.width) j[key] = {{"generation", value.generation}, {"width", value.width}};
  }
  void operator()(const char* key, const NvFabric& value) {
    j[key] = {{"state", value.state},
              {"clique", value.clique},
              {"health_mask", value.health_mask},
              {"cluster_uuid", value.cluster_uuid}};
  }
  void operator()(const char* key, bool value, bool usual) {
    if (value != usual) j[key] = value;
  }
};

struct Parser {
  const Json& j;
  template <class T>
  void operator()(const char* key, T& value) {
    if (auto at = j.find(key); at != j.end()) read(key, *at, value);
  }
  void operator()(const char* key, bool& value, bool) { (*this)(key, value); }

 private:
  template <class T>
  static void read(const char* key, const Json& from, std::optional<T>& value) {
    T item{};
    read(key, from, item);
    value = item;
  }
  template <class T>
  static void read(const char* key, const Json& from, T& value) {
    try {
      value = from.get<T>();
    } catch (const Json::exception&) {
      XY_FAIL("field ", key, " is ", from.dump().substr(0, 40), ": expected another type");
    }
  }
  static void read(const char* key, const Json& from, PciAddress& value) {
    std::string text;
    read(key, from, text);
    auto address = PciAddress::parse(text);
    XY_CHECK(address, "field ", key, " is '", text, "': expected a PCI address such as 0000:3b:00.0");
    value = *address;
  }
  static void read(const char* key, const Json& from, PcieLink& value) {
    XY_CHECK(from.is_object(), "field ", key, ": expected {generation, width}");
    Parser p{from};
    p("generation", value.generation);
    p("width", value.width);
  }
  static void read(const char* key, const Json& from, NvFabric& value) {
    XY_CHECK(from.is_object(), "field ", key, ": expected {state, clique, health_mask, cluster_uuid}");
    Parser p{from};
    p("state", value.state);
    p("clique", value.clique);
    p("health_mask", value.health_mask);
    p("cluster_uuid", value.cluster_uuid);
  }
};

template <class F, class T>
void visit(F f, T& v) requires std::is_same_v<std::remove_const_t<T>, HostInfo> {
  f("name", v.name), f("arch", v.arch), f("cpu_vendor", v.cpu_vendor), f("cpu_model", v.cpu_model);
  f("cpu_family", v.cpu_family), f("cpu_model_number", v.cpu_model_number);
  f("driver", v.driver), f("cuda", v.cuda), f("nccl", v.nccl);
  f("virtual_machine", v.virtual_machine, false), f("container", v.container, false);
}
template <class F, class T>
void visit(F f, T& v) requires std::is_same_v<std::remove_const_t<T>, GpuDevice> {
  f("index", v.index), f("host", v.host), f("name", v.name), f("uuid", v.uuid), f("pci", v.pci), f("parent", v.parent);
  f("sm", v.sm), f("memory", v.memory), f("numa", v.numa), f("cpus", v.cpus);
  f("pcie", v.pcie), f("pcie_max", v.pcie_max), f("pcie_judged", v.pcie_judged, false);
  f("host_copy_gbps", v.host_copy_gbps);
  f("nvlinks_active", v.nvlinks_active), f("nvlinks_existing", v.nvlinks_existing), f("nvlinks_down", v.nvlinks_down);
  f("nvlink_gbps", v.nvlink_gbps), f("fabric", v.fabric), f("mig", v.mig), f("persistence", v.persistence);
  f("exclusive_compute", v.exclusive_compute), f("ecc_errors", v.ecc_errors), f("multicast", v.multicast);
  f("throttle_reasons", v.throttle_reasons), f("nvlink_errors", v.nvlink_errors);
  f("nvlink_errors_load", v.nvlink_errors_load), f("pcie_replays", v.pcie_replays);
  f("pcie_replays_load", v.pcie_replays_load);
}
template <class F, class T>
void visit(F f, T& v) requires std::is_same_v<std::remove_const_t<T>, NicDevice> {
  f("index", v.index), f("host", v.host), f("name", v.name), f("pci", v.pci), f("parent", v.parent);
  f("numa", v.numa), f("gbps", v.gbps), f("up", v.up, true), f("infiniband", v.infiniband, false);
  f("gpudirect", v.gpudirect, false);
}
template <class F, class T>
void visit(F f, T& v) requires std::is_same_v<std::remove_const_t<T>, NumaNode> {
  f("id", v.id), f("host", v.host), f("cpus", v.cpus), f("distance", v.distance);
}
template <class F, class T>
void visit(F f, T& v) requires std::is_same_v<std::remove_const_t<T>, PciBridge> {
  f("pci", v.pci), f("host", v.host), f("link", v.link), f("link_max", v.link_max), f("vendor", v.vendor);
  f("device", v.device), f("parent", v.parent);
}
template <class F, class T>
void visit(F f, T& v) requires std::is_same_v<std::remove_const_t<T>, NvSwitch> {
  f("index", v.index), f("host", v.host), f("pci", v.pci);
}
template <class F, class T>
void visit(F f, T& v) requires std::is_same_v<std::remove_const_t<T>, UnknownDevice> {
  f("pci", v.pci), f("host", v.host), f("numa", v.numa), f("parent", v.parent);
}
template <class F, class T>
void visit(F f, T& v) requires std::is_same_v<std::remove_const_t<T>, FabricLink> {
  f("a", v.a), f("b", v.b), f("count", v.count), f("gbps", v.gbps), f("up", v.up, true);
}
template <class F, class T>
void visit(F f, T& v) requires std::is_same_v<std::remove_const_t<T>, Finding> {
  f("code", v.code), f("what", v.what), f("evidence", v.evidence), f("impact", v.impact), f("remedy", v.remedy);
}

template <class T>
Json list_of(const std::vector<T>& items) {
  Json list = Json::array();
  for (const T& item : items) {
    Json j = Json::object();
    visit(Writer{j}, item);
    list.push_back(j);
  }
  return list;
}

// Elements with a place in the message of every error.
template <class F>
void for_each(const Json& root, const char* key, F use) {
  auto list = root.find(key);
  if (list == root.end()) return;
  XY_CHECK(list->is_array(), key, ": expected a list");
  for (size_t i = 0; i < list->size(); ++i) try {
      use((*list)[i]);
    } catch (const Error& e) {
      XY_FAIL(key, "[", i, "]: ", e.message());
    }
}

template <class T>
void read_list(const Json& root, const char* key, std::vector<T>& items) {
  for_each(root, key, [&](const Json& j) {
    XY_CHECK(j.is_object(), "expected an object");
    visit(Parser{j}, items.emplace_back());
  });
}

Json findings_json(const std::vector<Finding>& findings) {
  Json list = list_of(findings);
  for (size_t i = 0; i < findings.size(); ++i) {
    list[i]["severity"] = name_of(findings[i].severity);
    list[i]["subjects"] = findings[i].subjects;
  }
  return list;
}

// Lists of scalars on one line: a matrix reads like one.
void write(const Json& j, const std::string& indent, std::string& out) {
  bool nested = j.is_object()
                    ? !j.empty()
                    : j.is_array() && std::any_of(j.begin(), j.end(), [](const Json& e) { return e.is_structured(); });
  auto dumped = [](const Json& value) {  // bytes that are no UTF-8 are replaced
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  if (!nested) {
    if (!j.is_array()) {
      out += j.is_object() ? "{}" : dumped(j);
      return;
    }
    out += '[';
    for (size_t i = 0; i < j.size(); ++i) out += (i ? ", " : "") + dumped(j[i]);
    out += ']';
    return;
  }
  std::string deeper = indent + "  ";
  out += j.is_object() ? '{' : '[';
  bool first = true;
  for (auto at = j.begin(); at != j.end(); ++at) {
    out += (first ? "\n" : ",\n") + deeper;
    first = false;
    if (j.is_object()) out += dumped(Json(at.key())) + ": ";
    write(at.value(), deeper, out);
  }
  out += "\n" + indent + (j.is_object() ? '}' : ']');
}

// A matrix of a property of the pairs; left out if no pair has it.
template <class F>
void write_matrix(Json& root, const char* key, const Topology& t, F value) {
  Json matrix = Json::array();
  bool any = false;
  for (const auto& row : t.pairs) {
    Json line = Json::array();
    for (const DevicePair& p : row) {
      line.push_back(value(p));
      any |= !line.back().is_null();
    }
    matrix.push_back(line);
  }
  if (any) root[key] = matrix;
}

template <class F>
void read_matrix(const Json& root, const char* key, Topology& t, F set) {
  auto matrix = root.find(key);
  if (matrix == root.end()) return;
  size_t n = t.pairs.size();
  XY_CHECK(matrix->is_array() && matrix->size() == n, key, ": expected ", n, " rows, one for each GPU and NIC");
  for (size_t i = 0; i < n; ++i) {
    const Json& row = (*matrix)[i];
    XY_CHECK(row.is_array() && row.size() == n, key, "[", i, "]: expected ", n, " cells");
    for (size_t j = 0; j < n; ++j) try {
        if (!row[j].is_null()) set(t.pairs[i][j], row[j], i, j);
      } catch (const Json::exception&) {
        XY_FAIL(key, "[", i, "][", j, "] is ", row[j].dump().substr(0, 40), ": expected another type");
      }
  }
}

Json or_null(const std::optional<double>& value) { return value ? Json(rounded(*value)) : Json(); }

Json topology_json(const Topology& t) {
  Json root;
  root["format"] = "xylem topology";
  root["version"] = 1;
  root["source"] = kSources[int(t.source)];
  if (!t.origin.empty()) root["origin"] = t.origin;
  root["fingerprint"] = t.fingerprint();
  root["hosts"] = list_of(t.hosts);
  root["gpus"] = list_of(t.gpus);
  root["nics"] = list_of(t.nics);
  root["numa"] = list_of(t.numa);
  root["bridges"] = list_of(t.bridges);
  root["switches"] = list_of(t.switches);
  if (!t.unknown.empty()) root["unknown"] = list_of(t.unknown);
  root["links"] = list_of(t.links);
  for (size_t i = 0; i < t.links.size(); ++i) root["links"][i]["kind"] = kLinkKinds[int(t.links[i].kind)];
  root["islands"] = t.islands();
  root["pairs"] = Json::array();
  write_matrix(root, "pairs", t, [](const DevicePair& p) { return Json(p.str()); });
  write_matrix(root, "gbps", t, [](const DevicePair& p) { return or_null(p.gbps); });
  write_matrix(root, "peer_access", t,
               [](const DevicePair& p) { return p.peer == PeerAccess::unknown ? Json() : Json(kPeers[int(p.peer)]); });
  write_matrix(root, "measured_gbps", t, [](const DevicePair& p) { return or_null(p.measured_gbps); });
  write_matrix(root, "copies_right", t,
               [](const DevicePair& p) { return p.copies_right ? Json(*p.copies_right) : Json(); });
  return root;
}

Json parse_text(const std::string& text) {
  try {
    constexpr int kDeepest = 32;
    return Json::parse(text, [&](int depth, Json::parse_event_t, Json&) {
      XY_CHECK(depth <= kDeepest, "nested deeper than ", kDeepest, " levels");
      return true;
    });
  } catch (const Json::parse_error& e) {
    size_t at = std::min(text.size(), e.byte);
    XY_FAIL("line ", 1 + std::count(text.begin(), text.begin() + long(at), '\n'), ": ",
            std::string(e.what()).substr(std::string(e.what()).find(']') + 2));
  } catch (const Json::exception& e) {
    XY_FAIL(e.what());
  }
}

void check(const Topology& t) {
  int hosts = int(t.hosts.size());
  auto host_of = [&](const char* what, const auto& items) {
    for (size_t i = 0; i < items.size(); ++i)
      XY_CHECK(items[i].host >= 0 && items[i].host < hosts, what, "[", i, "] is of host ", items[i].host,
               ": expected 0 to ", hosts - 1);
  };
  host_of("gpus", t.gpus), host_of("nics", t.nics), host_of("numa", t.numa), host_of("bridges", t.bridges);
  host_of("switches", t.switches), host_of("unknown", t.unknown);
  for (const GpuDevice& g : t.gpus)
    XY_CHECK(parse_cpulist(g.cpus), "the cpus of GPU", g.index, " are '", g.cpus,
             "': expected a list such as 0-31,64-95");
  auto in_range = [](const char* what, int value, int most) {
    XY_CHECK(value >= 0 && value <= most, what, " is ", value, ": expected 0 to ", most);
  };
  auto link = [&](const PcieLink& l) {
    in_range("a PCIe generation", l.generation, 9);
    in_range("a PCIe width", l.width, 64);
  };
  for (const GpuDevice& g : t.gpus) {
    link(g.pcie), link(g.pcie_max);
    in_range("nvlinks_active", g.nvlinks_active.value_or(0), 1000);
    in_range("nvlinks_existing", g.nvlinks_existing.value_or(0), 1000);
  }
  for (const PciBridge& b : t.bridges) link(b.link), link(b.link_max);
  for (const FabricLink& l : t.links) in_range("the count of a link", l.count, 1000);
  for (const NumaNode& n : t.numa)
    XY_CHECK(parse_cpulist(n.cpus), "the cpus of NUMA node ", n.id, " are '", n.cpus,
             "': expected a list such as 0-31,64-95");
}

Topology read_topology(const std::string& text) {
  Json root = parse_text(text);
  XY_CHECK(root.is_object() && root.contains("gpus") && root.contains("pairs"),
           "this is no topology: expected an object with gpus and pairs");
  Topology t;
  if (root.contains("source") && root["source"].is_string())
    t.source = enum_of<TopologySource>(kSources, root["source"].get<std::string>());
  read_list(root, "hosts", t.hosts);
  if (t.hosts.empty()) t.hosts.emplace_back();
  read_list(root, "gpus", t.gpus);
  read_list(root, "nics", t.nics);
  read_list(root, "numa", t.numa);
  read_list(root, "bridges", t.bridges);
  read_list(root, "switches", t.switches);
  read_list(root, "unknown", t.unknown);
  read_list(root, "links", t.links);
  size_t i = 0;
  for_each(root, "links", [&](const Json& j) {
    std::string kind = "nvlink";
    Parser{j}("kind", kind);
    t.links[i++].kind = enum_of<LinkKind>(kLinkKinds, kind);
  });
  check(t);
  size_t n = size_t(t.devices());
  t.pairs.assign(n, std::vector<DevicePair>(n));
  std::vector<bool> switched(n);
  for (size_t d = 0; d < t.gpus.size(); ++d)
    for (const FabricLink& link : t.links)
      if (link.kind == LinkKind::nvlink && link.a == t.device_name(int(d)) &&
          link.b.find("NVSwitch") != std::string::npos)
        switched[d] = true;
  read_matrix(root, "pairs", t, [&](DevicePair& p, const Json& j, size_t a, size_t b) {
    auto word = parse_pair_word(j.get<std::string>());
    XY_CHECK(word && (word->path == PathClass::self) == (a == b), "pairs[", a, "][", b, "] is ", j.dump().substr(0, 40),
             ": expected X on the diagonal and NV#, PIX, PXB, PHB, NODE, SYS, NET or ? beside it");
    p = *word;
    if (p.path == PathClass::nvlink && switched[a] && switched[b]) p.path = PathClass::nvswitch;
  });
  read_matrix(root, "gbps", t, [](DevicePair& p, const Json& j, size_t, size_t) { p.gbps = j.get<double>(); });
  read_matrix(root, "peer_access", t, [](DevicePair& p, const Json& j, size_t, size_t) {
    p.peer = enum_of<PeerAccess>(kPeers, j.get<std::string>());
  });
  read_matrix(root, "measured_gbps", t,
              [](DevicePair& p, const Json& j, size_t, size_t) { p.measured_gbps = j.get<double>(); });
  read_matrix(root, "copies_right", t,
              [](DevicePair& p, const Json& j, size_t, size_t) { p.copies_right = j.get<bool>(); });
  return t;
}

std::string text_of(const Json& j) {
  std::string out;
  write(j, "", out);
  return out + "\n";
}

}  // namespace

std::string to_json(const Topology& topology) { return text_of(topology_json(topology)); }

std::string report_json(const Topology& topology, const std::vector<Finding>& findings, const std::string& plan) {
  Json root = topology_json(topology);
  root["findings"] = findings_json(findings);
  if (!plan.empty()) root["plan"] = parse_text(plan);
  return text_of(root);
}

std::string findings_to_json(const std::vector<Finding>& findings) { return text_of(findings_json(findings)); }

std::vector<Finding> findings_from_json(const std::string& text) {
  Json root{{"findings", parse_text(text)}};
  std::vector<Finding> findings;
  read_list(root, "findings", findings);
  size_t i = 0;
  for_each(root, "findings", [&](const Json& j) {
    std::string severity = "warning";
    Parser{j}("severity", severity);
    Parser{j}("subjects", findings[i].subjects);
    findings[i++].severity = enum_of<Severity>(kSeverities, severity);
  });
  return findings;
}

Topology parse_topology_json(const std::string& text, const std::string& origin) {
  try {
    Topology t = read_topology(text);
    t.origin = origin;
    return t;
  } catch (const Error& e) {
    XY_FAIL(origin, ": ", e.message());
  }
}

}  // namespace xylem
