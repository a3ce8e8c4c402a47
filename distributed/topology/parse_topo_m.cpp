// SPDX-License-Identifier: Apache-2.0
// Text of nvidia-smi: `topo -m`, and beside it what people paste with it: `topo -p2p r`, `nvlink -s`, `nvidia-smi -L`.
//
// The table comes in many states. Raw output separates cells by tabs and underlines the header with ANSI codes; pasted
// output has spaces instead, or the codes without their escape character. Cells of the CPU affinity may be empty (no
// CPU of that node is allowed to the job), so rows of raw output are read by position; pasted ones by the columns of
// the header. NIC rows may be absent, and so may GPU rows: a pair is known if one of its two cells is.
#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>

#include "core/util/check.h"
#include "distributed/topology/cpulist.h"
#include "distributed/topology/derive.h"
#include "distributed/topology/gpu_model.h"
#include "distributed/topology/topology.h"

namespace xylem {
namespace {

struct Word {
  std::string_view text;
  size_t at;  // column
};

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t' || s.front() == '\r')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r')) s.remove_suffix(1);
  return s;
}

std::vector<Word> words_of(std::string_view line) {
  std::vector<Word> words;
  for (size_t at = 0; (at = line.find_first_not_of(" \t\r", at)) != std::string_view::npos;) {
    size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    words.push_back({line.substr(at, end - at), at});
    at = end;
  }
  return words;
}

std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells;
  for (size_t at = 0;; ++at) {
    size_t end = std::min(line.find('\t', at), line.size());
    cells.push_back(trim(line.substr(at, end - at)));
    if (end == line.size()) return cells;
    at = end;
  }
}

// Terminal codes, with their escape character or, as pasted, without it.
std::string without_ansi(std::string_view line) {
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    size_t at = i + (line[i] == '\x1b');
    if (at < line.size() && line[at] == '[') {
      size_t end = at + 1;
      while (end < line.size() && (std::isdigit(uint8_t(line[end])) || line[end] == ';')) ++end;
      if (end < line.size() && (line[end] == 'm' || line[end] == 'K')) {
        i = end;
        continue;
      }
    }
    if (line[i] != '\x1b') out += line[i];
  }
  return out;
}

// "GPU12" with prefix "GPU" -> 12
std::optional<int> numbered(std::string_view word, std::string_view prefix) {
  if (!word.starts_with(prefix)) return std::nullopt;
  word.remove_prefix(prefix.size());
  int n = 0;
  auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), n);
  if (error != std::errc() || end != word.data() + word.size() || n < 0 || n > 4095) return std::nullopt;
  return n;
}

std::optional<PeerAccess> peer_word(std::string_view word) {
  static constexpr std::pair<std::string_view, PeerAccess> kWords[] = {
      {"OK", PeerAccess::ok},        {"CNS", PeerAccess::chipset},      {"GNS", PeerAccess::not_supported},
      {"TNS", PeerAccess::topology}, {"NS", PeerAccess::not_supported}, {"DR", PeerAccess::disabled},
      {"DR.", PeerAccess::disabled}, {"U", PeerAccess::unknown}};
  for (auto [name, access] : kWords)
    if (word == name) return access;
  return std::nullopt;
}

bool is_cell(std::string_view word) { return parse_pair_word(word) || peer_word(word); }

// The columns after the devices, by the first word of their titles.
enum class Extra { cpus, numa, memory_numa };

struct Reader {
  explicit Reader(const std::string& where) : origin(where) {}

  const std::string& origin;
  int line_number = 0;
  std::string_view line;

  // the table under way
  bool in_table = false;
  std::vector<std::string> columns;
  std::vector<std::pair<Extra, size_t>> extras;  // with the column of the text
  bool tabbed = false;
  std::string peer_kind = "r";

  // what was read
  std::map<int, GpuDevice> gpus;
  std::vector<std::string> nics;
  std::map<std::string, std::string> nic_names;
  std::map<std::pair<std::string, std::string>, DevicePair> cells;
  std::map<std::pair<std::string, std::string>, PeerAccess> peers;
  int status_gpu = -1;

  [[noreturn]] void fail(const std::string& what) const { XY_FAIL(origin, ", line ", line_number, ": ", what); }

  GpuDevice& gpu(int index) {
    GpuDevice& g = gpus[index];
    g.index = index;
    return g;
  }

