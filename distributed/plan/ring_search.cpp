// SPDX-License-Identifier: Apache-2.0
#include "distributed/plan/ring_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace xylem {
namespace {

constexpr double kSlack = 1e-6;
constexpr int kBudget = 30000;  // hops tried per step of the ladder; every known machine needs far fewer

// Looks for as many rings of one step as there are, depth first, each hop taking its bandwidth from what is left.
class Search {
 public:
  Search(const RingProblem& problem, double step, int most)
      : left_(problem), n_(int(problem.nvlink.size())), step_(step), out_(problem.pcie), in_(problem.pcie) {
    bound_ = most;
    for (int i = 0; i < n_; ++i) {
      double parts = 0;
      for (double gbps : problem.nvlink[size_t(i)]) parts += std::floor(gbps / step + kSlack);
      bound_ = std::min(bound_, int(parts + std::floor(problem.pcie[size_t(i)] / step + kSlack)));
    }
  }

  std::vector<std::vector<int>> run() {
    if (bound_ > 0) {
      ring_ = {0};
      extend();
    }
    return best_;
  }

 private:
  bool done() const { return int(best_.size()) >= bound_ || tried_ > kBudget; }

  // Takes the bandwidth of a hop; says how, so that it can be given back. 0: there is no room.
  enum Way { none, nvlink, pcie };
  Way take(size_t a, size_t b) {
    if (left_.nvlink[a][b] >= step_ - kSlack) {
      left_.nvlink[a][b] -= step_;
      return nvlink;
    }
    double need = step_ * left_.pcie_factor[a][b];
    if (need <= 0 || out_[a] < need - kSlack || in_[b] < need - kSlack) return none;
    if (left_.socket[a] != left_.socket[b]) {
      double& link = used_between_[{left_.socket[a], left_.socket[b]}];
      if (link + step_ > left_.between_sockets + kSlack) return none;
      link += step_;
    }
    out_[a] -= need;
    in_[b] -= need;
    return pcie;
  }
  void give_back(size_t a, size_t b, Way way) {
    if (way == nvlink) {
      left_.nvlink[a][b] += step_;
      return;
    }
    double need = step_ * left_.pcie_factor[a][b];
    out_[a] += need;
    in_[b] += need;
    if (left_.socket[a] != left_.socket[b]) used_between_[{left_.socket[a], left_.socket[b]}] -= step_;
  }

  void extend() {
    int at = ring_.back();
    if (int(ring_.size()) == n_) return close(at);
    std::vector<int> next;
    for (int j = 1; j < n_; ++j)
      if (std::find(ring_.begin(), ring_.end(), j) == ring_.end()) next.push_back(j);
    // The way of the ring before first, so that rings share an order where they can; then nearest, then by number.
    int before = -1;
    if (!found_.empty()) {
      const auto& r = found_.back();
      before = r[size_t(std::find(r.begin(), r.end(), at) - r.begin() + 1) % r.size()];
    }
    auto nearness = [&](int j) {
      if (j == before) return -1.0;
      if (left_.nvlink[size_t(at)][size_t(j)] >= step_ - kSlack) return 0.0;
      return 1 + left_.pcie_factor[size_t(at)][size_t(j)] +
             (left_.socket[size_t(at)] != left_.socket[size_t(j)] ? 10 : 0);
    };
    std::stable_sort(next.begin(), next.end(), [&](int x, int y) { return nearness(x) < nearness(y); });
    for (int j : next) {
      if (done()) return;
      ++tried_;
      Way way = take(size_t(at), size_t(j));
      if (way == none) continue;
      ring_.push_back(j);
      extend();
      ring_.pop_back();
      give_back(size_t(at), size_t(j), way);
    }
  }

  void close(int last) {
    Way way = take(size_t(last), 0);
    if (way == none) return;
    found_.push_back(ring_);
    if (found_.size() > best_.size()) best_ = found_;
    if (!done()) {
      auto saved = std::exchange(ring_, {0});
      extend();
      ring_ = std::move(saved);
    }
    found_.pop_back();
    give_back(size_t(last), 0, way);
  }

  RingProblem left_;
  int n_;
  double step_;
  std::vector<double> out_, in_;
  std::map<std::pair<int, int>, double> used_between_;
  int bound_ = 0, tried_ = 0;
  std::vector<int> ring_;
  std::vector<std::vector<int>> found_, best_;
};

}  // namespace

Rings search_rings(const RingProblem& problem, const std::vector<double>& ladder, int most) {
  Rings best;
  for (double step : ladder) {
    Rings rings{step, Search(problem, step, most).run()};
    if (rings.total() > best.total() + kSlack) best = std::move(rings);
  }
  for (const auto& order : best.orders)
    for (size_t i = 0; i < order.size(); ++i)
      best.nvlink &= problem.nvlink[size_t(order[i])][size_t(order[(i + 1) % order.size()])] > 0;
  return best;
}

}  // namespace xylem
