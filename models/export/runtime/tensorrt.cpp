// SPDX-License-Identifier: Apache-2.0
#include "models/export/runtime/tensorrt.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <optional>
#include <utility>

#include "core/device/device.h"
#include "models/export/runtime/environment.h"
#include "models/export/runtime/tensorrt_abi.h"

namespace xylem::tensorrt {
namespace {

namespace fs = std::filesystem;
using abi::call;
using abi::call_table;

// The release that a library calls itself, by getInferLibVersion(): 100903 is TensorRT 10.9.3, 10701
// TensorRT-RTX 1.7.1.
struct Release {
  int number = 0;
  bool rtx() const { return number < 100000; }
  int major() const { return number / 10000; }
  int minor() const { return number / 100 % 100; }
  std::string str() const {
    return std::string(rtx() ? "TensorRT-RTX " : "TensorRT ") + std::to_string(major()) + "." +
           std::to_string(minor()) + "." + std::to_string(number % 100);
  }
  // nullptr: a release whose tables are not known.
  const abi::Layout* layout() const {
    if (rtx()) return major() == 1 && minor() == 7 ? &abi::kLayout11 : nullptr;
    if (major() == 10 && minor() <= 16) return &abi::kLayout10;
    return major() == 11 ? &abi::kLayout11 : nullptr;
  }
};

// Collects what TensorRT says; one at a time, since it logs to the logger that its objects were made with.
class Log : public abi::Logger10 {
 public:
  void log(abi::Severity severity, const char* text) noexcept override {
    if (severity > abi::Severity::warning) return;
    std::lock_guard lock(mutex_);
    const auto kind = severity == abi::Severity::warning ? Message::Severity::warning : Message::Severity::error;
    if (std::none_of(messages_.begin(), messages_.end(), [&](const Message& m) { return m.text == text; }))
      messages_.push_back({.severity = kind, .text = text, .node = {}, .op = {}});
  }
  std::vector<Message> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(messages_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<Message> messages_;
};
class Log11 : public abi::Logger11 {
 public:
  explicit Log11(Log& log) : log_(log) {}
  void log(abi::Severity severity, const char* text) noexcept override { log_.log(severity, text); }

 private:
  Log& log_;
};

struct Pair {
  std::string core, parser;  // files, or names for the loader's path
};

// The parser that belongs to a core library: the same name but for the stem, in the same folder.
Pair with_parser(const fs::path& core) {
  const std::string name = core.filename().string();
  for (auto [stem, parser] : {std::pair{"libnvinfer.so", "libnvonnxparser.so"},
                              std::pair{"libtensorrt_rtx.so", "libtensorrt_onnxparser_rtx.so"}})
    if (name.starts_with(stem))
      return {core.string(), (core.parent_path() / (parser + name.substr(std::string(stem).size()))).string()};
  return {core.string(), ""};
}

std::vector<Pair> candidates() {
  std::vector<Pair> all;
  if (const char* set = std::getenv("XY_TENSORRT"); set && *set) {
    if (!fs::is_directory(set)) return {with_parser(set)};
    std::error_code error;
    for (const auto& file : fs::directory_iterator(set, error))
      if (!with_parser(file.path()).parser.empty()) all.push_back(with_parser(file.path()));
    return all;
  }
  for (const char* name : {"libnvinfer.so.11", "libnvinfer.so.10", "libtensorrt_rtx.so.1"})
    all.push_back(with_parser(name));
  for (const auto& file : runtime::find_in_environment("tensorrt_libs", "libnvinfer.so."))
    all.push_back(with_parser(file));
  for (const auto& file : runtime::find_in_environment("onnxruntime_ep_nv_tensorrt_rtx", "libtensorrt_rtx.so"))
    all.push_back(with_parser(file));
  return all;
}

struct Library {
  Release release;
  const abi::Layout* layout = nullptr;
  std::string problem;
  Log log;
  Log11 log11{log};
  void* (*create_builder)(void*, int32_t) = nullptr;
  void* (*create_runtime)(void*, int32_t) = nullptr;
  void* (*create_parser)(void*, void*, int) = nullptr;

