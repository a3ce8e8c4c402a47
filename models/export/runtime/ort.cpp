// SPDX-License-Identifier: Apache-2.0
#include "models/export/runtime/ort.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/op/onnx_types.h"
#include "models/export/runtime/environment.h"
#include "models/export/runtime/ort_api.h"

namespace xylem {
namespace {

struct Library {
  const void* api = nullptr;
  std::string version, problem;
  ort::Env* env = nullptr;

  Library() {
    std::vector<std::string> candidates;
    if (const char* set = std::getenv("XY_ONNXRUNTIME"); set && *set) {
      candidates = {set};
    } else {
      for (const auto& found : runtime::find_in_environment("onnxruntime/capi", "libonnxruntime.so"))
        candidates.push_back(found.string());
      candidates.insert(candidates.end(), {"libonnxruntime.so.1", "libonnxruntime.so"});
    }
    for (const std::string& name : candidates)
      if (open(name)) return;
    problem =
        "ONNX Runtime was not found: set XY_ONNXRUNTIME to libonnxruntime.so, or install it with scripts/setup.sh "
        "(pip package onnxruntime). Tried: ";
    for (const std::string& name : candidates) problem += (&name == &candidates[0] ? "" : ", ") + name;
  }

  bool open(const std::string& name) {
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) return false;
    auto get_base = reinterpret_cast<const ort::ApiBase* (*)()>(dlsym(handle, "OrtGetApiBase"));
    const void* table = get_base ? get_base()->get_api(ort::kApiVersion) : nullptr;
    if (!table) return false;
    constexpr int kErrorsOnly = 3;
    if (ort::Status* status = ort::CreateEnv::call(table, kErrorsOnly, "xylem", &env)) {
      ort::ReleaseStatus::call(table, status);
      return false;
    }
    api = table;
    version = get_base()->version();
    return true;
  }
};

// Never unloaded: ONNX Runtime's threads may outlive static destructors.
const Library& library() {
  static const Library& loaded = *new Library;
  return loaded;
}
const void* api() {
  XY_CHECK(library().api, library().problem);
  return library().api;
}

template <class F, class... Args>
void call(Args... args) {
  ort::Status* status = F::call(api(), args...);
  if (!status) return;
  std::string message = ort::ErrorMessage::call(api(), status);
  ort::ReleaseStatus::call(api(), status);
  XY_FAIL("ONNX Runtime: ", message);
}

// Owns one of ONNX Runtime's objects.
template <class T, class Release>
struct Deleter {
  void operator()(T* object) const { Release::call(api(), object); }
};
template <class T, class Release>
using Owned = std::unique_ptr<T, Deleter<T, Release>>;
using OwnedValue = Owned<ort::Value, ort::ReleaseValue>;

std::string take_string(char* text) {
  ort::Allocator* allocator = nullptr;
  call<ort::DefaultAllocator>(&allocator);
  std::string copy = text ? text : "";
  if (text) call<ort::AllocatorFree>(allocator, static_cast<void*>(text));
  return copy;
}

std::vector<int64_t> dimensions(const ort::TensorInfo* info) {
  size_t rank = 0;
  call<ort::DimensionCount>(info, &rank);
  std::vector<int64_t> dims(rank);
  call<ort::Dimensions>(info, dims.data(), rank);
  return dims;
}

template <class Name, class Type>
OrtSession::Port port(ort::Session* session, size_t index) {
  OrtSession::Port p;
  ort::Allocator* allocator = nullptr;
  call<ort::DefaultAllocator>(&allocator);
  char* name = nullptr;
  call<Name>(static_cast<const ort::Session*>(session), index, allocator, &name);
  p.name = take_string(name);
  ort::TypeInfo* type = nullptr;
  call<Type>(static_cast<const ort::Session*>(session), index, &type);
  Owned<ort::TypeInfo, ort::ReleaseTypeInfo> holder(type);
  const ort::TensorInfo* info = nullptr;  // belongs to `type`
  call<ort::AsTensorInfo>(static_cast<const ort::TypeInfo*>(type), &info);
  XY_CHECK(info, "'", p.name, "' is not a tensor");
  int code = 0;
  call<ort::ElementType>(info, &code);
  p.dtype = dtype_from_onnx(code, "'" + p.name + "'");
  p.shape = dimensions(info);
  std::vector<const char*> symbols(p.shape.size(), "");
  call<ort::SymbolicDimensions>(info, symbols.data(), symbols.size());
  p.symbols.assign(symbols.begin(), symbols.end());
  return p;
}

}  // namespace

struct OrtSession::Impl {
  Owned<ort::Session, ort::ReleaseSession> session;
  Owned<ort::MemoryInfo, ort::ReleaseMemoryInfo> memory;
  std::vector<Port> inputs, outputs;
};

bool OrtSession::available() { return library().api != nullptr; }
std::string OrtSession::version() { return library().version; }
std::string OrtSession::why_unavailable() { return library().problem; }

