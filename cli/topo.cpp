// SPDX-License-Identifier: Apache-2.0
// `xylem topo`: how the GPUs, NICs and CPUs of a machine are joined, what is wrong with it, where ranks should run.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/rate.h"
#include "core/util/check.h"
#include "distributed/plan/measured.h"
#include "distributed/plan/plan.h"
#include "distributed/topology/detect.h"
#include "distributed/topology/findings.h"
#include "distributed/topology/json.h"
#include "distributed/topology/measure.h"
#include "distributed/topology/placement.h"
#include "distributed/topology/svg.h"

namespace xylem::cli {
namespace {

struct Options {
  std::string from, svg, gpu, nic;
  std::vector<std::string> mesh;
  bool json = false, measure = false;
  int nodes = 1;
};

// "8 x NVIDIA H200, 4 NVSwitches, 1 NIC"
std::string summary(const Topology& t) {
  std::map<std::string, int> models;
  for (const GpuDevice& g : t.gpus) ++models[g.name.empty() ? "GPU" : g.name];
  std::vector<std::string> parts;
  for (auto& [name, n] : models) parts.push_back(std::to_string(n) + " x " + name);
  auto count = [&](size_t n, const char* one, const char* many) {
    if (n > 0) parts.push_back(std::to_string(n) + " " + (n == 1 ? one : many));
  };
  if (t.gpus.empty()) parts.push_back("no GPU");
  count(t.switches.size(), "NVSwitch", "NVSwitches");
  count(t.nics.size(), "NIC", "NICs");
  count(t.numa.size(), "NUMA node", "NUMA nodes");
  if (t.hosts.size() > 1) parts.push_back(std::to_string(t.hosts.size()) + " hosts");
  std::string text;
  for (const std::string& p : parts) text += (text.empty() ? "" : ", ") + p;
  return text;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : " ") + w;
  return text;
}

void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> width;
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) {
      width.resize(std::max(width.size(), i + 1));
      width[i] = std::max(width[i], row[i].size());
    }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += row[i] + std::string(width[i] - row[i].size() + 2, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    std::printf("  %s\n", line.c_str());
  }
}

void print_matrix(const Topology& t) {
  std::vector<std::vector<std::string>> rows(1, {""});
  int gpus = int(t.gpus.size());
  for (int d = 0; d < t.devices(); ++d) rows[0].push_back(t.device_name(d));
  rows[0].insert(rows[0].end(), {"CPU affinity", "NUMA"});
  for (int a = 0; a < t.devices(); ++a) {
    std::vector<std::string> row{t.device_name(a)};
    for (int b = 0; b < t.devices(); ++b) row.push_back(t.pair(a, b).str());
    auto numa = a < gpus ? t.gpus[size_t(a)].numa : t.nics[size_t(a - gpus)].numa;
    row.push_back(a < gpus ? t.gpus[size_t(a)].cpus : "");
    if (a < gpus && row.back().empty()) row.back() = "?";
    row.push_back(numa ? std::to_string(*numa) : a < gpus ? "?" : "");
    rows.push_back(row);
  }
  print_table(rows);
}

std::string gbps_text(double gbps) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g GB/s", gbps);
  return text;
}

void print_devices(const Topology& t) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> bare;  // nothing is known of them
  for (int d = 0; d < t.devices(); ++d) {
    std::vector<std::string> row{t.device_name(d)};
    if (d < int(t.gpus.size())) {
      const GpuDevice& g = t.gpus[size_t(d)];
      row.push_back(g.name.empty() ? "model not known" : g.name);
      row.push_back(g.pci ? g.pci->str() : "");
      std::string pcie;
      if (g.pcie_max.width > 0) {
        pcie = "PCIe Gen" + std::to_string(g.pcie_max.generation) + " x" + std::to_string(g.pcie_max.width);
        if (g.pcie.width > 0 && !(g.pcie == g.pcie_max))
          pcie += " (now Gen" + std::to_string(g.pcie.generation) + " x" + std::to_string(g.pcie.width) + ")";
      }
      if (g.host_copy_gbps) pcie += (pcie.empty() ? "" : ", ") + ("copies " + gbps_text(*g.host_copy_gbps));
      row.push_back(pcie);
      if (g.nvlinks_active) row.push_back(std::to_string(*g.nvlinks_active) + " NVLinks");
    } else {
      const NicDevice& n = t.nics[size_t(d) - t.gpus.size()];
      row.push_back(n.name.empty() ? "name not known" : n.name);
      row.push_back(n.pci ? n.pci->str() : "");
      row.push_back((n.gbps ? gbps_text(*n.gbps) : "") + std::string(n.infiniband ? " InfiniBand" : "") +
                    (n.up ? "" : " down"));
    }
    const bool told = std::any_of(row.begin() + 2, row.end(), [](auto& cell) { return !cell.empty(); });
    if (told || !row[1].ends_with("not known"))
      rows.push_back(row);
    else
      bare.push_back(row[0]);
  }
  print_table(rows);
  if (bare.size() == size_t(t.devices()))
    std::printf("  models and names of the devices: not known\n");
  else if (!bare.empty())
    std::printf("  nothing known of %s\n", joined(bare).c_str());
}