  Library() {
    std::string tried, refused;
    for (const Pair& pair : candidates()) {
      tried += (tried.empty() ? "" : ", ") + pair.core;
      if (open(pair, refused)) return;
    }
    problem =
        "TensorRT was not found: set XY_TENSORRT to the folder of libnvinfer.so, or fetch TensorRT-RTX with "
        "scripts/setup.sh tensorrt. Tried: " +
        (tried.empty() ? "nothing" : tried) + (refused.empty() ? "" : ". " + refused);
  }

  void* logger() { return layout == &abi::kLayout11 ? static_cast<void*>(&log11) : static_cast<void*>(&log); }

  bool open(const Pair& pair, std::string& refused) {
    void* core = dlopen(pair.core.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!core) return false;
    auto number = reinterpret_cast<int32_t (*)()>(dlsym(core, "getInferLibVersion"));
    if (!number) return false;
    release = {number()};
    layout = release.layout();
    if (!layout) {
      refused = pair.core + " is " + release.str() + "; known are TensorRT 10.0 to 10.16, 11, and TensorRT-RTX 1.7";
      return false;
    }
    void* parser = dlopen(pair.parser.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!parser) {
      refused = pair.core + " has no ONNX parser beside it: " + dlerror();
      return layout = nullptr, false;
    }
    create_builder = reinterpret_cast<decltype(create_builder)>(dlsym(core, "createInferBuilder_INTERNAL"));
    create_runtime = reinterpret_cast<decltype(create_runtime)>(dlsym(core, "createInferRuntime_INTERNAL"));
    create_parser = reinterpret_cast<decltype(create_parser)>(dlsym(parser, "createNvOnnxParser_INTERNAL"));
    if (create_builder && create_runtime && create_parser) return true;
    refused = pair.core + " lacks the functions of " + release.str();
    return layout = nullptr, false;
  }
};

// Never unloaded: TensorRT's threads may outlive static destructors.
Library& library() {
  static Library& loaded = *new Library;
  XY_CHECK(loaded.layout, loaded.problem);
  return loaded;
}

struct Destroy {
  void operator()(void* object) const { abi::destroy(object); }
};
using Owned = std::unique_ptr<void, Destroy>;

std::vector<int64_t> to_vector(const abi::Dims& d) { return {d.sizes, d.sizes + std::max(d.rank, 0)}; }
abi::Dims to_dims(const std::vector<int64_t>& sizes, const std::string& input) {
  XY_CHECK(sizes.size() <= size_t(abi::kMaxRank), "input '", input, "' has ", sizes.size(),
           " dimensions; TensorRT takes at most ", abi::kMaxRank);
  abi::Dims d{.rank = int32_t(sizes.size()), .sizes = {}};
  std::copy(sizes.begin(), sizes.end(), d.sizes);
  return d;
}

// A model that was read: the builder, the network and the parser that filled it, which must live as long.
class Network {
 public:
  explicit Network(const std::string& model_file) : lib_(library()), at_(*lib_.layout) {
    XY_CHECK(fs::exists(model_file), "there is no file '", model_file, "'");
    lib_.log.take();
    builder_.reset(lib_.create_builder(lib_.logger(), lib_.release.number));
    XY_CHECK(builder_, lib_.release.str(), " gives no builder", first_error());
    network_.reset(call<void*>(builder_.get(), at_.builder.create_network, at_.network_flags));
    XY_CHECK(network_, lib_.release.str(), " gives no network", first_error());
    parser_ = lib_.create_parser(network_.get(), lib_.logger(), kParserVersion);
    XY_CHECK(parser_, lib_.release.str(), " gives no ONNX parser", first_error());
    parsed = call_table<bool>(parser_, at_.parser.parse_file, model_file.c_str(), int(abi::Severity::warning));
    read_errors();
  }
  Network(const Network&) = delete;
  ~Network() {
    if (parser_) call_table<void>(parser_, at_.parser.destroy);
  }

  bool parsed = false;
  std::vector<Message> messages;
  int layers() const { return call<int32_t>(network_.get(), abi::Network::layers); }

  std::vector<Port> inputs() const {
    std::vector<Port> all(size_t(call<int32_t>(network_.get(), abi::Network::inputs)));
    for (size_t i = 0; i < all.size(); ++i) {
      void* tensor = call<void*>(network_.get(), abi::Network::input, int32_t(i));
      all[i] = {call<const char*>(tensor, abi::NetworkTensor::name),
                to_vector(call<abi::Dims>(tensor, abi::NetworkTensor::dimensions))};
    }
    return all;
  }

