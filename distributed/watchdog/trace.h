// SPDX-License-Identifier: Apache-2.0
// A trace for chrome://tracing or ui.perfetto.dev: the phases of a step and every collective of every rank on one time
// line. A rank is a process of the trace, with a track for its host, one for its GPU and one for each group.
#pragma once
#include <memory>
#include <string>

#include "core/device/device.h"

namespace xylem::trace {

// Begins a trace that finish() writes to `file` ("": none). Collective over the job; Run calls both.
void start(const std::string& file, int rank);
// Writes <file>.rank<r> on every rank, which rank 0 puts together. Times of different hosts are aligned at start().
void finish();
bool on();

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
