// SPDX-License-Identifier: Apache-2.0
#include <onnx/onnx.pb.h>

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/autograd/autograd.h"
#include "core/device/allocator.h"
#include "core/util/check.h"
#include "models/export/bundle/engine.h"
#include "models/export/bundle/engine_check.h"
#include "models/export/bundle/parts.h"
#include "models/export/bundle/reference.h"
#include "models/export/lint/graph_onnx.h"
#include "models/export/onnx/file.h"
#include "models/export/runtime/ort.h"
#include "models/export/runtime/target.h"
#include "models/export/runtime/tensorrt.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
using onnx::TensorProto;

std::string default_target(Profile p) {
  switch (p) {
    case Profile::trt8:
      return "trt8.6";
    case Profile::trt10:
      return "trt10.9";
    case Profile::trt11:
      return "trt11.0";
    default:
      return "ort-cpu";
  }
}

triton::Port port_of(const lint::Graph& graph, const std::string& name) {
  triton::Port p;
  p.name = name;
  const lint::TensorType& t = graph.type(name);
  p.dtype = dtype_from_onnx(t.dtype, "tensor '" + name + "'");
  XY_CHECK(t.shape, "'", name, "' has no shape");
  for (const lint::Dim& d : *t.shape) {
    p.shape.push_back(d.value);
    p.symbols.push_back(d.symbol);
  }
  return p;
}

// Everything that the writers of the bundle share.
struct Bundle {
  const BundleParts& parts;
  const BundleOptions& options;
  fs::path folder;
  triton::Model model = {};
  BundleReport report = {};

  void write(const std::string& name, const std::string& text, bool executable = false) {
    fs::create_directories((folder / name).parent_path());
    std::ofstream out(folder / name, std::ios::binary);
    out << text;
    XY_CHECK(out.flush(), "cannot write '", (folder / name).string(), "'");
    if (executable)
      fs::permissions(folder / name, fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                      fs::perm_options::add);
    report.files.push_back(name);
  }

  void describe(const onnx::ModelProto& proto) {
    lint::Graph graph(proto, {});
    model.name = options.name;
    model.ranges = options.graph.ranges;
    model.tensorrt = options.graph.profile != Profile::ort_cpu && options.graph.profile != Profile::exact;
    for (const auto& v : proto.graph().input()) model.inputs.push_back(port_of(graph, v.name()));
    for (const auto& v : proto.graph().output()) model.outputs.push_back(port_of(graph, v.name()));
    for (const lint::Node* n : graph.nodes()) model.quantized |= n->op_type() == "DequantizeLinear";
    for (const auto& layer : lint::weighted_layers(graph)) model.half |= layer.precision == "fp16";
  }

  void write_references(const Tensors& x, const Tensors& y) {
    fs::create_directories(folder / "reference");
    fs::create_directories(folder / "test_data_set_0");
    auto keep = [&](const char* kind, size_t i, const std::string& name, const Tensor& value) {
      std::string base = "reference/" + name;
      save_npy((folder / (base + ".npy")).string(), value);
      save_bin((folder / (base + ".bin")).string(), value);
      TensorProto proto;
      onnx_file::to_proto(value.detach().to(Device::cpu()).contiguous(), name, proto);
      std::string pb = std::string("test_data_set_0/") + kind + "_" + std::to_string(i) + ".pb";
      std::ofstream out(folder / pb, std::ios::binary);
      XY_CHECK(proto.SerializeToOstream(&out), "cannot write '", (folder / pb).string(), "'");
      report.files.insert(report.files.end(), {base + ".npy", base + ".bin", pb});
    };
    std::vector<std::string> names;
    for (size_t i = 0; i < x.size(); ++i) {
      keep("input", i, parts.inputs[i], x[i]);
      names.push_back(parts.inputs[i]);
    }
    for (size_t i = 0; i < y.size(); ++i) keep("output", i, model.outputs[i].name, y[i]);
    write("reference/request.json", inference_request(names, x));
  }