void print_islands(const Topology& t) {
  std::vector<std::string> parts;
  for (const auto& island : t.islands()) {
    if (island.size() < 2) continue;
    std::string text;
    for (int g : island) text += (text.empty() ? "" : " ") + t.device_name(g);
    parts.push_back(text);
  }
  if (t.gpus.size() < 2) return;
  std::printf("\nNVLink islands\n");
  for (const std::string& p : parts) std::printf("  %s\n", p.c_str());
  // A file of NCCL may leave the NVLinks to the driver, or not say where they lead.
  const bool hidden =
      std::any_of(t.gpus.begin(), t.gpus.end(), [](auto& g) { return g.nvlinks_active.value_or(0) > 0; });
  const bool left_out = t.source == TopologySource::nccl_xml &&
                        std::all_of(t.gpus.begin(), t.gpus.end(), [](auto& g) { return g.name.empty() && !g.sm; });
  if (parts.empty())
    std::printf("  %s\n", hidden     ? "not known: the file does not tell where the NVLinks lead"
                          : left_out ? "not known: the file describes PCIe alone"
                                     : "none: the GPUs are joined by PCIe alone");
}

// "data=4" "tensor=2": what each axis of a process mesh gets, its ranks placed so that inner axes are fastest.
void print_mesh(const Topology& t, const std::vector<std::string>& mesh) {
  PlacementOptions options;
  for (const std::string& axis : mesh) {
    const size_t at = axis.find('=');
    int size = 0;
    if (at != std::string::npos) std::from_chars(axis.data() + at + 1, axis.data() + axis.size(), size);
    XY_CHECK(at != std::string::npos && at > 0 && size > 0 && axis.ends_with("=" + std::to_string(size)),
             "--mesh needs axes with their sizes, outermost first, such as data=4,tensor=2, not \"", axis, "\"");
    options.axes.push_back({axis.substr(0, at), size});
  }
  RankPlacement placement = place_ranks(t, options);
  std::printf("\nmesh\n");
  for (const AxisReport& a : placement.axes) {
    DevicePair slowest;
    slowest.path = a.worst;
    std::string text = a.size == 1        ? "one rank"
                       : a.inside_islands ? "inside NVLink islands"
                                          : "slowest pair " + slowest.str();
    if (a.size > 1 && a.gbps) text += ", " + gbps_text(*a.gbps);
    std::printf("  %s %d: %s\n", a.name.c_str(), a.size, text.c_str());
  }
  std::fputs(placement.text(t).c_str(), stdout);
  if (!placement.findings.empty()) std::fputs(format_findings(placement.findings).c_str(), stdout);
}

