// SPDX-License-Identifier: Apache-2.0
// NVIDIA TensorRT 10 or 11, or TensorRT-RTX, loaded at run time: from XY_TENSORRT (a folder, or the library itself),
// from the system's library path, or from what `scripts/setup.sh tensorrt` has installed. Nothing of it is needed to
// build. TensorRT-RTX parses models and builds engines on machines without a GPU too.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace xylem::tensorrt {

bool available();               // a library of a known version, and its ONNX parser, were found
std::string version();          // "TensorRT-RTX 1.7.1"; "" when there is none
std::string why_unavailable();  // where it was looked for and what was wrong; "" when it is available

struct Message {
  enum class Severity { error, warning } severity;
  std::string text;
  std::string node, op;  // of the ONNX file, where the parser names them
};

// The sizes that an engine is made for, of one input's dimensions in order.
struct Sizes {
  std::vector<int64_t> min, opt, max;
};

struct BuildOptions {
  std::map<std::string, Sizes> sizes = {};       // by input; those without dynamic dimensions need none
  std::size_t workspace = std::size_t(4) << 30;  // bytes
  int optimization_level = 3;                    // 0 to 5: time to build for time to run
};

struct Build {
  bool parsed = false;
  std::string engine;  // serialized; empty when it could not be built
  std::vector<Message> messages;
  int layers = 0;      // of the network, before fusion
  double seconds = 0;  // parsing and building
  bool built() const { return !engine.empty(); }
};

struct Port {
  std::string name;
  std::vector<int64_t> shape;  // -1: dynamic
};
// The inputs as the parser sees them; empty when it refuses the model.
std::vector<Port> inputs(const std::string& model_file);

// Reads an ONNX file and builds an engine, strongly typed: the graph alone decides precisions. What TensorRT refuses is
// told in `messages`. Throws Error without TensorRT, and for a dynamic input without sizes, naming it.
Build build(const std::string& model_file, const BuildOptions& options = {});

// An engine on this process's GPU, which must be of the kind that it was built for.
class Engine {
 public:
  explicit Engine(const std::string& serialized);  // throws in TensorRT's words
  ~Engine();
  Engine(Engine&&) noexcept;

  const std::vector<std::string>& inputs() const;
  const std::vector<std::string>& outputs() const;
  // By name in the order of inputs(), on the GPU and of the engine's types; outputs in the order of outputs(). Work on
  // the current stream.
  Tensors run(const Tensors& inputs) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace xylem::tensorrt
