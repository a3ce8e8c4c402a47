// SPDX-License-Identifier: Apache-2.0
// NVLink: links that are down, GPUs unlike their peers, the fabric of NVSwitches.
#include <algorithm>
#include <cstdio>
#include <map>

#include "distributed/topology/findings_internal.h"
#include "distributed/topology/gpu_model.h"

namespace xylem {
namespace detail {
namespace {

std::string numbers(const std::vector<int>& list) {
  std::string text;
  for (size_t i = 0; i < list.size(); ++i)
    text += (i == 0 ? "" : i + 1 == list.size() ? " and " : ", ") + std::to_string(list[i]);
  return text;
}

// Links of a GPU as far as they are known: what the driver says, else those to visible GPUs.
int links_of(const Topology& t, int gpu) {
  if (auto active = t.gpus[size_t(gpu)].nvlinks_active) return *active;
  int sum = 0, most = 0;
  bool switched = false;
  for (int j = 0; j < int(t.gpus.size()); ++j)
    if (j != gpu) {
      sum += t.pair(gpu, j).nvlinks;
      most = std::max(most, t.pair(gpu, j).nvlinks);
      switched |= t.pair(gpu, j).path == PathClass::nvswitch;
    }
  return switched ? most : sum;
}

void find_inactive(const Topology& t, Findings& out) {
  for (int i = 0; i < int(t.gpus.size()); ++i) {
    const GpuDevice& g = t.gpus[size_t(i)];
    if (!g.nvlinks_active || !g.nvlinks_existing || *g.nvlinks_active >= *g.nvlinks_existing) continue;
    const GpuModel* model = find_gpu_model(g.name);
    // Cards that take bridges have all links dark without one.
    if (*g.nvlinks_active == 0 && (!model || model->bridged())) continue;
    if (model && *g.nvlinks_active >= model->nvlinks) continue;  // some models leave links of the chip unused
    std::string down = g.nvlinks_down.empty() ? "" : " (" + numbers(g.nvlinks_down) + " inactive)";
    out.push_back(
        {"NVLINK_INACTIVE",
         Severity::error,
         {t.device_name(i)},
         t.device_name(i) + ": " + std::to_string(*g.nvlinks_active) + " of " + std::to_string(*g.nvlinks_existing) +
             " NVLinks active" + down,
         "the driver counts " + std::to_string(*g.nvlinks_existing) + " links on the card",
         "NCCL leaves the dead links out without a word; every collective with this GPU runs slower, and "
         "with it the whole job",
         model && model->bridged()
             ? "seat the NVLink bridges anew; nvidia-smi nvlink -s shows which links are dark"
             : "look for Xid 74 in dmesg, reset the GPU (nvidia-smi -r) or reboot; if a link stays dark, have "
               "the board replaced"});
  }
}

void find_odd_ones(const Topology& t, Findings& out) {
  // Peers: GPUs of one model on one host.
  std::map<std::pair<int, std::string>, std::vector<int>> peers;
  for (int i = 0; i < int(t.gpus.size()); ++i) peers[{t.gpus[size_t(i)].host, t.gpus[size_t(i)].name}].push_back(i);
  auto islands = t.islands();
  auto island_of = [&](int gpu) -> const std::vector<int>& {
    return *std::find_if(islands.begin(), islands.end(),
                         [&](auto& i) { return std::find(i.begin(), i.end(), gpu) != i.end(); });
  };
  for (auto& [key, group] : peers) {
    if (group.size() < 3) continue;
    std::map<int, int> votes;
    for (int g : group) ++votes[links_of(t, g)];
    auto usual = std::max_element(votes.begin(), votes.end(), [](auto& a, auto& b) { return a.second < b.second; });
    if (usual->second * 2 <= int(group.size()) || usual->first == 0) continue;
    for (int g : group) {
      int have = links_of(t, g);
      bool told = std::any_of(out.begin(), out.end(), [&](const Finding& f) {
        return f.code == "NVLINK_INACTIVE" && f.subjects[0] == t.device_name(g);
      });
      if (have >= usual->first || told) continue;
      std::string name = t.device_name(g), want = std::to_string(usual->first);
      if (have == 0) {
        // Pairs joined by bridges may leave a GPU over; a box where all the others are one island may not.
        std::vector<int> others;
        for (int o : group)
          if (o != g && links_of(t, o) > 0) others.push_back(o);
        bool one = others.size() + 1 >= 3 && island_of(others[0]).size() >= others.size() && others.size() >= 3;
        if (!one) continue;
        out.push_back({"NVLINK_GPU_ALONE",
                       Severity::error,
                       {name},
                       name + " has no NVLink, its " + std::to_string(others.size()) + " peers have",
                       gpu_list(t, others) + ": " + want + " links each; " + name + ": 0",
                       "a ring through this GPU falls back to PCIe: one such GPU turned 507 into 51 GB/s on a "
                       "reported machine, and NCCL does not say so",
                       "nvidia-smi nvlink -s -i " + std::to_string(t.gpus[size_t(g)].index) +
                           " and dmesg (Xid 74, 92); reset the GPU, restart nvidia-fabricmanager; until then leave it "
                           "out (CUDA_VISIBLE_DEVICES)"});
      } else if (t.gpus[size_t(g)].nvlinks_active) {  // else links to GPUs that are not shown may be missing here
        out.push_back(
            {"NVLINK_FEWER_THAN_PEERS",
             Severity::error,
             {name},
             name + " has " + std::to_string(have) + " NVLinks, its peers have " + want,
             std::to_string(usual->second) + " of " + std::to_string(group.size()) + " GPUs of this host have " + want +
                 " links",
             "rings and trees run at the speed of the weakest GPU",
             "nvidia-smi nvlink -s -i " + std::to_string(t.gpus[size_t(g)].index) +
                 " shows the dark links; look for Xid 74 in dmesg, reset the GPU or have the board replaced"});
      }
    }
  }
}

// Where links join all GPUs of an island directly, most pairs say how many there should be.
void find_odd_pairs(const Topology& t, Findings& out) {
  for (const auto& island : t.islands()) {
    std::map<int, int> votes;
    int pairs = 0;
    for (int i : island)
      for (int j : island)
        if (i < j) {
          ++votes[t.pair(i, j).path == PathClass::nvlink ? t.pair(i, j).nvlinks : 0];
          ++pairs;
        }
    auto usual = std::max_element(votes.begin(), votes.end(), [](auto& a, auto& b) { return a.second < b.second; });
    if (pairs < 3 || votes.count(0) || usual->second * 3 <= pairs * 2) continue;
    for (int i : island)
      for (int j : island) {
        if (i >= j || t.pair(i, j).nvlinks >= usual->first) continue;
        std::string pair = t.device_name(i) + "-" + t.device_name(j), have = std::to_string(t.pair(i, j).nvlinks);
        out.push_back({"NVLINK_PAIR_FEWER",
                       Severity::error,
                       {pair},
                       pair + " has " + have + " NVLinks, the other pairs have " + std::to_string(usual->first),
                       std::to_string(usual->second) + " of " + std::to_string(pairs) + " pairs have " +
                           std::to_string(usual->first) + " links",
                       "rings that use this pair run at " + have + "/" + std::to_string(usual->first) + " of the speed",
                       "nvidia-smi nvlink -s shows the dark link; reset both GPUs or have the board replaced"});
      }
  }
}

// The models that a GPU may be: by its name, or, without one, all of its compute capability that have NVLink.
std::vector<const GpuModel*> possible_models(const GpuDevice& g) {
  if (const GpuModel* model = find_gpu_model(g.name)) return {model};
  std::vector<const GpuModel*> models;
  if (g.name.empty() && g.sm)
    for (const GpuModel& m : gpu_models())
      if (m.sm == *g.sm && m.nvlinks > 0) models.push_back(&m);
  return models;
}

// Whether so many links may join two of the model: whole bridges, or any part of what a board has.
bool is_sound(const GpuModel& m, int links) {
  return links <= m.nvlinks && (!m.bridged() || links % m.bridge_links == 0);
}

void find_unsound_pairs(const Topology& t, Findings& out) {
  for (int i = 0; i < int(t.gpus.size()); ++i) {
    const std::vector<const GpuModel*> models = possible_models(t.gpus[size_t(i)]);
    for (int j = i + 1; j < int(t.gpus.size()); ++j) {
      const int links = std::min(t.pair(i, j).nvlinks, t.pair(j, i).nvlinks);
      const bool judged = !models.empty() && links > 0 && t.pair(i, j).path == PathClass::nvlink;
      if (!judged || std::any_of(models.begin(), models.end(), [&](auto* m) { return is_sound(*m, links); })) continue;
      const GpuModel& model = *models[0];
      const std::string pair = t.device_name(i) + "-" + t.device_name(j), count = std::to_string(links);
      const std::string what = models.size() == 1 ? "a " + std::string(model.key)
                                                  : "any GPU of compute capability " + number(model.sm / 10.0);
      const bool too_many = std::all_of(models.begin(), models.end(), [&](auto* m) { return links > m->nvlinks; });
      if (too_many)
        out.push_back({"NVLINK_COUNT",
                       Severity::warning,
                       {pair},
                       pair + " has " + count + " NVLinks, more than " + what + " has",
                       what + " has " + std::to_string(model.nvlinks) + " links",
                       "what is said about these GPUs by their model does not hold",
                       "look whether the model is right (nvidia-smi -L)"});
      else
        out.push_back({"NVLINK_COUNT",
                       Severity::error,
                       {pair},
                       pair + " has " + count + " NVLinks, which no sound bridge gives",
                       "a bridge of " + what + " has " + std::to_string(model.bridge_links) + " links, found " + count,
                       "a link is dark: the pair is slower than it should be, and NCCL does not say so",
                       "seat the NVLink bridge anew, or replace it; nvidia-smi nvlink -s shows the dark link; a badly "
                       "seated bridge also makes nvidia-smi hang"});
    }
  }
}

void find_fewer_than_model(const Topology& t, Findings& out) {
  for (int i = 0; i < int(t.gpus.size()); ++i) {
    const GpuDevice& g = t.gpus[size_t(i)];
    const GpuModel* model = find_gpu_model(g.name);
    if (!model || model->nvlinks == 0) continue;
    std::string name = t.device_name(i);
    bool told = std::any_of(out.begin(), out.end(), [&](const Finding& f) {
      const bool pair = f.code == "NVLINK_COUNT" && ("-" + f.subjects[0] + "-").find("-" + name + "-") != name.npos;
      return !f.subjects.empty() && f.code.starts_with("NVLINK_") && (f.subjects[0] == name || pair);
    });
    if (told) continue;
    int have = links_of(t, i);
    // Without the driver's count, links to GPUs that are not shown are missing here; a bridge joins two cards.
    bool known = g.nvlinks_active.has_value() || (model->bridged() && have > 0);
    if (!known || have == 0 || have >= model->nvlinks) continue;
    out.push_back(
        {"NVLINK_FEWER_THAN_MODEL",
         Severity::warning,
         {name},
         name + " has " + std::to_string(have) + " NVLinks, a " + g.name + " has " + std::to_string(model->nvlinks),
         "expected " + std::to_string(model->nvlinks) + " links, found " + std::to_string(have),
         "bandwidth between the GPUs is " + std::to_string(100 * have / model->nvlinks) + " % of what the model can do",
         model->bridged() ? "seat the NVLink bridges anew, all of them; a badly seated one also makes nvidia-smi hang"
                          : "compare with the other GPUs; in a virtual machine ask for whole GPUs"});
  }
}

void find_asymmetric(const Topology& t, Findings& out) {
  for (int i = 0; i < int(t.gpus.size()); ++i)
    for (int j = i + 1; j < int(t.gpus.size()); ++j) {
      int there = t.pair(i, j).nvlinks, back = t.pair(j, i).nvlinks;
      if (there == back || t.pair(i, j).path == PathClass::nvswitch) continue;
      std::string pair = t.device_name(i) + "-" + t.device_name(j);
      out.push_back({"NVLINK_ASYMMETRIC",
                     Severity::error,
                     {pair},
                     "the two ends of " + pair + " count different NVLinks",
                     t.device_name(i) + " counts " + std::to_string(there) + ", " + t.device_name(j) + " counts " +
                         std::to_string(back),
                     "one end of a link is down; NCCL uses what each end tells it and may fail or hang",
                     "reset both GPUs (nvidia-smi -r) and look for Xid 74 in dmesg"});
    }
}

void find_slow_links(const Topology& t, Findings& out) {
  for (int i = 0; i < int(t.gpus.size()); ++i) {
    const GpuDevice& g = t.gpus[size_t(i)];
    const GpuModel* model = find_gpu_model(g.name);
    if (!model || !g.nvlink_gbps || *g.nvlink_gbps <= 0 || *g.nvlink_gbps >= 0.95 * model->link_gbps) continue;
    char speeds[96];
    std::snprintf(speeds, sizeof speeds, "%.3f GB/s for each link, %.3f are usual", *g.nvlink_gbps, model->link_gbps);
    out.push_back({"NVLINK_SLOW",
                   Severity::warning,
                   {t.device_name(i)},
                   t.device_name(i) + ": its NVLinks run below their speed",
                   speeds,
                   "collectives run at that fraction of their bandwidth",
                   "look at nvidia-smi nvlink -e (errors), at cables and bridges; reset the GPU"});
  }
}

void find_fabric(const Topology& t, Findings& out) {
  std::vector<int> waiting;
  for (int i = 0; i < int(t.gpus.size()); ++i) {
    const GpuDevice& g = t.gpus[size_t(i)];
    if (!g.fabric) continue;
    if (g.fabric->state == 1 || g.fabric->state == 2) waiting.push_back(i);
    std::vector<std::string> ill = fabric_health_problems(g.fabric->health_mask);
    if (ill.empty()) continue;
    char mask[48];
    std::snprintf(mask, sizeof mask, "health mask 0x%x", g.fabric->health_mask);
    out.push_back({"FABRIC_UNHEALTHY",
                   Severity::error,
                   {t.device_name(i)},
                   t.device_name(i) + ": the NVLink fabric reports " + joined(ill),
                   mask,
                   "NVLink traffic of this GPU is slow or fails; NCCL may crash in its start-up",
                   "look at the logs of nvidia-fabricmanager (or the NVLink domain's manager); NCCL_MNNVL_ENABLE=0 "
                   "keeps a job inside its trays meanwhile"});
  }
  if (!waiting.empty())
    out.push_back(
        {"FABRIC_NOT_READY", Severity::error, gpu_names(t, waiting),
         "the NVSwitch fabric is not set up for " + gpu_list(t, waiting),
         "fabric state: " + std::string(t.gpus[size_t(waiting[0])].fabric->state == 1 ? "not started" : "in progress"),
         "CUDA fails with error 802 (system not yet initialized), or GPUs do not reach each other",
         "systemctl status nvidia-fabricmanager: its version must be that of the driver; start it, then wait "
         "until nvidia-smi -q shows Fabric State: Completed"});
  bool hopper =
      !t.gpus.empty() && std::all_of(t.gpus.begin(), t.gpus.end(), [](auto& g) { return g.sm.value_or(0) >= 90; });
  std::vector<int> without;
  for (int i = 0; i < int(t.gpus.size()); ++i)
    if (t.gpus[size_t(i)].multicast == false) without.push_back(i);
  if (hopper && t.all_pairs_nvswitch() && !without.empty())
    out.push_back({"NVLS_LOST", Severity::warning, gpu_names(t, without),
                   "the switches could add (NVLS), but multicast is not available",
                   gpu_list(t, without) + ": the CUDA driver's multicast attribute is 0",
                   "large all-reduces reach about 360 instead of 480 GB/s on eight H100 or H200",
                   "usual in rented virtual machines and containers: ask the provider for an NVSwitch partition with "
                   "multicast; on your own machine update driver and fabric manager together"});
}

void find_islands(const Topology& t, Findings& out) {
  std::map<int, int> sizes;
  std::vector<std::string> lists;
  auto islands = t.islands();
  bool any = false;
  for (const auto& island : islands) {
    any |= island.size() > 1;
    lists.push_back("[" + gpu_list(t, island) + "]");
  }
  bool alone = std::any_of(out.begin(), out.end(), [](auto& f) { return f.code == "NVLINK_GPU_ALONE"; });
  if (islands.size() < 2 || !any || t.hosts.size() > 1 || alone) return;
  std::optional<double> inside, across;
  for (int i = 0; i < int(t.gpus.size()); ++i)
    for (int j = 0; j < int(t.gpus.size()); ++j)
      if (i != j && t.pair(i, j).gbps) {
        auto& side = t.pair(i, j).nvlinks ? inside : across;
        side = std::min(side.value_or(1e9), *t.pair(i, j).gbps);
      }
  std::string numbers =
      inside && across ? " (" + number(*inside) + " inside, " + number(*across) + " GB/s across)" : "";
  out.push_back({"NVLINK_ISLANDS",
                 Severity::info,
                 {},
                 "NVLink joins " + std::to_string(islands.size()) + " islands, not the whole machine",
                 joined(lists, " "),
                 "a group inside an island runs at NVLink speed, a group across islands at that of PCIe" + numbers +
                     "; on eight bridged A100 that was 208 against 20 GB/s",
                 "put the inner axis of a mesh (tensor parallel) inside an island, data parallel across"});
}

void find_self_targets(const Topology& t, Findings& out) {
  std::vector<int> selves;
  for (int i = 0; i < int(t.gpus.size()); ++i) {
    bool linked = std::any_of(t.links.begin(), t.links.end(), [&](const FabricLink& l) {
      return l.kind == LinkKind::nvlink && (l.a == t.device_name(i) || l.b == t.device_name(i));
    });
    if (t.source == TopologySource::nccl_xml && t.gpus[size_t(i)].nvlinks_active.value_or(0) > 0 && !linked)
      selves.push_back(i);
  }
  if (!selves.empty())
    out.push_back({"NVLINK_TO_ITSELF", Severity::info, gpu_names(t, selves),
                   "the file says that NVLinks of " + gpu_list(t, selves) + " lead to the GPU itself",
                   "<nvlink target> is the GPU's own address", "which GPUs NVLink joins cannot be seen from this file",
                   "look at the machine itself: xylem topo or nvidia-smi topo -m"});
}

}  // namespace

void find_nvlink_problems(const Topology& t, Findings& out) {
  find_inactive(t, out);
  find_odd_ones(t, out);
  find_odd_pairs(t, out);
  find_unsound_pairs(t, out);
  find_fewer_than_model(t, out);
  find_asymmetric(t, out);
  find_slow_links(t, out);
  find_fabric(t, out);
  find_self_targets(t, out);
  find_islands(t, out);
}

}  // namespace detail

std::vector<std::string> fabric_health_problems(uint32_t mask) {
  std::vector<std::string> problems;
  auto field = [&](int shift, uint32_t width) { return mask >> shift & width; };
  // Two bits each: 1 is true, 2 is false, 0 is not told. 0xaa is a healthy GPU.
  if (field(0, 3) == 1) problems.push_back("degraded bandwidth");
  if (field(2, 3) == 1) problems.push_back("route recovery in progress");
  if (field(4, 3) == 1) problems.push_back("an unhealthy route");
  if (field(6, 3) == 1) problems.push_back("recovery from an access timeout");
  constexpr const char* kWrong[] = {"",
                                    "",
                                    "a wrong system GUID",
                                    "a wrong chassis serial number",
                                    "no partition",
                                    "too few NVLinks",
                                    "incompatible GPU firmware",
                                    "a wrong location",
                                    "an invalid GPU state"};
  uint32_t wrong = field(8, 0xf);
  if (wrong >= 2) problems.push_back(wrong <= 8 ? kWrong[wrong] : "a wrong configuration");
  return problems;
}

}  // namespace xylem