  bool read_header(const std::vector<Word>& words) {
    if (words.empty() || !numbered(words[0].text, "GPU")) return false;
    if (words.size() > 1 && is_cell(words[1].text)) return false;
    bool titles = words.size() == 1 || numbered(words[1].text, "GPU") || numbered(words[1].text, "NIC") ||
                  words[1].text == "CPU" || words[1].text == "NUMA";
    bool is_row = std::find(columns.begin(), columns.end(), words[0].text) != columns.end();
    if (in_table && is_row && !titles) return false;
    columns.clear();
    extras.clear();
    tabbed = line.find('\t') != std::string_view::npos;
    for (size_t i = 0; i < words.size(); ++i) {
      std::string_view w = words[i].text, next = i + 1 < words.size() ? words[i + 1].text : "";
      if (w == "CPU" && next == "Affinity") {
        extras.emplace_back(Extra::cpus, words[i++].at);
      } else if (w == "NUMA" && next == "Affinity") {
        extras.emplace_back(Extra::numa, words[i++].at);
      } else if (w == "GPU" && next == "NUMA") {
        extras.emplace_back(Extra::memory_numa, words[i].at);
        i += 2;
      } else if (!extras.empty()) {
        fail("after the column of affinities comes '" + std::string(w) + "': expected no further device");
      } else {
        if (std::find(columns.begin(), columns.end(), w) != columns.end())
          fail("the header names " + std::string(w) + " twice");
        columns.emplace_back(w);
      }
    }
    if (columns.size() > 1024) fail("more than 1024 devices in a header");
    in_table = true;
    for (const std::string& c : columns)
      if (auto n = numbered(c, "GPU"))
        gpu(*n);
      else if (std::find(nics.begin(), nics.end(), c) == nics.end())
        nics.push_back(c);
    return true;
  }

  void read_extra(GpuDevice& g, Extra kind, std::string_view cell) {
    bool none = cell.empty() || cell == "N/A" || cell == "?" || cell == "-";
    if (kind == Extra::memory_numa || none) return;
    if (!parse_cpulist(cell))
      fail("the " + std::string(kind == Extra::cpus ? "CPU" : "NUMA") + " affinity of GPU" + std::to_string(g.index) +
           " is '" + std::string(cell) + "': expected a list such as 0-31,64-95");
    if (kind == Extra::cpus)
      g.cpus = cell;
    else
      g.numa = numbered(cell, "");  // of several nodes ("0-1") none is known
  }

  bool read_row(const std::vector<Word>& words) {
    if (!in_table || words.empty()) return false;
    std::string name(words[0].text);
    size_t n = columns.size();
    if (std::find(columns.begin(), columns.end(), name) == columns.end()) {
      if (numbered(name, "GPU") && words.size() > 1 && is_cell(words[1].text))
        fail("row " + name + " has no column: the header ends with " + columns.back());
      return false;
    }
    std::vector<std::string_view> cells_here, rest;
    std::vector<size_t> rest_at;
    if (size_t(std::count(line.begin(), line.end(), '\t')) >= n) {
      std::vector<std::string_view> all = cells_of(line);
      size_t first = all[0].empty() ? 1 : 0;  // an indented row
      if (all.size() > first + n) {
        cells_here.assign(all.begin() + long(first) + 1, all.begin() + long(first + n) + 1);
        rest.assign(all.begin() + long(first + n) + 1, all.end());
      }
    }
    if (cells_here.empty())
      for (size_t i = 1; i < words.size(); ++i) {
        if (i <= n) {
          cells_here.push_back(words[i].text);
        } else {
          rest.push_back(words[i].text);
          rest_at.push_back(words[i].at);
        }
      }
    for (size_t i = 0; i < cells_here.size(); ++i) {
      std::string_view cell = cells_here[i];
      if (auto pair = parse_pair_word(cell)) {
        cells.insert_or_assign({name, columns[i]}, *pair);
      } else if (auto peer = peer_word(cell)) {
        if (peer_kind == "r" || peer_kind == "w") {
          PeerAccess& known = peers[{name, columns[i]}];
          if (known == PeerAccess::unknown || known == PeerAccess::ok) known = *peer;
        }
      } else {
        fail("row " + name + ", column " + columns[i] + " holds '" + std::string(cell) +
             "': expected X, NV#, PIX, PXB, PHB, NODE, SYS or ? (are two cells glued together?)");
      }
    }
    if (cells_here.size() < n)
      fail("row " + name + " has " + std::to_string(cells_here.size()) + " cells: expected " + std::to_string(n) +
           ", one for each device of the header");
    if (auto index = numbered(name, "GPU")) read_extras(gpu(*index), rest, rest_at);
    return true;
  }

