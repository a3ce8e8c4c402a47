// SPDX-License-Identifier: Apache-2.0
// Each host is a panel. From the top: arcs of direct NVLink or the bar of the NVSwitches, the row of GPUs, PCIe
// switches, NICs, and the bar of the CPUs, side by side for each NUMA node.
#include "distributed/topology/svg.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "core/util/svg.h"

namespace xylem {
namespace {

constexpr double kGpuWidth = 84, kGpuHeight = 56, kGap = 16, kNicWidth = 72, kNicHeight = 34, kMargin = 28;
constexpr const char* kGreen = "#2e8b57";
constexpr const char* kBlue = "#2f6fb3";
constexpr const char* kGrey = "#8a949e";
constexpr const char* kOrange = "#d9822b";
constexpr const char* kPurple = "#7d5ba6";
constexpr const char* kRed = "#d32f2f";
constexpr const char* kInk = "#1f2933";
constexpr const char* kDashes = "stroke-dasharray=\"6 4\"";

std::string shortened(const std::string& text, size_t most) {
  return text.size() <= most ? text : text.substr(0, most - 3) + "...";
}

// "NVIDIA H100 80GB HBM3" -> "H100": the first word with a digit in it, as models are called.
std::string short_model(const std::string& name) {
  for (size_t at = 0; at < name.size();) {
    size_t end = std::min(name.find_first_of(" -", at), name.size());
    std::string word = name.substr(at, end - at);
    if (word.find_first_of("0123456789") != std::string::npos) return shortened(word, 11);
    at = end + 1;
  }
  return shortened(name, 11);
}

// A link; one that is broken is red and dashed.
void draw_link(SvgCanvas& c, double x1, double y1, double x2, double y2, const char* stroke, double width,
               bool broken) {
  c.line(x1, y1, x2, y2, broken ? kRed : stroke, width, broken ? kDashes : "");
}

void draw_arc(SvgCanvas& c, double x1, double x2, double y, double height, double width, bool broken) {
  auto point = [](double x, double y) { return svg_number(x) + " " + svg_number(y); };
  c.path("M" + point(x1, y) + " C" + point(x1, y - height) + " " + point(x2, y - height) + " " + point(x2, y),
         broken ? kRed : kGreen, width, broken ? kDashes : "");
}

constexpr const char* kMiddle = "text-anchor=\"middle\"";
constexpr const char* kTiny = "text-anchor=\"middle\" font-size=\"8.5\"";
constexpr const char* kSmall = "text-anchor=\"middle\" font-size=\"10\"";
// Readable over lines too.
constexpr const char* kLabel =
    "text-anchor=\"middle\" font-size=\"10\" paint-order=\"stroke\" stroke=\"#ffffff\" stroke-width=\"4\"";
constexpr const char* kBold = "text-anchor=\"middle\" font-weight=\"bold\"";

class HostPanel {
 public:
  HostPanel(const Topology& t, int host, const std::vector<Finding>& findings) : t_(t), host_(host) {
    for (int d = 0; d < t.devices(); ++d)
      if (t.host_of(d) == host) (d < gpus() ? my_gpus_ : my_nics_).push_back(d);
    for (const Finding& f : findings)
      if (f.severity != Severity::info)
        for (const std::string& s : f.subjects) marks_.emplace(s, f.severity);
    place();
  }

  double width() const { return width_; }
  double height() const { return height_; }

  void draw(SvgCanvas& c, double top) {
    top_ = top;
    if (t_.hosts.size() > 1) c.text(kMargin, top + 14, t_.host_name(host_), "font-weight=\"bold\"");
    draw_numa(c);
    draw_pcie(c);
    draw_nvlink(c);
    draw_devices(c);
  }

 private:
  int gpus() const { return int(t_.gpus.size()); }
  double gpu_y() const { return top_ + link_space_; }
  double switch_y() const { return gpu_y() + kGpuHeight + 34; }
  double nic_y() const { return switch_y() + (switches_.empty() ? 12 : 56); }
  double cpu_y() const { return nic_y() + (my_nics_.empty() ? 0 : nic_rows_ * (kNicHeight + 8)) + 26; }
  const Severity* mark(const std::string& name) const {
    auto at = marks_.find(name);
    return at == marks_.end() ? nullptr : &at->second;
  }