  std::string build(const BuildOptions& options) {
    Owned config(call<void*>(builder_.get(), at_.builder.create_config));
    XY_CHECK(config, lib_.release.str(), " gives no builder configuration", first_error());
    call<void>(config.get(), at_.config.set_pool_limit, abi::kWorkspacePool, options.workspace);
    call<void>(config.get(), at_.config.set_level, int32_t(options.optimization_level));
    XY_ASSERT(call<int32_t>(config.get(), at_.config.level) == options.optimization_level, lib_.release.str(),
              " has other virtual tables than are known");
    add_sizes(config.get(), options);
    Owned memory(call<void*>(builder_.get(), at_.builder.build, network_.get(), config.get()));
    std::string engine;
    if (memory)
      engine.assign(static_cast<const char*>(call<void*>(memory.get(), abi::HostMemory::data)),
                    call<std::size_t>(memory.get(), abi::HostMemory::size));
    for (Message& m : lib_.log.take()) messages.push_back(std::move(m));
    return engine;
  }

 private:
  static constexpr int kParserVersion = 1;

  std::string first_error() {
    auto said = lib_.log.take();
    return said.empty() ? "" : ": " + said[0].text;
  }

  // The parser's errors name nodes; the log repeats them without.
  void read_errors() {
    const int count = call_table<int>(parser_, at_.parser.error_count);
    auto text = [](const char* s) { return std::string(s ? s : ""); };
    for (int i = 0; i < count; ++i) {
      void* e = call_table<void*>(parser_, at_.parser.error, i);
      messages.push_back({.severity = Message::Severity::error,
                          .text = text(call_table<const char*>(e, abi::ParserError::description)),
                          .node = text(call_table<const char*>(e, abi::ParserError::node_name)),
                          .op = text(call_table<const char*>(e, abi::ParserError::node_operator))});
    }
    for (Message& m : lib_.log.take())
      if (count == 0 || m.severity == Message::Severity::warning) messages.push_back(std::move(m));
  }

  void add_sizes(void* config, const BuildOptions& options) {
    void* profile = nullptr;
    for (const Port& port : inputs()) {
      if (std::find(port.shape.begin(), port.shape.end(), -1) == port.shape.end()) continue;
      auto given = options.sizes.find(port.name);
      XY_CHECK(given != options.sizes.end(), "input '", port.name,
               "' has dynamic dimensions: TensorRT needs the smallest, the usual and the largest sizes");
      if (!profile) profile = call<void*>(builder_.get(), at_.builder.create_profile);
      const Sizes& s = given->second;
      for (auto [which, sizes] : {std::pair{abi::Select::min, &s.min}, std::pair{abi::Select::opt, &s.opt},
                                  std::pair{abi::Select::max, &s.max}}) {
        const abi::Dims dims = to_dims(*sizes, port.name);
        XY_CHECK(call<bool>(profile, at_.profile.set_dimensions, port.name.c_str(), which, &dims), "TensorRT refuses ",
                 Shape(*sizes), " for input '", port.name, "', which is ", Shape(port.shape), first_error());
      }
    }
    if (!profile) return;
    XY_CHECK(call<bool>(profile, at_.profile.valid), "TensorRT finds the sizes of the inputs inconsistent",
             first_error());
    XY_CHECK(call<int32_t>(config, at_.config.add_profile, profile) >= 0, "TensorRT refuses the sizes of the inputs",
             first_error());
  }

