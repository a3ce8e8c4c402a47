// SPDX-License-Identifier: Apache-2.0
#include "ops/backend/cudnn.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "core/tensor/tensor.h"
#include "core/util/check.h"
#include "ops/backend/choices.h"

namespace xylem::cudnn {
namespace {

constexpr int64_t kModestWorkspace = int64_t(512) << 20;  // larger ones only where no other engine works

std::vector<cudnnBackendNumericalNote_t> notes_of(const Descriptor& config) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  int64_t count = 0;
  XY_CUDNN(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                    &raw));
  std::vector<cudnnBackendNumericalNote_t> notes(CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  XY_CUDNN(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                    CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes.data()));
  notes.resize(size_t(count));
  return notes;
}

bool allowed(const Descriptor& config, const Forbid& forbid) {
  for (auto note : notes_of(config)) switch (note) {
      case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
        if (forbid.nondeterministic) return false;
        break;
      case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
      case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
        if (forbid.rounded_inputs) return false;
        break;
      case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
        return false;
      case CUDNN_NUMERICAL_NOTE_FFT:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13:
        if (forbid.transforms) return false;
        break;
      default:
        break;
    }
  return true;
}

// Engine configurations for the graph, best first.
std::vector<Descriptor> configurations(const Descriptor& graph) {
  std::vector<Descriptor> all;
  for (cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
        .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode);
    if (cudnnBackendFinalize(heuristic.get()) != CUDNN_STATUS_SUCCESS) continue;
    int64_t count = 0, filled = 0;
    XY_CUDNN(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0,
                                      &count, nullptr));
    if (count == 0) continue;
    size_t before = all.size();
    std::vector<cudnnBackendDescriptor_t> raw;
    for (int64_t i = 0; i < count; ++i) raw.push_back(all.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
    XY_CUDNN(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                      count, &filled, raw.data()));
    all.erase(all.begin() + int64_t(before) + filled, all.end());
  }
  return all;
}

}  // namespace

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char detail[512] = "";
  cudnnGetLastErrorString(detail, sizeof detail);
  XY_FAIL(call, ": ", cudnnGetErrorString(status), detail[0] ? " " : "", detail);
}

Session::Session(Device device) {
  static std::mutex mutex;
  static std::map<int, cudnnHandle_t> handles;  // live until the process ends
  lock_ = std::unique_lock(mutex);
  cudnnHandle_t& handle = handles[device.index];
  if (!handle) XY_CUDNN(cudnnCreate(&handle));
  handle_ = handle;
  XY_CUDNN(cudnnSetStream(handle_, cuda_stream(device)));
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t raw;
  XY_CUDNN(cudnnBackendCreateDescriptor(type, &raw));
  raw_.reset(raw);
}
Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const void* values,
                            int64_t count) {
  XY_CUDNN(cudnnBackendSetAttribute(get(), name, type, count, values));
  return *this;
}
Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, const std::vector<int64_t>& values) {
  return set(name, CUDNN_TYPE_INT64, values.data(), int64_t(values.size()));
}
Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& value) {
  cudnnBackendDescriptor_t raw = value.get();
  return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw);
}
Descriptor& Descriptor::finalize() {
  XY_CUDNN(cudnnBackendFinalize(get()));
  return *this;
}

Descriptor tensor(int64_t id, cudnnDataType_t type, const std::vector<int64_t>& dims,
                  const std::vector<int64_t>& strides, int64_t alignment) {
  Descriptor t(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, dims)
      .set(CUDNN_ATTR_TENSOR_STRIDES, strides)
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &id)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment)
      .finalize();
  return t;
}

namespace {

// An engine's plan for a graph.
struct Candidate {
  size_t place;  // in cuDNN's list
  std::unique_ptr<Descriptor> plan;
  int64_t workspace = 0;
};

// Nothing where the engine cannot run the graph.
std::optional<Candidate> build(const Session& session, const Descriptor& config, size_t place) {
  cudnnHandle_t handle = session.handle();
  Candidate c{place, std::make_unique<Descriptor>(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)};
  c.plan->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &handle)
      .set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  if (cudnnBackendFinalize(c.plan->get()) != CUDNN_STATUS_SUCCESS) return {};
  int64_t count = 0;
  XY_CUDNN(cudnnBackendGetAttribute(c.plan->get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                    &count, &c.workspace));
  return c;
}