  // The highest bridge above a device that another device shares.
  std::optional<PciAddress> shared_bridge(int device) const {
    auto chain = [&](int d) {
      std::vector<PciAddress> up;
      auto at = d < gpus() ? t_.gpus[size_t(d)].parent : t_.nics[size_t(d - gpus())].parent;
      while (at && up.size() < 32) {
        up.push_back(*at);
        auto bridge = std::find_if(t_.bridges.begin(), t_.bridges.end(),
                                   [&](const PciBridge& b) { return b.host == host_ && b.pci == *at; });
        at = bridge == t_.bridges.end() ? std::nullopt : bridge->parent;
      }
      return up;
    };
    std::optional<PciAddress> best;
    for (const PciAddress& b : chain(device))
      for (int other : all())
        if (other != device) {
          auto theirs = chain(other);
          if (std::find(theirs.begin(), theirs.end(), b) != theirs.end()) best = b;
        }
    return best;
  }
  std::vector<int> all() const {
    std::vector<int> list = my_gpus_;
    list.insert(list.end(), my_nics_.begin(), my_nics_.end());
    return list;
  }

  void place() {
    // GPUs left to right by NUMA node, then number.
    auto key = [&](int g) { return std::pair(t_.gpus[size_t(g)].numa.value_or(INT32_MAX), t_.gpus[size_t(g)].index); };
    std::sort(my_gpus_.begin(), my_gpus_.end(), [&](int a, int b) { return key(a) < key(b); });
    double x = kMargin + 14;
    for (size_t i = 0; i < my_gpus_.size(); ++i) {
      auto numa = t_.gpus[size_t(my_gpus_[i])].numa;
      if (i > 0 && numa != t_.gpus[size_t(my_gpus_[i - 1])].numa) x += 40;
      auto& group = groups_[numa.value_or(INT32_MAX)];
      if (group.second == 0) group.first = x;
      x_[my_gpus_[i]] = x + kGpuWidth / 2;
      x += kGpuWidth + kGap;
      group.second = x - kGap;
    }
    for (const NumaNode& n : t_.numa)
      if (n.host == host_ && my_gpus_.empty() && !groups_.count(n.id)) {
        groups_[n.id] = {x, x + 260};
        x += 300;
      }
    if (groups_.empty()) {
      groups_[INT32_MAX] = {x, x + 260};
      x += 300;
    }
    width_ = x + kMargin;
    place_nics();
    for (int d : all())
      if (auto b = shared_bridge(d)) switches_[*b].push_back(d);
    bool switched = std::any_of(my_gpus_.begin(), my_gpus_.end(), [&](int g) { return links_to_switch(g) > 0; });
    int widest = 0;
    for (size_t i = 0; i < my_gpus_.size(); ++i)
      for (size_t j = i + 1; j < my_gpus_.size(); ++j)
        if (t_.pair(my_gpus_[i], my_gpus_[j]).path == PathClass::nvlink) widest = std::max(widest, int(j - i));
    link_space_ = (t_.hosts.size() > 1 ? 22 : 6) + (switched ? 78 : 0) + (widest ? 34 + 17 * widest : 0) + 24;
    top_ = 0;
    height_ = cpu_y() + 58;
  }

  // NICs stand below the GPUs that they are nearest to, within the NUMA node of these; where they do not fit into one
  // row, those that share a switch with a GPU come first.
  void place_nics() {
    std::map<int, std::vector<std::pair<double, int>>> wishes;  // by group
    std::set<int> near;
    for (int n : my_nics_) {
      PathClass best = PathClass::unknown;
      for (int g : my_gpus_) best = std::min(best, t_.pair(g, n).path);
      auto numa = t_.nics[size_t(n - gpus())].numa;
      int group = numa && groups_.count(*numa) ? *numa : groups_.rbegin()->first;
      if (best <= PathClass::pxb) near.insert(n);
      double sum = 0, count = 0;
      if (best <= PathClass::node)
        for (int g : my_gpus_) {
          if (t_.pair(g, n).path != best) continue;
          int theirs = t_.gpus[size_t(g)].numa.value_or(INT32_MAX);
          if (count == 0 && groups_.count(theirs)) group = theirs;
          if (theirs != group) continue;
          sum += x_[g];
          ++count;
        }
      auto [left, right] = groups_[group];
      wishes[group].emplace_back(count > 0 ? sum / count : (left + right) / 2, n);
    }
    for (auto& [group, list] : wishes) {
      std::sort(list.begin(), list.end());
      const double left = groups_[group].first - 6, right = groups_[group].second + 6, step = kNicWidth + 8;
      const int columns = std::max(1, int((right - left + 8) / step));
      const auto far = std::stable_partition(list.begin(), list.end(), [&](auto& w) { return near.count(w.second); });
      auto rows_of = [&](auto n) { return (int(n) + columns - 1) / columns; };
      std::vector<std::pair<size_t, size_t>> rows;  // from, to
      auto divide = [&](size_t from, size_t to) {
        const size_t n = size_t(rows_of(to - from));
        for (size_t r = 0; r < n; ++r) rows.emplace_back(from + (to - from) * r / n, from + (to - from) * (r + 1) / n);
      };
      if (rows_of(list.size()) == 1) {
        std::sort(list.begin(), list.end());
        rows.emplace_back(0, list.size());
      } else {
        divide(0, size_t(far - list.begin()));
        divide(size_t(far - list.begin()), list.size());
      }
      nic_rows_ = std::max(nic_rows_, int(rows.size()));
      for (int row = 0; row < int(rows.size()); ++row) {
        const auto [begin, end] = rows[size_t(row)];
        double least = left + kNicWidth / 2;
        for (size_t i = begin; i < end; ++i) {
          // Those with one wish stand around it.
          auto same = [&](size_t k) { return list[k].first == list[i].first; };
          size_t first = i, last = i;
          while (first > begin && same(first - 1)) --first;
          while (last + 1 < end && same(last + 1)) ++last;
          double wish = list[i].first + (double(i) - double(first + last) / 2) * step;
          double most = right - kNicWidth / 2 - double(end - 1 - i) * step;  // leaves room for those that follow
          double at = std::max(std::min(wish, most), least);
          x_[list[i].second] = at;
          row_[list[i].second] = row;
          least = at + step;
        }
      }
    }
  }