  Library& lib_;
  const abi::Layout& at_;
  Owned builder_, network_;
  void* parser_ = nullptr;
};

}  // namespace

bool available() { return why_unavailable().empty(); }

std::string version() { return available() ? library().release.str() : ""; }

std::string why_unavailable() {
  try {
    library();
    return "";
  } catch (const Error& e) {
    return e.message();
  }
}

std::vector<Port> inputs(const std::string& model_file) {
  Network network(model_file);
  return network.parsed ? network.inputs() : std::vector<Port>();
}

Build build(const std::string& model_file, const BuildOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  Network network(model_file);
  Build result{.parsed = network.parsed, .engine = {}, .messages = {}, .layers = network.layers()};
  if (network.parsed) result.engine = network.build(options);
  result.messages = network.messages;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

// ---- running an engine
// -----------------------------------------------------------------------------------------------

namespace {

// NVIDIA's DataType, by value; those that Xylem has.
DType dtype_of(int32_t type, const std::string& name) {
  constexpr std::pair<int32_t, DType> kTypes[] = {{0, f32},     {1, f16}, {2, i8},   {3, i32},
                                                  {4, boolean}, {5, u8},  {7, bf16}, {8, i64}};
  for (auto [code, dtype] : kTypes)
    if (code == type) return dtype;
  XY_FAIL("'", name, "' has TensorRT's type ", type, ", which Xylem does not have");
}

}  // namespace

struct Engine::Impl {
  Library& lib = library();
  const abi::Layout& at = *lib.layout;
  Owned runtime, engine, context;
  std::vector<std::string> inputs, outputs;

  std::string said() {
    std::string text;
    for (const Message& m : lib.log.take()) text += ": " + m.text;
    return text;
  }
  DType dtype(const std::string& name) const {
    return dtype_of(call<int32_t>(engine.get(), at.engine.data_type, name.c_str()), name);
  }
};

Engine::Engine(const std::string& serialized) : impl_(std::make_unique<Impl>()) {
  Impl& e = *impl_;
  e.lib.log.take();
  e.runtime.reset(e.lib.create_runtime(e.lib.logger(), e.lib.release.number));
  XY_CHECK(e.runtime, e.lib.release.str(), " gives no runtime on this machine", e.said());
  e.engine.reset(call<void*>(e.runtime.get(), e.at.runtime.deserialize, static_cast<const void*>(serialized.data()),
                             serialized.size()));
  XY_CHECK(e.engine, e.lib.release.str(), " does not take the engine", e.said());
  constexpr int32_t kOwnMemory = 0;
  e.context.reset(call<void*>(e.engine.get(), e.at.engine.create_context, kOwnMemory));
  XY_CHECK(e.context, e.lib.release.str(), " gives no execution context", e.said());
  const int32_t count = call<int32_t>(e.engine.get(), e.at.engine.io_count);
  for (int32_t i = 0; i < count; ++i) {
    std::string name = call<const char*>(e.engine.get(), e.at.engine.io_name, i);
    const bool input = call<int32_t>(e.engine.get(), e.at.engine.io_mode, name.c_str()) == abi::kInput;
    (input ? e.inputs : e.outputs).push_back(name);
  }
}

Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
const std::vector<std::string>& Engine::inputs() const { return impl_->inputs; }
const std::vector<std::string>& Engine::outputs() const { return impl_->outputs; }

Tensors Engine::run(const Tensors& inputs) const {
  Impl& e = *impl_;
  XY_CHECK(inputs.size() == e.inputs.size(), "the engine has ", e.inputs.size(), " inputs, not ", inputs.size());
  Tensors packed, results;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string& name = e.inputs[i];
    XY_CHECK(inputs[i].is_cuda(), "input '", name, "' is on ", inputs[i].device(), "; engines run on the GPU");
    XY_CHECK(inputs[i].dtype() == e.dtype(name), "input '", name, "' is ", e.dtype(name), ", not ", inputs[i].dtype());
    packed.push_back(inputs[i].detach().contiguous());
    const Shape& shape = packed.back().shape();
    const abi::Dims dims = to_dims({shape.begin(), shape.end()}, name);
    XY_CHECK(call<bool>(e.context.get(), e.at.context.set_input_shape, name.c_str(), &dims) &&
                 call<bool>(e.context.get(), e.at.context.set_address, name.c_str(), packed.back().raw()),
             "the engine refuses input '", name, "' of shape ", shape, e.said());
  }
  for (const std::string& name : e.outputs) {
    const abi::Dims dims = call<abi::Dims>(e.context.get(), e.at.context.shape, name.c_str());
    results.push_back(empty(Shape(to_vector(dims)), e.dtype(name), packed[0].device()));
    XY_CHECK(call<bool>(e.context.get(), e.at.context.set_address, name.c_str(), results.back().raw()),
             "the engine refuses memory for output '", name, "'", e.said());
  }
  XY_CHECK(call<bool>(e.context.get(), e.at.context.enqueue, cuda_stream(packed[0].device())), "the engine failed",
           e.said());
  return results;
}

}  // namespace xylem::tensorrt
