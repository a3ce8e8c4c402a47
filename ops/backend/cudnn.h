// SPDX-License-Identifier: Apache-2.0
// cuDNN's graph interface in a few words: descriptors that free themselves, and plans: an operation graph with the
// engine that runs it. For the .cpp files that hold cuDNN operations.
#pragma once
#include <cudnn.h>

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device/device.h"

namespace xylem::cudnn {

void check(cudnnStatus_t status, const char* call);
#define XY_CUDNN(call) ::xylem::cudnn::check((call), #call)

// The device's cuDNN handle on the current stream. One session at a time in a process.
class Session {
 public:
  explicit Session(Device device);
  cudnnHandle_t handle() const { return handle_; }

 private:
  std::unique_lock<std::mutex> lock_;
  cudnnHandle_t handle_;
};

class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const void* values,
                  int64_t count = 1);
  Descriptor& set(cudnnBackendAttributeName_t name, const std::vector<int64_t>& values);
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& value);
  Descriptor& finalize();
  cudnnBackendDescriptor_t get() const { return raw_.get(); }

 private:
  struct Free {
    void operator()(void* raw) const { cudnnBackendDestroyDescriptor(raw); }
  };
  std::unique_ptr<void, Free> raw_;
};

// A strided tensor of an operation graph, named by `id`. `alignment` in bytes, of its address.
Descriptor tensor(int64_t id, cudnnDataType_t type, const std::vector<int64_t>& dims,
                  const std::vector<int64_t>& strides, int64_t alignment = 16);

// Engines that a plan may not use.
struct Forbid {
  bool nondeterministic = true;
  bool rounded_inputs = false;  // TF32 products of f32 operands
  bool transforms = false;      // Winograd and FFT, which lose accuracy
};

struct Plan {
  std::vector<Descriptor> parts;  // everything the plan refers to
  std::unique_ptr<Descriptor> plan;
  int64_t workspace = 0;
};
// What it takes to time a problem: the tensors' addresses as for execute(), the outputs' with nothing in them that is
// still needed. `problem` names it among the kept choices.
struct Trial {
  std::string problem;
  std::vector<int64_t> ids;
  std::vector<void*> addresses;
  Device device;
};
// The first engine of cuDNN's list that is not forbidden or, with a trial, the fastest of the first ones; null where
// there is none. Takes over `parts`, the descriptors of the graph, of which the last `operations` are its operations.
std::shared_ptr<const Plan> make_plan(const Session& session, std::vector<Descriptor> parts, int operations,
                                      const Forbid& forbid, const std::optional<Trial>& trial = {});
// Enqueues the plan with the tensors' addresses; workspace comes from our allocator.
void execute(const Session& session, const Plan& plan, std::span<const int64_t> ids, std::span<void* const> addresses,
             Device device);

}  // namespace xylem::cudnn