  int links_to_switch(int gpu) const {
    int count = 0;
    for (const FabricLink& l : t_.links)
      if (l.kind == LinkKind::nvlink && l.a == t_.device_name(gpu) && l.b.find("NVSwitch") != std::string::npos)
        count += l.count;
    return count;
  }

  void draw_numa(SvgCanvas& c) {
    for (auto& [node, span] : groups_) {
      double left = span.first - 14, right = span.second + 14;
      c.rect(left, gpu_y() - 14, right - left, cpu_y() + 40 - gpu_y() + 14, "#f7f9fb", "#d5dce3");
      std::string label = node == INT32_MAX ? "NUMA node not known" : "NUMA " + std::to_string(node);
      std::string cpus;
      for (const NumaNode& n : t_.numa)
        if (n.host == host_ && n.id == node) cpus = n.cpus;
      c.rect(left + 8, cpu_y(), right - left - 16, 30, "#e4e9ee", kGrey);
      label += cpus.empty() ? "" : ", CPUs " + cpus;
      const double middle = (left + right) / 2;
      const auto fit = size_t((right - left - 20) / 5.6);
      if (label.size() <= fit || cpus.empty()) {
        bool tight = double(label.size()) * 7.6 > right - left - 24;
        c.text(middle, cpu_y() + 19, label, tight ? kSmall : kMiddle);
      } else {  // in two lines
        c.text(middle, cpu_y() + 13, "NUMA " + std::to_string(node), kSmall);
        c.text(middle, cpu_y() + 25, shortened("CPUs " + cpus, size_t((right - left - 20) / 4.7)), kTiny);
      }
    }
    double last = -1;
    for (auto& [node, span] : groups_) {
      if (last >= 0) c.line(last, cpu_y() + 15, span.first - 6, cpu_y() + 15, kGrey, 4);
      last = span.second + 6;
    }
  }

  double device_top(int d) const { return d < gpus() ? gpu_y() : nic_y() + row_.at(d) * (kNicHeight + 8); }
  double device_bottom(int d) const { return device_top(d) + (d < gpus() ? kGpuHeight : kNicHeight); }

  void draw_pcie(SvgCanvas& c) {
    for (int d : all()) {
      if (shared_bridge(d)) continue;
      if (d >= gpus()) {  // to the GPUs behind the same switch, where the source has no bridges
        bool joined = false;
        for (int g : my_gpus_) {
          PathClass p = t_.pair(g, d).path;
          if (p != PathClass::pix && p != PathClass::pxb) continue;
          c.line(x_[g], gpu_y() + kGpuHeight, x_[d], device_top(d), kBlue, p == PathClass::pix ? 2.5 : 1.5);
          joined = true;
        }
        if (joined) continue;
      }
      const Severity* bad = d < gpus() ? pcie_mark(d) : nullptr;
      double offset = d < gpus() ? -kGpuWidth / 2 + 10 : 0;
      draw_link(c, x_[d] + offset, device_bottom(d), x_[d] + offset, cpu_y(), kGrey, 1.5, bad);
    }
    for (auto& [bridge, devices] : switches_) {
      double sum = 0;
      for (int d : devices) sum += x_[d];
      double x = sum / double(devices.size());
      c.line(x, switch_y() + 13, x, cpu_y(), kGrey, 2);
      for (int d : devices) {
        bool above = d < gpus();
        draw_link(c, x_[d], above ? device_bottom(d) : device_top(d), x, switch_y() + (above ? 0 : 26), kBlue, 2,
                  above && pcie_mark(d));
      }
      c.rect(x - 44, switch_y(), 88, 26, "#e6f0fa", kBlue);
      c.text(x, switch_y() + 17, bridge.str(), kSmall);
    }
  }

