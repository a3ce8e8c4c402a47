// SPDX-License-Identifier: Apache-2.0
// The part of TensorRT's binary interface that Xylem calls, so that nothing of TensorRT is needed to build.
//
// An object of NVIDIA's public classes is a virtual destructor and a pointer to an implementation, whose virtual table
// holds the calls; the headers are inline. A call is therefore a position in that table, which NVIDIA only appends to
// within a major release: `Layout` has the positions of 10.0 to 10.16 and of 11, which TensorRT-RTX 1.7 has too.
// Positions 0 and 1 are the destructor's. Source of the positions: the order of declarations in NvInferImpl.h and
// NvOnnxParser.h of https://github.com/NVIDIA/TensorRT, releases 10.0 to 11.1.
#pragma once
#include <cstddef>
#include <cstdint>

namespace xylem::tensorrt::abi {

constexpr int kMaxRank = 8;
struct Dims {
  int32_t rank;  // -1: unknown
  int64_t sizes[kMaxRank];
};

enum class Severity : int32_t { internal_error, error, warning, info, verbose };
enum class Select : int32_t { min, opt, max };  // of an optimization profile
constexpr int32_t kWorkspacePool = 0;
constexpr int32_t kInput = 1;  // TensorIOMode
struct Layout {
  uint32_t network_flags;  // strongly typed: a flag in 10, the only way in 11
  struct {
    int create_config, create_network, create_profile, build;
  } builder;
  struct {
    int add_profile, set_pool_limit, set_level, level;
  } config;
  struct {
    int set_dimensions, valid;
  } profile;
  struct {
    int type;
  } tensor;
  struct {
    int deserialize;
  } runtime;
  struct {
    int create_context, data_type, io_mode, io_count, io_name;
  } engine;
  struct {
    int set_input_shape, shape, set_address, enqueue;
  } context;
  struct {
    int parse_file, error_count, error, destroy;
  } parser;  // in the class's own table
};
constexpr Layout kLayout10{.network_flags = 2,
                           .builder = {7, 8, 9, 14},
                           .config = {25, 43, 47, 48},
                           .profile = {2, 9},
                           .tensor = {7},
                           .runtime = {3},
                           .engine = {5, 20, 23, 30, 31},
                           .context = {21, 22, 24, 37},
                           .parser = {1, 5, 6, 9}};
constexpr Layout kLayout11{.network_flags = 0,
                           .builder = {5, 6, 7, 11},
                           .config = {23, 32, 36, 37},
                           .profile = {2, 7},
                           .tensor = {6},
                           .runtime = {3},
                           .engine = {5, 16, 19, 26, 27},
                           .context = {20, 21, 23, 36},
                           .parser = {1, 3, 4, 7}};
// The same in both.
struct Network {
  static constexpr int layers = 12, inputs = 14, input = 15, outputs = 16, output = 17;
};
struct NetworkTensor {
  static constexpr int name = 3, dimensions = 5;
};
struct HostMemory {
  static constexpr int data = 2, size = 3;
};

// Of the class's own table, as the parser's are: these two have no implementation behind them.
struct ParserError {
  static constexpr int description = 1, node = 5, node_name = 6, node_operator = 7;
};

template <class R, class... Args>
R call_table(void* object, int position, Args... args) {
  using Function = R (*)(void*, Args...);
  return reinterpret_cast<Function*>(*static_cast<void**>(object))[position](object, args...);
}
// A call of a class that is destructor and implementation.
template <class R, class... Args>
R call(void* object, int position, Args... args) {
  return call_table<R>(static_cast<void**>(object)[1], position, args...);
}
// `delete object`: the second of the two destructors at the head of the object's own table.
inline void destroy(void* object) { call_table<void>(object, 1); }

// What TensorRT calls with its messages. 11 put a versioned interface in front.
class Logger10 {
 public:
  virtual void log(Severity severity, const char* text) noexcept = 0;
  virtual ~Logger10() = default;
};
class Logger11 {
 public:
  struct Info {
    const char* kind;
    int32_t major, minor;
  };
  virtual int32_t language() const noexcept { return 0; }  // C++
  virtual Info info() const noexcept { return {"ILogger", 1, 0}; }
  virtual ~Logger11() noexcept = default;
  virtual void log(Severity severity, const char* text) noexcept = 0;
};

}  // namespace xylem::tensorrt::abi