  void read_extras(GpuDevice& g, const std::vector<std::string_view>& rest, const std::vector<size_t>& at) {
    if (at.empty()) {  // cells, by position
      for (size_t i = 0; i < rest.size() && i < extras.size(); ++i) read_extra(g, extras[i].first, rest[i]);
      return;
    }
    if (rest.size() > extras.size())
      fail("row GPU" + std::to_string(g.index) + " has " + std::to_string(rest.size()) +
           " cells after those of the devices: the header names " + std::to_string(extras.size()));
    // Words, by what stands above them: an empty cell leaves no word.
    size_t from = 0;
    for (size_t i = 0; i < rest.size(); ++i) {
      size_t last = extras.size() - (rest.size() - i), best = from;
      auto distance = [&](size_t k) {
        return at[i] > extras[k].second ? at[i] - extras[k].second : extras[k].second - at[i];
      };
      for (size_t k = from; k <= last; ++k)
        if (distance(k) < distance(best)) best = k;
      read_extra(g, extras[best].first, rest[i]);
      from = best + 1;
    }
  }

  // "GPU 3: NVIDIA A100-SXM4-40GB (UUID: GPU-...)" of `nvidia-smi -L` and `nvlink -s`, and the lines below it.
  bool read_status(std::string_view text) {
    auto take = [&](std::string_view prefix) -> std::optional<int> {
      if (!text.starts_with(prefix)) return std::nullopt;
      size_t colon = text.find(':');
      if (colon == std::string_view::npos) return std::nullopt;
      return numbered(trim(text.substr(prefix.size(), colon - prefix.size())), "");
    };
    std::string_view after = trim(text.substr(std::min(text.size(), text.find(':') + 1)));
    if (auto index = take("GPU ")) {
      GpuDevice& g = gpu(status_gpu = *index);
      size_t uuid = after.find("(UUID: ");
      if (uuid != std::string_view::npos) {
        std::string_view id = after.substr(uuid + 7);
        g.uuid = trim(id.substr(0, id.find(')')));
      }
      g.name = trim(after.substr(0, uuid));
      return true;
    }
    if (status_gpu < 0) return false;
    GpuDevice& g = gpu(status_gpu);
    if (text.starts_with("MIG ")) {
      g.mig = true;
      return true;
    }
    auto link = take("Link ");
    if (!link) return false;
    g.nvlinks_existing = g.nvlinks_existing.value_or(0) + 1;
    g.nvlinks_active = g.nvlinks_active.value_or(0);
    if (after == "<inactive>") {
      g.nvlinks_down.push_back(*link);
      return true;
    }
    double speed = 0;
    auto [end, error] = std::from_chars(after.data(), after.data() + after.size(), speed);
    if (error != std::errc() || !(speed >= 0 && speed < 1e6) ||
        trim(std::string_view(end, size_t(after.data() + after.size() - end))) != "GB/s")
      fail("link " + std::to_string(*link) + " is '" + std::string(after) +
           "': expected a speed in GB/s or <inactive>");
    g.nvlinks_active = *g.nvlinks_active + 1;
    g.nvlink_gbps = std::min(g.nvlink_gbps.value_or(speed), speed);
    return true;
  }

  void read_line() {
    std::string_view text = trim(line);
    size_t peer = text.find("p2p");
    if (peer != std::string_view::npos) {  // "# p2p read", "$ nvidia-smi topo -p2p n"
      std::string_view kind = trim(text.substr(peer + 3));
      peer_kind = kind.empty() ? "r" : std::string(kind.substr(0, 1));
    }
    if (text.empty() || text.starts_with('#')) {
      in_table = in_table && !text.empty();
      return;
    }
    if (read_status(text)) return;
    std::vector<Word> words = words_of(line);
    if (read_header(words) || read_row(words)) return;
    if (words.size() == 2 && words[0].text.ends_with(':') && words[0].text.starts_with("NIC"))
      nic_names[std::string(words[0].text.substr(0, words[0].text.size() - 1))] = words[1].text;
    in_table = false;
  }
};

const DevicePair* cell(const Reader& r, const std::string& a, const std::string& b) {
  auto known = [&](const std::string& x, const std::string& y) -> const DevicePair* {
    auto at = r.cells.find({x, y});
    return at != r.cells.end() && at->second.path != PathClass::unknown ? &at->second : nullptr;
  };
  const DevicePair* there = known(a, b);
  return there ? there : known(b, a);
}

