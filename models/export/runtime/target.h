// SPDX-License-Identifier: Apache-2.0
// A deployment target and what it reads: TensorRT by version, or ONNX Runtime on CPUs.
#pragma once
#include <string>
#include <vector>

namespace xylem::lint {

struct Version {
  int major = 0, minor = 0;
  auto operator<=>(const Version&) const = default;
  std::string str() const { return std::to_string(major) + "." + std::to_string(minor); }
};

struct Target {
  std::string name;  // "trt10.9", "ort-cpu"
  bool tensorrt = false;
  Version version;  // of TensorRT
  int max_opset = 0, max_ir = 0;
  bool strongly_typed() const { return tensorrt && version.major >= 11; }  // the graph alone decides the types
};

// "trt8.4" to "trt11.1" (a minor version may be left out: the last known one of that release), "ort-cpu". Throws Error
// listing what it knows.
Target parse_target(const std::string& name);

// What the table of TensorRT's operators says of one.
struct OpSupport {
  bool listed = false, supported = false;
  std::string since;        // the first version that reads it, "" if none does
  std::string restriction;  // of the newest version
};
OpSupport tensorrt_support(const std::string& op, Version version);

// Whether every release of TensorRT `major` that reads models of `opset` has the operator; false when none reads them.
bool tensorrt_always_has(const std::string& op, int major, int opset);

}  // namespace xylem::lint
