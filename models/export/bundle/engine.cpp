// SPDX-License-Identifier: Apache-2.0
#include "models/export/bundle/engine.h"

#include <sstream>

namespace xylem {
namespace {

bool dynamic(const triton::Model& m) {
  for (const auto& p : m.inputs)
    for (int64_t d : p.shape)
      if (d < 0) return true;
  return false;
}

std::string precision_flags(const triton::Model& m, lint::Version v) {
  if (v.major >= 11) return "";  // the graph alone decides
  if (v >= lint::Version{10, 12} || (v.major == 10 && m.half)) return "--stronglyTyped";
  return std::string("--fp16") + (m.quantized ? " --int8" : "");
}

}  // namespace

std::string engine_script(const triton::Model& m, const lint::Target& target) {
  std::ostringstream out;
  out << "#!/usr/bin/env bash\n# Builds model.plan from model.onnx with TensorRT " << target.version.str()
      << ", on the machine and GPU that will run it: an engine fits\n# one version of TensorRT and one kind of GPU.\n"
      << "set -euo pipefail\ncd \"$(dirname \"$0\")\"\n";
  out << "trtexec --onnx=model.onnx --saveEngine=model.plan";
  if (std::string flags = precision_flags(m, target.version); !flags.empty()) out << " \\\n  " << flags;
  if (dynamic(m))
    out << " \\\n  --minShapes=" << shapes(m, triton::At::min) << " \\\n  --optShapes=" << shapes(m, triton::At::opt)
        << " \\\n  --maxShapes=" << shapes(m, triton::At::max);
  out << " \\\n  --memPoolSize=workspace:4096 --builderOptimizationLevel=3 --timingCacheFile=model.timing \\\n"
         "  --profilingVerbosity=detailed --exportLayerInfo=layers.json";
  std::string inputs, outputs;
  for (const auto& p : m.inputs) inputs += (inputs.empty() ? "" : ",") + p.name + ":reference/" + p.name + ".bin";
  for (const auto& p : m.outputs) outputs += (outputs.empty() ? "" : ",") + p.name + ":reference/" + p.name + ".bin";
  if (target.version.major >= 11)
    out << " \\\n  --loadInputs=" << inputs << " \\\n  --loadRefOutputs=" << outputs << " \"$@\"\n";
  else
    out << " --skipInference \"$@\"\n";
  out << "# Runs on older GPUs of the same line: --hardwareCompatibilityLevel=ampere+; newer TensorRT: "
         "--versionCompatible;\n"
         "# weights apart: --stripWeights, then --refitFromOnnx.\n"
         "# Latency: trtexec --loadEngine=model.plan --useCudaGraph --noDataTransfers --useSpinWait --warmUp=500 "
         "--duration=10\n";
  return out.str();
}

}  // namespace xylem
