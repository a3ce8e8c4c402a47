// SPDX-License-Identifier: Apache-2.0
// Machines made by hand for the plan's tests: only what the plan reads is filled in.
#pragma once
#include <functional>
#include <string>

#include "distributed/topology/topology.h"

namespace xylem::test {

struct Machine {
  std::string gpu = "NVIDIA H200";
  int sm = 90, gpus = 8;
  PathClass path = PathClass::nvswitch;
  int nvlinks = 18;  // to the switches, or to each peer
  std::string cpu = "GenuineIntel";
  int cpu_model = 207;
  int pcie = 5;
  int nics = 0;
  double nic_gbps = 0;
};

// One host whose GPUs all reach each other alike; `pair` may change that.
inline Topology make_host(const Machine& m, const std::function<void(int, int, DevicePair&)>& pair = {}) {
  Topology t;
  t.hosts.resize(1);
  t.hosts[0].cpu_vendor = m.cpu;
  t.hosts[0].cpu_model_number = m.cpu_model;
  for (int g = 0; g < m.gpus; ++g) {
    GpuDevice d;
    d.index = g;
    d.name = m.gpu;
    d.sm = m.sm;
    d.numa = g * 2 / m.gpus;
    d.pcie = d.pcie_max = {m.pcie, 16};
    t.gpus.push_back(d);
  }
  for (int k = 0; k < m.nics; ++k) {
    NicDevice n;
    n.index = k;
    n.name = "mlx5_" + std::to_string(k);
    if (m.nic_gbps > 0) n.gbps = m.nic_gbps;
    t.nics.push_back(n);
  }
  size_t all = t.gpus.size() + t.nics.size();
  t.pairs.assign(all, std::vector<DevicePair>(all));
  for (size_t i = 0; i < all; ++i)
    for (size_t j = 0; j < all; ++j) {
      DevicePair& p = t.pairs[i][j];
      bool gpu_i = i < t.gpus.size(), gpu_j = j < t.gpus.size();
      if (i == j) {
        p.path = PathClass::self;
      } else if (gpu_i && gpu_j) {
        p.path = m.path;
        p.nvlinks = m.path == PathClass::nvlink || m.path == PathClass::nvswitch ? m.nvlinks : 0;
        if (pair) pair(int(i), int(j), p);
      } else {
        p.path = i % t.gpus.size() == j % t.gpus.size() ? PathClass::pxb : PathClass::sys;
      }
    }
  return t;
}

// `n` of them, joined by the network.
inline Topology make_cluster(const Topology& host, int n) {
  Topology t;
  const size_t gpus = host.gpus.size(), nics = host.nics.size();
  for (int h = 0; h < n; ++h) {
    t.hosts.push_back(host.hosts[0]);
    for (GpuDevice d : host.gpus) d.host = h, t.gpus.push_back(d);
    for (NicDevice d : host.nics) d.host = h, t.nics.push_back(d);
  }
  size_t all = t.gpus.size() + t.nics.size();
  t.pairs.assign(all, std::vector<DevicePair>(all));
  auto place = [&](size_t i) {  // host, device in it
    return i < t.gpus.size() ? std::pair{i / gpus, i % gpus}
                             : std::pair{(i - t.gpus.size()) / nics, gpus + (i - t.gpus.size()) % nics};
  };
  for (size_t i = 0; i < all; ++i)
    for (size_t j = 0; j < all; ++j) {
      auto [h, d] = place(i);
      auto [k, e] = place(j);
      if (h == k)
        t.pairs[i][j] = host.pairs[d][e];
      else
        t.pairs[i][j].path = PathClass::net;
    }
  return t;
}

inline Machine hgx_h200() { return {}; }
inline Machine dgx_h100() {
  Machine m;
  m.gpu = "NVIDIA H100 80GB HBM3";
  m.nics = 8;
  m.nic_gbps = 50;
  return m;
}
inline Machine dgx_a100() {
  Machine m;
  m.gpu = "NVIDIA A100-SXM4-80GB";
  m.sm = 80;
  m.nvlinks = 12;
  m.cpu = "AuthenticAMD";
  m.cpu_model = 49;
  m.pcie = 4;
  m.nics = 8;
  m.nic_gbps = 25;
  return m;
}
inline Machine a100_mesh_4() {
  Machine m = dgx_a100();
  m.gpus = 4;
  m.path = PathClass::nvlink;
  m.nvlinks = 4;
  m.nics = 0;
  return m;
}
inline Machine hgx_b200() {
  Machine m;
  m.gpu = "NVIDIA B200";
  m.sm = 100;
  return m;
}
inline Machine pcie_box(const std::string& gpu, int sm, int gpus, int generation) {
  Machine m;
  m.gpu = gpu;
  m.sm = sm;
  m.gpus = gpus;
  m.path = PathClass::phb;
  m.nvlinks = 0;
  m.pcie = generation;
  return m;
}
inline Topology dgx1v() {
  static constexpr int links[8][8] = {{0, 1, 1, 2, 2, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0}, {1, 2, 0, 2, 0, 0, 1, 0},
                                      {2, 1, 2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 1, 1, 2}, {0, 2, 0, 0, 1, 0, 2, 1},
                                      {0, 0, 1, 0, 1, 2, 0, 2}, {0, 0, 0, 1, 2, 1, 2, 0}};
  Machine m = pcie_box("Tesla V100-SXM2-32GB", 70, 8, 3);
  m.cpu_model = 79;
  return make_host(m, [](int i, int j, DevicePair& p) {
    p.nvlinks = links[i][j];
    p.path = links[i][j] ? PathClass::nvlink : PathClass::sys;
  });
}

}  // namespace xylem::test