void print_report(const Topology& t, const std::vector<Finding>& findings, const Plan& plan,
                  const std::vector<std::string>& mesh) {
  std::printf("%s: %s (fingerprint %s)\n", t.origin.c_str(), summary(t).c_str(), t.fingerprint().c_str());
  const HostInfo& h = t.hosts[0];
  std::string host;
  auto add = [&](const std::string& text) {
    if (!text.empty()) host += (host.empty() ? "" : ", ") + text;
  };
  add(h.cpu_model.empty() ? h.cpu_vendor : h.cpu_model);
  add(h.driver.empty() ? "" : "driver " + h.driver);
  add(h.cuda.empty() ? "" : "CUDA " + h.cuda);
  add(h.nccl.empty() ? "" : "NCCL " + h.nccl);
  add(h.virtual_machine ? "virtual machine" : "");
  add(h.container ? "container" : "");
  if (!host.empty()) std::printf("%s\n", host.c_str());
  if (t.devices() > 0) {
    std::printf("\n");
    print_devices(t);
    std::printf("\n");
    print_matrix(t);
  }
  if (!t.numa.empty()) {
    std::printf("\nNUMA nodes\n");
    for (const NumaNode& n : t.numa) {
      std::string near;
      for (int g = 0; g < int(t.gpus.size()); ++g)
        if (t.gpus[size_t(g)].host == n.host && t.gpus[size_t(g)].numa == n.id) near += " " + t.device_name(g);
      std::printf("  %s%d: CPUs %s%s%s\n", t.hosts.size() > 1 ? (t.host_name(n.host) + ":").c_str() : "", n.id,
                  n.cpus.empty() ? "not known" : n.cpus.c_str(), near.empty() ? "" : ";", near.c_str());
    }
  }
  print_islands(t);
  if (!mesh.empty())
    print_mesh(t, mesh);
  else if (t.gpus.size() > 1)
    std::printf("\nranks\n%s", place_ranks(t).text(t).c_str());
  if (plan.ranks > 1)
    std::printf("\nplan for %d ranks on %d node%s\n%s", plan.ranks, plan.nodes, plan.nodes == 1 ? "" : "s",
                plan.explain().c_str());
  std::printf("\nfindings\n%s", findings.empty() ? "  none\n" : format_findings(findings).c_str());
}

// A file that gives devices by address alone is completed where it describes this machine.
Topology load_from(const std::string& file) {
  Topology t = load_topology(file);
  if (t.unknown.empty()) return t;
  const Topology here = detect_topology();
  return load_topology(file, &here);
}

void run(const Options& o) {
  Topology t;
  std::vector<Finding> findings;
  if (o.from.empty()) {
    Detection d = detect();
    read_multicast(d.topology);
    if (o.measure) measure(d.topology);
    t = d.topology;
    findings = find_problems(t, d.environment);
  } else {
    XY_CHECK(!o.measure, "--measure measures this machine: leave --from out");
    t = load_from(o.from);
    for (GpuDevice& g : t.gpus)
      if (g.name.empty()) g.name = o.gpu;
    findings = find_problems(t, {});
  }
  if (!o.svg.empty()) {
    std::ofstream out(o.svg, std::ios::binary);
    out << topology_svg(t, findings);
    XY_CHECK(out.flush(), o.svg, ": cannot be written");
  }
  PlanOptions options;
  if (!o.nic.empty()) options.nic_gbps = gigabytes_per_second("--nic", o.nic);
  const Topology machine = o.nodes > 1 ? replicate(t, o.nodes) : t;
  auto measured = load_measured(machine, int(machine.gpus.size()), int(machine.hosts.size()));
  if (measured) options.measured = &*measured;
  Plan plan = make_plan(machine, options);
  if (o.json)
    std::fputs(report_json(t, findings, plan.to_json()).c_str(), stdout);
  else
    print_report(t, findings, plan, o.mesh);
  if (std::any_of(findings.begin(), findings.end(), [](auto& f) { return f.severity == Severity::error; }))
    throw Exit{1};
}

}  // namespace

void add_topo_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* c =
      app.add_subcommand("topo", "How GPUs, NICs and CPUs are joined, what is wrong, and the plan for collectives");
  CLI::Option* from = c->add_option("--from", options->from,
                                    "Read NCCL's XML, nvidia-smi topo -m text or Xylem's JSON instead of this machine");
  c->add_option("--gpu", options->gpu, "With --from: the GPUs' model, if the file does not tell")->needs(from);
  c->add_option("--mesh", options->mesh, "Place a process mesh, outermost axis first: data=4,tensor=2")->delimiter(',');
  c->add_flag("--json", options->json, "Print JSON")->excludes("--mesh");
  c->add_option("--svg", options->svg, "Draw the machine into this file");
  c->add_option("--nodes", options->nodes, "Plan for this many such machines")->check(CLI::Range(1, 4096));
  c->add_option("--nic", options->nic, "Speed of a NIC, if the topology does not tell: 400Gb/s, 50GB/s");
  c->add_flag("--measure", options->measure,
              "Copy between host and GPUs and check and time it; judges PCIe under load");
  c->callback([options] { run(*options); });
}

}  // namespace xylem::cli
