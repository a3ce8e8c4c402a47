// SPDX-License-Identifier: Apache-2.0
// The part of ONNX Runtime's C interface that Xylem uses. OrtGetApiBase() is the only symbol; GetApi(16) returns a
// table of function pointers that later releases only append to, so a slot number stays valid.
#pragma once
#include <cstddef>
#include <cstdint>

namespace xylem::ort {

struct Status;
struct Env;
struct SessionOptions;
struct Session;
struct RunOptions;
struct Value;
struct TypeInfo;
struct TensorInfo;
struct MemoryInfo;
struct Allocator;
struct Metadata;

struct ApiBase {
  const void* (*get_api)(uint32_t version);
  const char* (*version)();
};
inline constexpr uint32_t kApiVersion = 16;

// One function of the table: call<Slot>(api, ...).
template <int Slot, class Result, class... Args>
struct Function {
  static Result call(const void* api, Args... args) {
    return reinterpret_cast<Result (*)(Args...)>(static_cast<void* const*>(api)[Slot])(args...);
  }
};

using ErrorMessage = Function<2, const char*, const Status*>;
using CreateEnv = Function<3, Status*, int, const char*, Env**>;
using CreateSession = Function<7, Status*, const Env*, const char*, const SessionOptions*, Session**>;
using Run = Function<9, Status*, Session*, const RunOptions*, const char* const*, const Value* const*, size_t,
                     const char* const*, size_t, Value**>;
using CreateSessionOptions = Function<10, Status*, SessionOptions**>;
using SetOptimizedModelFilePath = Function<11, Status*, SessionOptions*, const char*>;
using SetOptimizationLevel = Function<23, Status*, SessionOptions*, int>;
using SetIntraOpThreads = Function<24, Status*, SessionOptions*, int>;
using InputCount = Function<30, Status*, const Session*, size_t*>;
using OutputCount = Function<31, Status*, const Session*, size_t*>;
using InputTypeInfo = Function<33, Status*, const Session*, size_t, TypeInfo**>;
using OutputTypeInfo = Function<34, Status*, const Session*, size_t, TypeInfo**>;
using InputName = Function<36, Status*, const Session*, size_t, Allocator*, char**>;
using OutputName = Function<37, Status*, const Session*, size_t, Allocator*, char**>;
using CreateTensor = Function<49, Status*, const MemoryInfo*, void*, size_t, const int64_t*, size_t, int, Value**>;
using TensorData = Function<51, Status*, Value*, void**>;
using AsTensorInfo = Function<55, Status*, const TypeInfo*, const TensorInfo**>;
using ElementType = Function<60, Status*, const TensorInfo*, int*>;
using DimensionCount = Function<61, Status*, const TensorInfo*, size_t*>;
using Dimensions = Function<62, Status*, const TensorInfo*, int64_t*, size_t>;
using SymbolicDimensions = Function<63, Status*, const TensorInfo*, const char**, size_t>;
using TensorTypeAndShape = Function<65, Status*, const Value*, TensorInfo**>;
using CreateCpuMemoryInfo = Function<69, Status*, int, int, MemoryInfo**>;
using AllocatorFree = Function<76, Status*, Allocator*, void*>;
using DefaultAllocator = Function<78, Status*, Allocator**>;
using ReleaseStatus = Function<93, void, Status*>;
using ReleaseMemoryInfo = Function<94, void, MemoryInfo*>;
using ReleaseSession = Function<95, void, Session*>;
using ReleaseValue = Function<96, void, Value*>;
using ReleaseTypeInfo = Function<98, void, TypeInfo*>;
using ReleaseTensorInfo = Function<99, void, TensorInfo*>;
using ReleaseSessionOptions = Function<100, void, SessionOptions*>;
using ModelMetadata = Function<111, Status*, const Session*, Metadata**>;
using LookupMetadata = Function<116, Status*, const Metadata*, Allocator*, const char*, char**>;
using ReleaseMetadata = Function<118, void, Metadata*>;
using AddConfigEntry = Function<130, Status*, SessionOptions*, const char*, const char*>;

}  // namespace xylem::ort