  // The model is linked, not copied, where the file system can. With external data, of which the onnx checker refuses
  // hard links, the version is a folder.
  void write_triton() {
    std::string entry = "triton/" + model.name;
    write(entry + "/config.pbtxt", triton::config(model));
    for (const LintFinding& f : check_config(triton::config(model), model)) report.lint.findings.push_back(f);
    bool external = false;
    std::vector<fs::path> files;
    for (const auto& file : fs::directory_iterator(folder))
      if (file.path().filename() == "model.onnx" || file.path().filename().string().ends_with(".weights.bin")) {
        files.push_back(file.path());
        external |= file.path().extension() == ".bin";
      }
    fs::path version = folder / entry / "1";
    if (external) version /= "model.onnx";
    fs::create_directories(version);
    for (const fs::path& part : files) {
      std::error_code unlinked;
      if (!external) fs::create_hard_link(part, version / part.filename(), unlinked);
      if (external || unlinked) fs::copy_file(part, version / part.filename());
      report.files.push_back(fs::relative(version / part.filename(), folder).string());
    }
    write("verify.sh", verify_script(), true);
  }

  std::string verify_script() const {
    return "#!/usr/bin/env bash\n# Asks a running Triton for one inference and shows the answer beside the expected "
           "one:\n"
           "#   docker run --rm -p 8000:8000 -v \"$PWD/triton:/models\" nvcr.io/nvidia/tritonserver:TAG tritonserver "
           "--model-repository=/models\nset -euo pipefail\ncd \"$(dirname \"$0\")\"\nserver=${1:-localhost:8000}\n"
           "curl -fsS \"$server/v2/models/" +
           model.name +
           "/ready\"\n"
           "curl -fsS -X POST \"$server/v2/models/" +
           model.name +
           "/infer\" -H 'Content-Type: application/json' "
           "--data-binary @reference/request.json\necho\necho \"expected: reference/" +
           model.outputs[0].name + ".npy\"\n";
  }

  std::string readme() const {
    std::string out = "# " + model.name + "\n\nExported by Xylem: profile " + name_of(report.exported.profile) +
                      ", precision " + name_of(report.exported.precision) + ", opset " +
                      std::to_string(report.exported.opset) + ".\n\n";
    auto list = [&](const char* title, const std::vector<triton::Port>& ports) {
      out += std::string("| ") + title + " | type | shape |\n|---|---|---|\n";
      for (const auto& p : ports) {
        std::string shape;
        for (size_t d = 0; d < p.shape.size(); ++d)
          shape += (d ? ", " : "") + (p.shape[d] >= 0 ? std::to_string(p.shape[d]) : p.symbols[d]);
        out += "| " + p.name + " | " + name_of(p.dtype) + " | [" + shape + "] |\n";
      }
      out += "\n";
    };
    list("input", model.inputs);
    list("output", model.outputs);
    for (const auto& [symbol, r] : model.ranges)
      out += "- `" + symbol + "` from " + std::to_string(r.min) + " to " + std::to_string(r.max) + ", usually " +
             std::to_string(r.opt) + "\n";
    out +=
        "\n## What is here\n- `model.onnx`: the model\n- `reference/`, `test_data_set_0/`: inputs and the outputs that "
        "Xylem computes, for "
        "any tool\n- `lint.txt`, `lint.json`: what " +
        report.lint.target + " makes of the model\n";
    if (model.tensorrt) out += "- `build_engine.sh`: builds a TensorRT engine on the machine that will run it\n";
    out += "- `triton/`: a model repository; `verify.sh` asks a server that runs it\n";
    if (!report.exported.notes.empty()) {
      out += "\n## Notes of the export\n";
      for (const std::string& note : report.exported.notes) out += "- " + note + "\n";
    }
    if (!report.checks.empty()) out += "\n## Verified\n```\n" + report.text() + "```\n";
    return out;
  }

  void check_engine(const std::string& file, const Tensors& x, const Tensors& y) {
    if (!tensorrt::available())
      report.engine = EngineCheck{.runtime = {}, .not_run = tensorrt::why_unavailable()};
    else
      report.engine = xylem::check_engine(file, model, x, y, limits_of(options.graph, model.quantized, true));
  }

