// SPDX-License-Identifier: Apache-2.0
// A trace for chrome://tracing or ui.perfetto.dev: the phases of a step and every collective of every rank on one time
// line. A rank is a process of the trace, with a track for its host, one for its GPU and one for each group. Here is
// what one rank records; distributed/launch/job_trace.h brings the ranks together.
#pragma once
#include <memory>
#include <string>

#include "core/device/device.h"

namespace xylem::trace {

// Begins the trace of this rank ("": none).
void start(const std::string& file, int rank);
bool on();
// Ends it. The file that start() named; "" if no trace was on.
std::string stop();
int64_t started_ns();  // steady clock
// Writes what was recorded; time counts from `zero_ns`. recorder::keep_all() stays on.
void write(const std::string& file, int64_t zero_ns);
// Puts <file>.rank<r> of all ranks together in `file`, and removes them.
void join(const std::string& file, int ranks);

// A phase: `trace::Span span("backward");` lasts as long as the object. With a GPU, the time that its work takes there
// is shown as well, unless it is being captured in a graph. Costs one test of a flag when no trace is taken. The name
// must be a literal.
class Span {
 public:
  explicit Span(const char* name, Device device = Device::cpu()) {
    if (on()) begin(name, device);
  }
  ~Span() {
    if (name_) end();
  }
  Span(const Span&) = delete;

 private:
  void begin(const char* name, Device device);
  void end();
  const char* name_ = nullptr;
  int64_t begin_ns_ = 0;
  std::unique_ptr<Event> gpu_begin_;
  Device device_{};
};

}  // namespace xylem::trace