// Up to `most` plans that are content with a modest workspace, or the one that needs least.
std::vector<Candidate> candidates(const Session& session, const std::vector<Descriptor>& configs, const Forbid& forbid,
                                  size_t most) {
  std::vector<Candidate> modest;
  std::optional<Candidate> least;
  for (size_t i = 0; i < configs.size() && modest.size() < most; ++i) {
    if (!allowed(configs[i], forbid)) continue;
    std::optional<Candidate> c = build(session, configs[i], i);
    if (!c) continue;
    if (c->workspace <= kModestWorkspace)
      modest.push_back(std::move(*c));
    else if (!least || c->workspace < least->workspace)
      least = std::move(c);
  }
  if (modest.empty() && least) modest.push_back(std::move(*least));
  return modest;
}

cudnnStatus_t enqueue(const Session& session, const Descriptor& plan, std::span<const int64_t> ids,
                      std::span<void* const> addresses, void* scratch) {
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids.data(), int64_t(ids.size()))
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, addresses.data(), int64_t(addresses.size()))
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &scratch)
      .finalize();
  return cudnnBackendExecute(session.handle(), plan.get(), pack.get());
}

size_t fastest(const Session& session, const std::vector<Candidate>& all, const Trial& trial) {
  int64_t bytes = 0;
  for (const Candidate& c : all) bytes = std::max(bytes, c.workspace);
  Tensor workspace = empty({bytes}, u8, trial.device);
  size_t best = 0;
  float shortest = INFINITY;
  for (size_t i = 0; i < all.size(); ++i) {
    auto ms = cuda::time_of(trial.device, shortest, [&] {
      return enqueue(session, *all[i].plan, trial.ids, trial.addresses, bytes ? workspace.raw() : nullptr) ==
             CUDNN_STATUS_SUCCESS;
    });
    if (ms && *ms < shortest) shortest = *ms, best = i;
  }
  return best;
}

// The choice of an earlier program, "place of count" in cuDNN's list, or one that is made and kept now.
std::optional<Candidate> choose(const Session& session, const std::vector<Descriptor>& configs, const Forbid& forbid,
                                const std::optional<Trial>& trial) {
  constexpr size_t kTimed = 6;
  const std::string count = " of " + std::to_string(configs.size());
  CacheFile* file = nullptr;
  if (trial) {
    file = &cuda::kept_choices("cudnn-" + std::to_string(cudnnGetVersion()), trial->device);
    if (std::optional<std::string> kept = file->find(trial->problem); kept && kept->ends_with(count)) {
      const size_t place = size_t(std::atoi(kept->c_str()));
      if (place < configs.size() && allowed(configs[place], forbid))
        if (auto c = build(session, configs[place], place)) return c;
    }
  }
  const bool timed = trial && cuda::may_time(trial->device);
  std::vector<Candidate> all = candidates(session, configs, forbid, timed ? kTimed : 1);
  if (all.empty()) return {};
  size_t best = 0;
  if (timed) {
    best = all.size() > 1 ? fastest(session, all, *trial) : 0;
    const int place = std::atoi(file->keep(trial->problem, std::to_string(all[best].place) + count).c_str());
    for (size_t i = 0; i < all.size(); ++i)
      if (int(all[i].place) == place) best = i;  // what another process has kept meanwhile
  }
  return std::move(all[best]);
}

}  // namespace

std::shared_ptr<const Plan> make_plan(const Session& session, std::vector<Descriptor> parts, int operations,
                                      const Forbid& forbid, const std::optional<Trial>& trial) {
  auto result = std::make_shared<Plan>();
  result->parts = std::move(parts);
  std::vector<cudnnBackendDescriptor_t> ops;
  for (size_t i = result->parts.size() - size_t(operations); i < result->parts.size(); ++i)
    ops.push_back(result->parts[i].get());
  cudnnHandle_t handle = session.handle();
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &handle)
      .set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, ops.data(), int64_t(ops.size()));
  if (cudnnBackendFinalize(graph.get()) != CUDNN_STATUS_SUCCESS) return nullptr;
  std::vector<Descriptor> configs = configurations(graph);
  std::optional<Candidate> chosen = choose(session, configs, forbid, trial);
  if (!chosen) return nullptr;
  result->plan = std::move(chosen->plan);
  result->workspace = chosen->workspace;
  result->parts.push_back(std::move(graph));
  result->parts.push_back(std::move(configs[chosen->place]));
  return result;
}

void execute(const Session& session, const Plan& plan, std::span<const int64_t> ids, std::span<void* const> addresses,
             Device device) {
  Tensor workspace = empty({plan.workspace}, u8, device);
  void* scratch = plan.workspace ? workspace.raw() : nullptr;
  XY_CUDNN(enqueue(session, *plan.plan, ids, addresses, scratch));
}

}  // namespace xylem::cudnn