// NV12 is written for 12 links between two GPUs and for 12 links of each to the switches. No GPU has more than 18
// links, and no GPU has all 18 to one other without bridges, so the counts tell which it is.
bool is_switched(const Topology& t, const std::vector<int>& island) {
  for (int i : island) {
    int sum = 0, most = 0;
    for (int j : island)
      if (i != j) {
        sum += t.pair(i, j).nvlinks;
        most = std::max(most, t.pair(i, j).nvlinks);
      }
    const GpuModel* model = find_gpu_model(t.gpus[size_t(i)].name);
    bool all_to_one = model ? !model->bridged() && most == model->nvlinks : most == 18;
    if (sum > 18 || all_to_one) return true;
  }
  return false;
}

void add_links(Topology& t) {
  for (const std::vector<int>& island : t.islands()) {
    if (island.size() < 2) continue;
    bool switched = is_switched(t, island);
    if (switched && t.switches.empty()) t.switches.push_back({.index = 0, .host = 0, .pci = {}});
    for (int i : island) {
      int most = 0;
      std::optional<double> each = nvlink_gbps(t.gpus[size_t(i)]);
      auto link = [&](const std::string& to, int count) {
        t.links.push_back({.a = t.device_name(i),
                           .b = to,
                           .kind = LinkKind::nvlink,
                           .count = count,
                           .gbps = each ? std::optional(*each * count) : std::nullopt});
      };
      for (int j : island) {
        DevicePair& p = t.pairs[size_t(i)][size_t(j)];
        int back = t.pair(j, i).nvlinks;
        if (i == j || p.nvlinks == 0) continue;
        most = std::max(most, p.nvlinks);
        if (switched) p.path = PathClass::nvswitch;
        if (each) p.gbps = *each * (switched && back ? std::min(p.nvlinks, back) : p.nvlinks);
        if (!switched && i < j) link(t.device_name(j), std::max(p.nvlinks, back));
      }
      if (!switched) continue;
      link("NVSwitch0", most);
      if (!t.gpus[size_t(i)].nvlinks_active) t.gpus[size_t(i)].nvlinks_active = most;
    }
  }
}

}  // namespace

Topology parse_topo_m(const std::string& text, const std::string& origin) {
  Reader r(origin);
  std::istringstream in(text);
  for (std::string raw; std::getline(in, raw);) {
    std::string clean = without_ansi(raw);
    r.line = clean;
    ++r.line_number;
    r.read_line();
  }
  r.line = {};
  XY_CHECK(!r.gpus.empty(), origin, ": no table of `nvidia-smi topo -m` in ", r.line_number,
           " lines: expected a line that names the devices (GPU0 GPU1 ... CPU Affinity), then one row for each; NCCL's "
           "XML begins with <system>, Xylem's JSON with {");
  Topology t;
  t.source = TopologySource::topo_m;
  t.origin = origin;
  t.hosts.emplace_back();
  std::vector<std::string> names;
  for (auto& [index, gpu] : r.gpus) {
    complete_from_name(gpu);
    t.gpus.push_back(gpu);
    names.push_back("GPU" + std::to_string(index));
    if (gpu.numa) {
      auto same = [&](const NumaNode& node) { return node.id == *gpu.numa; };
      auto node = std::find_if(t.numa.begin(), t.numa.end(), same);
      if (node == t.numa.end()) node = t.numa.insert(node, {.id = *gpu.numa, .host = 0, .cpus = "", .distance = {}});
      if (node->cpus.empty()) node->cpus = gpu.cpus;
    }
  }
  std::sort(t.numa.begin(), t.numa.end(), [](auto& a, auto& b) { return a.id < b.id; });
  for (const std::string& column : r.nics) {
    NicDevice nic;
    nic.index = int(t.nics.size());
    nic.name = column;
    if (auto index = numbered(column, "NIC")) {
      nic.index = *index;
      auto name = r.nic_names.find(column);
      nic.name = name == r.nic_names.end() ? "" : name->second;
    }
    t.nics.push_back(nic);
    names.push_back(column);
  }
  size_t n = names.size();
  t.pairs.assign(n, std::vector<DevicePair>(n));
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) {
      DevicePair& p = t.pairs[i][j];
      if (i == j)
        p.path = PathClass::self;
      else if (const DevicePair* known = cell(r, names[i], names[j]))
        p = *known;
      if (p.path == PathClass::self && i != j) p.path = PathClass::unknown;
      auto peer = r.peers.find({names[i], names[j]});
      if (peer != r.peers.end() && i != j) p.peer = peer->second;
    }
  add_links(t);
  return t;
}

}  // namespace xylem
