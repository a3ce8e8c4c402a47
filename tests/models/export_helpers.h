// SPDX-License-Identifier: Apache-2.0
// What the export tests share: comparison with ONNX Runtime, and the onnx checker in Python.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/autograd/autograd.h"
#include "models/export/export.h"
#include "models/export/onnx/graph.h"
#include "models/export/runtime/ort.h"
#include "models/zoo/zoo.h"
#include "ops/ops.h"
#include "tests/support.h"

#define XY_NEEDS_ORT() \
  if (!xylem::OrtSession::available()) GTEST_SKIP() << xylem::OrtSession::why_unavailable()

namespace xylem::export_tests {

// A file in a folder that the tests of this process share.
inline std::string temporary(const std::string& name) {
  static const Scratch folder;
  return folder / name;
}

// The largest |a - b| beyond 1e-4 |b|, relative to the largest |b|. At most 1e-5 for fp32 exports.
inline double distance(const Tensor& a, const Tensor& b, double relative = 1e-4) {
  if (!(a.shape() == b.shape())) return INFINITY;
  std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  double largest = 1e-30, worst = 0;
  for (double v : y) largest = std::max(largest, std::abs(v));
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]) != std::isnan(y[i])) return INFINITY;
    if (x[i] == y[i] || std::isnan(x[i])) continue;
    worst = std::max(worst, std::abs(x[i] - y[i]) - relative * std::abs(y[i]));
  }
  return worst / largest;
}

inline Tensor floats(const Shape& shape, uint64_t seed = 1) { return sample_normal(shape, 1, seed).to(f32); }

inline zoo::Options small_llama() {
  return {{"vocab", int64_t(17)},   {"context", int64_t(16)}, {"layers", int64_t(2)}, {"heads", int64_t(4)},
          {"kv_heads", int64_t(2)}, {"width", int64_t(16)},   {"hidden", int64_t(24)}};
}

// Graph inputs by name, for models whose unused inputs were dropped.
inline Tensors run_onnx(const std::string& file, const Tensors& inputs, bool optimize = false) {
  OrtSession session(file, {.optimize = optimize});
  return session.run(inputs);
}

inline int count_nodes(const exporting::OnnxGraph& g, const std::string& op) {
  return int(std::count_if(g.nodes.begin(), g.nodes.end(), [&](const auto& n) { return n.op == op; }));
}

// Runs onnx.checker with full checks on the files, in one Python process. "" when all are good, else what it says;
// "skip: why" without the project's Python environment.
inline std::string python_checker(const std::vector<std::string>& files) {
  const std::string python = std::string(XY_SOURCE_DIR) + "/.venv/bin/python";
  if (!std::filesystem::exists(python)) return "skip: there is no " + python;
  const std::string list = temporary("files.txt"), out = temporary("checker.txt");
  {
    std::ofstream f(list);
    for (const std::string& file : files) f << file << "\n";
  }
  const std::string script =
      "import onnx,sys\n"
      "for f in open(sys.argv[1]).read().split():\n"
      "    try: onnx.checker.check_model(f, full_check=True)\n"
      "    except Exception as e: print(f, str(e)[:300])\n";
  const std::string program = temporary("check.py");
  std::ofstream(program) << script;
  const int status = std::system((python + " " + program + " " + list + " > " + out + " 2>&1").c_str());
  const std::string text = read_file(out);
  return status == 0 ? text : "the checker failed to run: " + text;
}

}  // namespace xylem::export_tests
