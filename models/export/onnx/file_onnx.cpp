// SPDX-License-Identifier: Apache-2.0
#include <onnx/onnx.pb.h>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>

#include "core/util/git_lfs.h"
#include "models/export/onnx/file.h"

namespace xylem::onnx_file {
namespace {

namespace fs = std::filesystem;
using onnx::TensorProto;

constexpr int64_t kPage = 4096, kSmall = 1024;  // tensors of fewer bytes stay in the model

int64_t elements_of(const TensorProto& t) {
  int64_t n = 1;
  XY_CHECK(t.dims_size() <= kMaxRank, "tensor '", t.name(), "' has ", t.dims_size(), " dimensions; at most ", kMaxRank,
           " are supported");
  for (int64_t d : t.dims()) {
    XY_CHECK(d >= 0 && (d == 0 || n <= std::numeric_limits<int64_t>::max() / 16 / d), "tensor '", t.name(),
             "' has an impossible dimension ", d);
    n *= d;
  }
  return n;
}

template <class Proto>
void parse(const std::string& path, Proto& proto) {
  std::ifstream in(path, std::ios::binary);
  XY_CHECK(in, "cannot open '", path, "'");
  refuse_git_lfs_pointer(path);
  google::protobuf::io::IstreamInputStream stream(&in);
  google::protobuf::io::CodedInputStream coded(&stream);
  coded.SetTotalBytesLimit(std::numeric_limits<int>::max());
  coded.SetRecursionLimit(200);
  XY_CHECK(proto.ParseFromCodedStream(&coded) && coded.ConsumedEntireMessage(), "'", path,
           "' is not an ONNX model, or is cut short");
}

struct External {
  std::string location;
  int64_t offset = 0, length = -1;
};

External external_of(const TensorProto& t) {
  External e;
  auto number = [&](const std::string& text) {
    size_t end = 0;
    int64_t value = -1;
    try {
      value = std::stoll(text, &end);
    } catch (const std::exception&) {
    }
    XY_CHECK(end == text.size() && value >= 0, "tensor '", t.name(), "': '", text, "' is no file position");
    return value;
  };
  for (const auto& entry : t.external_data()) {
    if (entry.key() == "location") e.location = entry.value();
    if (entry.key() == "offset") e.offset = number(entry.value());
    if (entry.key() == "length") e.length = number(entry.value());
  }
  return e;
}

// Where the data of an external tensor lies. Throws if that is no part of a file in `folder`.
External locate(const fs::path& folder, const TensorProto& t) {
  External e = external_of(t);
  fs::path relative(e.location);
  bool escapes = relative.empty() || relative.is_absolute();
  for (const auto& part : relative) escapes = escapes || part == "..";
  XY_CHECK(!escapes, "tensor '", t.name(), "': external data at '", e.location, "' is outside the model's folder");
  e.location = (folder / relative).string();
  std::error_code error;
  const auto size = int64_t(fs::file_size(e.location, error));
  XY_CHECK(!error, "tensor '", t.name(), "': external data '", e.location, "' is missing");
  refuse_git_lfs_pointer(e.location);
  const int64_t expected = onnx_bytes(t.data_type(), elements_of(t));
  if (e.length < 0) e.length = expected;
  XY_CHECK(e.length == expected, "tensor '", t.name(), "': external data of ", e.length, " bytes, but its shape needs ",
           expected);
  XY_CHECK(e.offset <= size && e.length <= size - e.offset, "tensor '", t.name(), "': external data '", e.location,
           "' ends before byte ", e.offset + e.length);
  return e;
}

// Calls f(tensor) for every external tensor.
template <class F>
void each_external(onnx::GraphProto& graph, F&& f, int depth = 0) {
  XY_CHECK(depth < 32, "graphs are nested too deeply");
  auto visit = [&](auto& t) {
    if (t.data_location() == TensorProto::EXTERNAL) f(t);
  };
  for (auto& t : *graph.mutable_initializer()) visit(t);
  for (auto& node : *graph.mutable_node())
    for (auto& a : *node.mutable_attribute()) {
      if (a.has_t()) visit(*a.mutable_t());
      for (auto& t : *a.mutable_tensors()) visit(t);
      if (a.has_g()) each_external(*a.mutable_g(), f, depth + 1);
      for (auto& g : *a.mutable_graphs()) each_external(g, f, depth + 1);
    }
}

template <class Source>
Tensor from_field(const Source& values, const Shape& shape, DType dtype) {
  return visit_any(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Tensor out = empty(shape, dtype);
    T* to = out.template data<T>();
    for (int i = 0; i < values.size(); ++i) {
      if constexpr (sizeof(T) == 2) {  // 16-bit floats are stored as their bits
        auto bits = uint16_t(values[i]);
        std::memcpy(&to[i], &bits, 2);
      } else {
        to[i] = static_cast<T>(values[i]);
      }
    }
    return out;
  });
}

}  // namespace