  // The python that has the pip package onnx, as far as one can tell beforehand; "" when there is none.
  static std::string find_python() {
    if (const char* set = std::getenv("XY_PYTHON"); set && *set) return set;
    for (fs::path root = fs::current_path(); root.has_relative_path(); root = root.parent_path())
      if (fs::exists(root / ".venv/bin/python")) return root / ".venv/bin/python";
    const fs::path source = fs::path(XY_SOURCE_DIR) / ".venv/bin/python";
    return fs::exists(source) ? source.string() : "";
  }

  void run_checker() {
    const std::string python = find_python();
    auto missing = [&](const std::string& why) {
      report.unchecked.push_back("the onnx checker did not run: " + why +
                                 "; set XY_PYTHON to a python with the pip package onnx, or run scripts/setup.sh");
    };
    if (python.empty()) return missing("there is no .venv");
    constexpr int kNoOnnx = 42, kNoProgram = 127;
    const std::string command =
        "'" + python + "' -c '\nimport sys\ntry: import onnx\nexcept ImportError: sys.exit(" + std::to_string(kNoOnnx) +
        ")\nonnx.checker.check_model(sys.argv[1], full_check=True)' '" + (folder / "model.onnx").string() + "' 2>&1";
    std::string said;
    FILE* pipe = popen(command.c_str(), "r");
    XY_CHECK(pipe, "cannot run '", python, "'");
    for (int c; (c = std::fgetc(pipe)) != EOF;) said += char(c);
    const int status = pclose(pipe), code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == kNoOnnx) return missing("'" + python + "' has no package onnx");
    if (code == kNoProgram) return missing("'" + python + "' cannot be started");
    report.checker = code == 0 ? "passed" : "failed: " + said.substr(said.size() > 600 ? said.size() - 600 : 0);
  }
};

}  // namespace

BundleReport write_bundle(BundleParts& parts, const std::string& folder, const BundleOptions& given) {
  BundleOptions options = given;
  XY_CHECK(!options.name.empty() &&
               options.name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") ==
                   std::string::npos,
           "a Triton model cannot be called '", options.name, "': use letters, digits, '_', '-' and '.'");
  XY_CHECK(!fs::exists(folder) || fs::is_empty(folder) || fs::exists(fs::path(folder) / "model.onnx"), "'", folder,
           "' exists and is no bundle; choose another folder");
  lint::Target target =
      lint::parse_target(options.target.empty() ? default_target(options.graph.profile) : options.target);

  // Written aside, so that a failed export leaves an earlier bundle as it was.
  fs::path aside = folder + ".partial";
  fs::remove_all(aside);
  fs::create_directories(aside);
  Bundle bundle{parts, options, aside};
  BundleReport& report = bundle.report;
  std::string file = (aside / "model.onnx").string();
  report.exported = parts.write(file, options.graph);
  options.graph.precision = report.exported.precision;
  onnx::ModelProto proto;
  onnx_file::load(file, proto, false);
  bundle.describe(proto);
  for (const auto& f : fs::directory_iterator(aside)) {
    report.files.push_back(f.path().filename().string());
    report.model_bytes += int64_t(f.file_size());
  }

  {
    auto [x, y] = parts.reference(file);
    bundle.write_references(x, y);
    if (options.verify && target.tensorrt) bundle.check_engine(file, x, y);
  }
  allocator(Device::cpu()).release_cached();  // for lint, which reads the weights itself
  report.lint = lint_onnx(file, target.name);
  bundle.write_triton();
  if (target.tensorrt) bundle.write("build_engine.sh", engine_script(bundle.model, target), true);
  if (options.verify) {
    bundle.run_checker();
    if (report.exported.precision == ExportPrecision::bf16 || OrtSession::available())
      report.checks = parts.verify(file, options.graph, bundle.model.quantized);
    else
      report.unchecked.push_back(OrtSession::why_unavailable());
  }
  report.exported.file = (fs::path(folder) / "model.onnx").string();
  bundle.write("lint.txt", report.lint.text());
  bundle.write("lint.json", report.lint.json() + "\n");
  bundle.write("README.md", bundle.readme());
  fs::remove_all(folder);
  fs::rename(aside, folder);
  return report;
}

}  // namespace xylem