  const Severity* pcie_mark(int gpu) const {
    const GpuDevice& g = t_.gpus[size_t(gpu)];
    bool narrow = g.pcie_max.width > 0 && g.pcie.width > 0 && g.pcie.width < g.pcie_max.width;
    bool slow = g.pcie_judged && g.pcie.generation > 0 && g.pcie.generation < g.pcie_max.generation;
    return narrow || slow ? mark(t_.device_name(gpu)) : nullptr;
  }

  void draw_nvlink(SvgCanvas& c) {
    bool switched = std::any_of(my_gpus_.begin(), my_gpus_.end(), [&](int g) { return links_to_switch(g) > 0; });
    double bar = top_ + (t_.hosts.size() > 1 ? 22 : 6);
    int usual = 0;
    for (int g : my_gpus_) usual = std::max(usual, links_to_switch(g));
    if (switched) {
      double left = x_[my_gpus_.front()] - kGpuWidth / 2, right = x_[my_gpus_.back()] + kGpuWidth / 2;
      for (int g : my_gpus_) {
        int links = links_to_switch(g);
        bool broken = links < usual;
        draw_link(c, x_[g], bar + 30, x_[g], gpu_y(), kGreen, broken ? 2.5 : 5, broken);
        c.text(x_[g] + 19, gpu_y() - 20, links ? "NV" + std::to_string(links) : "none", kSmall, broken ? kRed : kInk);
      }
      c.rect(left, bar, right - left, 30, "#e3f4ea", kGreen);
      int count = int(std::count_if(t_.switches.begin(), t_.switches.end(), [&](auto& s) { return s.host == host_; }));
      c.text((left + right) / 2, bar + 20, count > 1 ? std::to_string(count) + " NVSwitches" : "NVSwitch", kBold);
    }
    int most = 1;
    std::vector<std::tuple<double, double, std::string, bool>> labels;  // over all arcs
    for (size_t i = 0; i < my_gpus_.size(); ++i)
      for (size_t j = 0; j < my_gpus_.size(); ++j)
        if (t_.pair(my_gpus_[i], my_gpus_[j]).path == PathClass::nvlink)
          most = std::max(most, t_.pair(my_gpus_[i], my_gpus_[j]).nvlinks);
    for (size_t i = 0; i < my_gpus_.size(); ++i)
      for (size_t j = i + 1; j < my_gpus_.size(); ++j) {
        int a = my_gpus_[i], b = my_gpus_[j];
        const DevicePair& p = t_.pair(a, b);
        bool broken = mark(t_.device_name(std::min(a, b)) + "-" + t_.device_name(std::max(a, b)));
        if (p.path != PathClass::nvlink && !(broken && p.nvlinks == 0)) continue;
        double height = (24 + 17 * double(j - i)) * 4 / 3;  // a Bezier curve reaches three quarters of its handles
        draw_arc(c, x_[a] + 8, x_[b] - 8, gpu_y(), height, 1 + 3.0 * p.nvlinks / most, broken);
        labels.emplace_back((x_[a] + x_[b]) / 2, gpu_y() - height * 0.75 + 3, p.str(), broken);
      }
    for (auto& [x, y, words, broken] : labels) c.text(x, y, words, kLabel, broken ? kRed : kInk);
  }