OrtSession::OrtSession(const std::string& model_file, const Options& o) : impl_(std::make_unique<Impl>()) {
  ort::SessionOptions* raw = nullptr;
  call<ort::CreateSessionOptions>(&raw);
  Owned<ort::SessionOptions, ort::ReleaseSessionOptions> options(raw);
  constexpr int kOff = 0, kAll = 99;
  call<ort::SetOptimizationLevel>(raw, o.optimize ? kAll : kOff);
  call<ort::SetIntraOpThreads>(raw, o.threads);
  if (o.x64_quant_precision) call<ort::AddConfigEntry>(raw, "session.x64quantprecision", "1");
  if (!o.save_optimized.empty()) call<ort::SetOptimizedModelFilePath>(raw, o.save_optimized.c_str());

  ort::Session* session = nullptr;
  call<ort::CreateSession>(static_cast<const ort::Env*>(library().env), model_file.c_str(),
                           static_cast<const ort::SessionOptions*>(raw), &session);
  impl_->session.reset(session);
  ort::MemoryInfo* memory = nullptr;
  constexpr int kDeviceAllocator = 0, kDefaultMemory = 0;
  call<ort::CreateCpuMemoryInfo>(kDeviceAllocator, kDefaultMemory, &memory);
  impl_->memory.reset(memory);

  size_t inputs = 0, outputs = 0;
  call<ort::InputCount>(static_cast<const ort::Session*>(session), &inputs);
  call<ort::OutputCount>(static_cast<const ort::Session*>(session), &outputs);
  for (size_t i = 0; i < inputs; ++i) impl_->inputs.push_back(port<ort::InputName, ort::InputTypeInfo>(session, i));
  for (size_t i = 0; i < outputs; ++i) impl_->outputs.push_back(port<ort::OutputName, ort::OutputTypeInfo>(session, i));
}

OrtSession::~OrtSession() = default;
OrtSession::OrtSession(OrtSession&&) noexcept = default;
const std::vector<OrtSession::Port>& OrtSession::inputs() const { return impl_->inputs; }
const std::vector<OrtSession::Port>& OrtSession::outputs() const { return impl_->outputs; }

std::string OrtSession::metadata(const std::string& key) const {
  ort::Metadata* raw = nullptr;
  call<ort::ModelMetadata>(static_cast<const ort::Session*>(impl_->session.get()), &raw);
  Owned<ort::Metadata, ort::ReleaseMetadata> metadata(raw);
  ort::Allocator* allocator = nullptr;
  call<ort::DefaultAllocator>(&allocator);
  char* value = nullptr;
  call<ort::LookupMetadata>(static_cast<const ort::Metadata*>(raw), allocator, key.c_str(), &value);
  return take_string(value);
}

Tensors OrtSession::run(const Tensors& inputs) const {
  XY_CHECK(inputs.size() == impl_->inputs.size(), "the model has ", impl_->inputs.size(), " inputs, not ",
           inputs.size());
  Tensors packed;  // alive until the run is over
  std::vector<OwnedValue> values;
  std::vector<const ort::Value*> in;
  std::vector<const char*> in_names, out_names;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Port& p = impl_->inputs[i];
    XY_CHECK(inputs[i].dtype() == p.dtype, "input '", p.name, "' is ", p.dtype, ", not ", inputs[i].dtype());
    packed.push_back(inputs[i].detach().to(Device::cpu()).contiguous());
    const Tensor& t = packed.back();
    ort::Value* value = nullptr;
    static char nothing[16];
    call<ort::CreateTensor>(static_cast<const ort::MemoryInfo*>(impl_->memory.get()),
                            t.numel() ? t.raw() : static_cast<void*>(nothing), t.nbytes(), t.shape().begin(),
                            size_t(t.rank()), onnx_type(t.dtype()), &value);
    values.emplace_back(value);
    in.push_back(value);
    in_names.push_back(p.name.c_str());
  }
  for (const Port& p : impl_->outputs) out_names.push_back(p.name.c_str());
  std::vector<ort::Value*> out(out_names.size(), nullptr);
  call<ort::Run>(impl_->session.get(), static_cast<const ort::RunOptions*>(nullptr), in_names.data(), in.data(),
                 in.size(), out_names.data(), out_names.size(), out.data());
  std::vector<OwnedValue> owned(out.begin(), out.end());
  Tensors results;
  for (ort::Value* value : out) {
    ort::TensorInfo* raw = nullptr;
    call<ort::TensorTypeAndShape>(static_cast<const ort::Value*>(value), &raw);
    Owned<ort::TensorInfo, ort::ReleaseTensorInfo> info(raw);
    int code = 0;
    call<ort::ElementType>(static_cast<const ort::TensorInfo*>(raw), &code);
    Tensor t = empty(dimensions(raw), dtype_from_onnx(code));
    void* data = nullptr;
    call<ort::TensorData>(value, &data);
    if (t.numel()) std::memcpy(t.raw(), data, t.nbytes());
    results.push_back(t);
  }
  return results;
}

}  // namespace xylem