void load(const std::string& path, onnx::ModelProto& model, bool with_weights) {
  XY_CHECK(fs::is_regular_file(path), "there is no file '", path, "'");
  parse(path, model);
  XY_CHECK(model.has_graph() && model.ir_version() > 0, "'", path, "' is not an ONNX model: it has no graph");
  if (!with_weights) return;
  const fs::path folder = fs::path(path).parent_path();
  try {
    each_external(*model.mutable_graph(), [&](TensorProto& t) {
      t.set_raw_data(external_data(folder.string(), t));
      t.clear_external_data();
      t.clear_data_location();
    });
  } catch (const Error& e) {
    XY_FAIL("cannot load '", path, "': ", e.message());
  }
}

void check_external(const std::string& folder, onnx::ModelProto& model) {
  each_external(*model.mutable_graph(), [&](const TensorProto& t) { locate(folder, t); });
}

std::string external_data(const std::string& folder, const TensorProto& t) {
  External e = locate(folder, t);
  std::string raw(size_t(e.length), '\0');
  std::ifstream in(e.location, std::ios::binary);
  in.seekg(e.offset);
  XY_CHECK(in.read(raw.data(), e.length), "cannot read '", e.location, "'");
  return raw;
}

struct Writer::Files {
  fs::path model, weights;
  bool external = false;
  std::ofstream out = {};  // of the weights
  int64_t at = 0;

  static fs::path aside(const fs::path& file) { return file.string() + ".tmp"; }
  static void close(std::ofstream& out, const fs::path& file) {
    out.close();
    XY_CHECK(out, "cannot write '", file.string(), "'; is the disk full?");
  }
};

Writer::Writer(const std::string& path, bool external) : files_(std::make_unique<Files>()) {
  Files& f = *files_;
  f.model = path;
  f.weights = fs::path(path).replace_extension(".weights.bin");
  f.external = external;
  if (!f.model.parent_path().empty()) fs::create_directories(f.model.parent_path());
  if (!external) return;
  f.out.open(Files::aside(f.weights), std::ios::binary | std::ios::trunc);
  XY_CHECK(f.out, "cannot write '", f.weights.string(), "'");
}
Writer::~Writer() {
  std::error_code ignored;
  for (const fs::path& file : {files_->model, files_->weights}) fs::remove(Files::aside(file), ignored);
}

void Writer::add(TensorProto& t, const void* data, int64_t bytes) {
  Files& f = *files_;
  if (!f.external || bytes < kSmall) {
    t.set_raw_data(bytes ? data : "", size_t(bytes));
    return;
  }
  static const std::string padding(kPage, '\0');
  const int64_t gap = (kPage - f.at % kPage) % kPage;
  f.out.write(padding.data(), gap);
  f.out.write(static_cast<const char*>(data), bytes);
  XY_CHECK(f.out, "cannot write '", f.weights.string(), "'; is the disk full?");
  t.set_data_location(TensorProto::EXTERNAL);
  auto set = [&](const char* key, const std::string& value) {
    auto* entry = t.add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  };
  set("location", f.weights.filename().string());
  set("offset", std::to_string(f.at + gap));
  set("length", std::to_string(bytes));
  f.at += gap + bytes;
}

void Writer::finish(const onnx::ModelProto& model) {
  Files& f = *files_;
  std::ofstream out(Files::aside(f.model), std::ios::binary | std::ios::trunc);
  XY_CHECK(out && model.SerializeToOstream(&out), "cannot write '", f.model.string(), "'; is the disk full?");
  Files::close(out, f.model);
  if (f.external) {
    Files::close(f.out, f.weights);
    fs::rename(Files::aside(f.weights), f.weights);
  }
  fs::rename(Files::aside(f.model), f.model);
}

Tensor to_tensor(const TensorProto& t) {
  const DType dtype = dtype_from_onnx(t.data_type(), "tensor '" + t.name() + "'");
  const int64_t n = elements_of(t);
  const Shape shape(std::vector<int64_t>(t.dims().begin(), t.dims().end()));
  XY_CHECK(t.data_location() != TensorProto::EXTERNAL, "the data of tensor '", t.name(), "' was not loaded");
  if (t.has_raw_data()) {
    XY_CHECK(int64_t(t.raw_data().size()) == onnx_bytes(t.data_type(), n), "tensor '", t.name(), "' of shape ", shape,
             " holds ", t.raw_data().size(), " bytes instead of ", onnx_bytes(t.data_type(), n));
    return from_bytes(t.raw_data().data(), shape, dtype);
  }
  const int64_t held = dtype == f32   ? t.float_data_size()
                       : dtype == f64 ? t.double_data_size()
                       : dtype == i64 ? t.int64_data_size()
                                      : t.int32_data_size();
  XY_CHECK(held == n, "tensor '", t.name(), "' of shape ", shape, " holds ", held, " values");
  if (dtype == f32) return from_field(t.float_data(), shape, dtype);
  if (dtype == f64) return from_field(t.double_data(), shape, dtype);
  if (dtype == i64) return from_field(t.int64_data(), shape, dtype);
  return from_field(t.int32_data(), shape, dtype);
}

void to_proto(const Tensor& tensor, const std::string& name, TensorProto& proto) {
  Tensor host = tensor.detach().to(Device::cpu()).contiguous();
  proto.set_name(name);
  proto.set_data_type(onnx_type(host.dtype()));
  for (int64_t d : host.shape()) proto.add_dims(d);
  proto.set_raw_data(host.numel() ? host.raw() : "", host.nbytes());
}

}  // namespace xylem::onnx_file
