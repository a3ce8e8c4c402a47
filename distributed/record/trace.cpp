// SPDX-License-Identifier: Apache-2.0
#include "distributed/record/trace.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "core/device/graph.h"
#include "core/util/check.h"
#include "distributed/record/recorder.h"

namespace xylem::trace {
namespace {

using Json = nlohmann::ordered_json;

struct HostSpan {
  const char* name;
  int64_t begin_ns, end_ns;
  int thread;  // 0 is the first that made a span
};
struct GpuSpan {
  const char* name;
  Event begin, end;
};

struct State {
  std::mutex lock;
  std::string file;
  int rank = 0;
  int64_t start_ns = 0;
  std::vector<HostSpan> host;
  std::vector<GpuSpan> gpu;
  std::optional<Event> base;  // GPU times count from here
  int64_t base_ns = 0;
  int threads = 0, generation = 0;
};
State& state() {
  static State& s = *new State;
  return s;
}
std::atomic<bool> running = false;

int thread_number(State& s) {  // under the lock
  thread_local int number = -1, generation = -1;
  if (generation != s.generation) number = s.threads++, generation = s.generation;
  return number;
}

Event mark(Device device) {
  Event e(true);
  e.record(current_stream(device));
  return e;
}

Json complete(const std::string& name, int rank, int track, double begin_us, double length_us) {
  return {{"name", name}, {"ph", "X"},      {"pid", rank},
          {"tid", track}, {"ts", begin_us}, {"dur", std::max(length_us, 0.001)}};
}
Json label(const char* kind, int rank, int track, const std::string& name) {
  return {{"name", kind}, {"ph", "M"}, {"pid", rank}, {"tid", track}, {"args", {{"name", name}}}};
}

// The events of this rank; `zero` is the instant on this host's clock from which the trace counts.
Json events(State& s, int64_t zero) {
  auto us = [&](int64_t ns) { return double(ns - zero) * 1e-3; };
  Json list = Json::array();
  list.push_back(label("process_name", s.rank, 0, "rank " + std::to_string(s.rank)));
  list.push_back(
      {{"name", "process_sort_index"}, {"ph", "M"}, {"pid", s.rank}, {"tid", 0}, {"args", {{"sort_index", s.rank}}}});
  for (int t = 0; t < s.threads; ++t)
    list.push_back(label("thread_name", s.rank, t, t == 0 ? "training" : "thread " + std::to_string(t)));
  for (const HostSpan& h : s.host)
    list.push_back(complete(h.name, s.rank, h.thread, us(h.begin_ns), double(h.end_ns - h.begin_ns) * 1e-3));

  constexpr int kGpuTrack = 1000, kGroupTrack = 2000;
  if (!s.gpu.empty()) list.push_back(label("thread_name", s.rank, kGpuTrack, "GPU"));
  for (GpuSpan& g : s.gpu) {
    g.end.synchronize();
    double begin = g.begin.elapsed_ms(*s.base) * 1e3, end = g.end.elapsed_ms(*s.base) * 1e3;
    list.push_back(complete(g.name, s.rank, kGpuTrack, us(s.base_ns) + begin, end - begin));
  }

  std::map<std::string, int> tracks;
  for (const recorder::Collective& c : recorder::take()) {
    if (c.finished_ns == 0) continue;
    bool message = c.op.starts_with("send ") || c.op.starts_with("receive ");
    std::string track = c.group + (message ? " messages" : "");
    auto [at, fresh] = tracks.insert({track, kGroupTrack + int(tracks.size())});
    if (fresh) list.push_back(label("thread_name", s.rank, at->second, "collectives of " + track));
    std::string name = c.tag.empty() ? c.op : c.op + " " + c.tag;
    Json e = complete(name, s.rank, at->second, us(c.started_ns), double(c.finished_ns - c.started_ns) * 1e-3);
    e["args"] = {{"sequence", c.sequence},
                 {"bytes", c.count * int64_t(size_of(c.dtype))},
                 {"type", name_of(c.dtype)},
                 {"algorithm", c.algorithm},
                 {"called_us", us(c.enqueued_ns)}};
    list.push_back(std::move(e));
  }
  return list;
}

void write_events(const std::string& file, const Json& list) {
  std::ofstream out(file, std::ios::binary);
  out << "{\"traceEvents\": [\n";
  for (size_t i = 0; i < list.size(); ++i)
    out << list[i].dump(-1, ' ', false, Json::error_handler_t::replace) << (i + 1 < list.size() ? ",\n" : "\n");
  out << "], \"displayTimeUnit\": \"ms\"}\n";
  out.close();
  XY_CHECK(out, "cannot write the trace to ", file);
}

}  // namespace

bool on() { return running.load(std::memory_order_relaxed); }

void start(const std::string& file, int rank) {
  if (file.empty()) return;
  State& s = state();
  std::lock_guard guard(s.lock);
  s.file = file;
  s.rank = rank;
  s.start_ns = recorder::now_ns();
  s.host.clear();
  s.gpu.clear();
  s.threads = 0;
  ++s.generation;
  recorder::keep_all(true);
  running = true;
}

std::string stop() {
  if (!running.exchange(false)) return {};
  State& s = state();
  std::lock_guard guard(s.lock);
  return s.file;
}

int64_t started_ns() {
  State& s = state();
  std::lock_guard guard(s.lock);
  return s.start_ns;
}

void write(const std::string& file, int64_t zero_ns) {
  State& s = state();
  std::lock_guard guard(s.lock);
  write_events(file, events(s, zero_ns));
}

void join(const std::string& file, int ranks) {
  Json all = Json::array();
  for (int r = 0; r < ranks; ++r) {
    std::string part = file + ".rank" + std::to_string(r);
    std::ifstream in(part);
    Json one = in ? Json::parse(in, nullptr, false) : Json();
    if (!one.is_object()) continue;  // a folder that is not shared
    for (Json& e : one["traceEvents"]) all.push_back(std::move(e));
    std::remove(part.c_str());
  }
  write_events(file, all);
}

void Span::begin(const char* name, Device device) {
  name_ = name;
  begin_ns_ = recorder::now_ns();
  if (!device.is_cuda() || capturing(device)) return;
  State& s = state();
  std::lock_guard guard(s.lock);
  if (!s.base) {
    s.base = mark(device);
    s.base->synchronize();
    s.base_ns = recorder::now_ns();
  }
  device_ = device;
  gpu_begin_ = std::make_unique<Event>(mark(device));
}

void Span::end() {
  int64_t now = recorder::now_ns();
  State& s = state();
  std::lock_guard guard(s.lock);
  if (!on()) return;
  s.host.push_back({name_, begin_ns_, now, thread_number(s)});
  if (gpu_begin_ && !capturing(device_)) s.gpu.push_back({name_, *gpu_begin_, mark(device_)});
}

}  // namespace xylem::trace