  void draw_devices(SvgCanvas& c) {
    for (int d : all()) {
      bool gpu = d < gpus();
      std::string name = t_.device_name(d);
      std::string label = name.substr(name.find(':') == std::string::npos ? 0 : name.rfind(':') + 1);
      const Severity* bad = mark(name);
      double w = gpu ? kGpuWidth : kNicWidth, h = gpu ? kGpuHeight : kNicHeight, y = device_top(d);
      bool down = !gpu && !t_.nics[size_t(d - gpus())].up;
      const char* edge = bad ? (*bad == Severity::error ? kRed : kOrange) : gpu ? kGreen : down ? kGrey : kPurple;
      const char* style = bad && *bad == Severity::error ? "stroke-width=\"3\" stroke-dasharray=\"6 4\""
                          : bad                          ? "stroke-width=\"3\""
                                                         : "stroke-width=\"1.5\"";
      c.rect(x_[d] - w / 2, y, w, h,
             bad && *bad == Severity::error ? "#fdecea"
             : gpu                          ? "#edf8f1"
                                            : "#f5f0fa",
             edge, style);
      c.text(x_[d], y + (!gpu ? 15 : t_.gpus[size_t(d)].name.empty() ? 32 : 22), label, kBold);
      if (gpu) {
        const GpuDevice& g = t_.gpus[size_t(d)];
        c.text(x_[d], y + 38, short_model(g.name), kSmall);
        if (g.pcie.width > 0 && g.pcie.width < g.pcie_max.width)
          c.text(x_[d], y + 50, "PCIe x" + std::to_string(g.pcie.width) + " of x" + std::to_string(g.pcie_max.width),
                 kSmall, kRed);
      } else {
        const NicDevice& n = t_.nics[size_t(d - gpus())];
        c.text(x_[d], y + 28, shortened(n.name, 12) + (down ? " down" : ""), kSmall, down ? kGrey : kInk);
      }
    }
  }

  const Topology& t_;
  int host_;
  std::vector<int> my_gpus_, my_nics_;
  std::map<std::string, Severity> marks_;
  std::map<int, double> x_;                          // centre of a device
  std::map<int, int> row_;                           // of a NIC
  std::map<int, std::pair<double, double>> groups_;  // NUMA node -> left, right
  std::map<PciAddress, std::vector<int>> switches_;
  int nic_rows_ = 1;
  double width_ = 0, height_ = 0, link_space_ = 0, top_ = 0;
};

double draw_legend(SvgCanvas& c, double y) {
  double x = kMargin;
  auto entry = [&](const char* colour, double width, bool broken, const std::string& words) {
    draw_link(c, x, y - 4, x + 26, y - 4, colour, width, broken);
    c.text(x + 32, y, words, "font-size=\"11\"");
    x += 50 + 6.2 * double(words.size());
  };
  entry(kGreen, 4, false, "NVLink");
  entry(kBlue, 2, false, "PCIe switch");
  entry(kGrey, 2, false, "host bridge, sockets");
  entry(kRed, 2.5, true, "down, missing or slow");
  return y + 10;
}

}  // namespace

std::string topology_svg(const Topology& t, const std::vector<Finding>& findings) {
  SvgCanvas c;
  size_t shown = std::min<size_t>(t.hosts.size(), 4);
  double width = 600, y = 64;
  std::map<std::string, int> models;
  for (const GpuDevice& g : t.gpus) ++models[g.name.empty() ? "GPU" : g.name];
  std::string title;
  for (auto& [name, n] : models) title += (title.empty() ? "" : ", ") + std::to_string(n) + " x " + name;
  if (title.empty()) title = "no GPU";
  if (t.hosts.size() > 1) title += " on " + std::to_string(t.hosts.size()) + " hosts";
  for (size_t h = 0; h < shown; ++h) {
    HostPanel panel(t, int(h), findings);
    panel.draw(c, y);
    width = std::max(width, panel.width());
    y += panel.height() + 12;
  }
  if (shown < t.hosts.size()) {
    c.text(kMargin, y + 6, "and " + std::to_string(t.hosts.size() - shown) + " more hosts", "font-style=\"italic\"");
    y += 24;
  }
  y = draw_legend(c, y + 14) + 16;
  size_t lines = 0;
  for (const Finding& f : findings) {
    if (f.severity == Severity::info || lines == 10) continue;
    ++lines;
    c.text(kMargin, y, std::string(name_of(f.severity)) + " " + f.code, "font-size=\"12\" font-weight=\"bold\"",
           f.severity == Severity::error ? kRed : kOrange);
    c.text(kMargin + 14, y + 15, shortened(f.what, size_t((width - 2 * kMargin) / 6.2)), "font-size=\"12\"");
    y += 36;
  }
  c.text(kMargin, 30, title, "font-size=\"18\" font-weight=\"bold\"");
  c.text(kMargin, 48, shortened(t.origin.substr(t.origin.rfind('/') + 1), 60) + ", fingerprint " + t.fingerprint(),
         "font-size=\"11\"", kGrey);
  return c.document(width, y + 8);
}

}  // namespace xylem
