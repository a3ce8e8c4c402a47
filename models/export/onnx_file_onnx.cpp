// SPDX-License-Identifier: Apache-2.0
#include <onnx/onnx.pb.h>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>

#include "models/export/onnx_file.h"

namespace xylem::onnx_file {
namespace {

namespace fs = std::filesystem;
using onnx::TensorProto;

constexpr int64_t kPage = 4096;

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

void read_external(const fs::path& folder, TensorProto& t) {
  if (t.data_location() != TensorProto::EXTERNAL) return;
  External e = external_of(t);
  fs::path relative(e.location);
  bool escapes = relative.empty() || relative.is_absolute();
  for (const auto& part : relative) escapes = escapes || part == "..";
  XY_CHECK(!escapes, "tensor '", t.name(), "': external data at '", e.location, "' is outside the model's folder");
  const fs::path file = folder / relative;
  std::error_code error;
  const auto size = int64_t(fs::file_size(file, error));
  XY_CHECK(!error, "tensor '", t.name(), "': external data '", file.string(), "' is missing");
  const int64_t expected = byte_size(t.data_type(), elements_of(t));
  if (e.length < 0) e.length = expected;
  XY_CHECK(e.length == expected, "tensor '", t.name(), "': external data of ", e.length, " bytes, but its shape needs ",
           expected);
  XY_CHECK(e.offset <= size && e.length <= size - e.offset, "tensor '", t.name(), "': external data '", file.string(),
           "' ends before byte ", e.offset + e.length);
  std::ifstream in(file, std::ios::binary);
  in.seekg(e.offset);
  std::string& raw = *t.mutable_raw_data();
  raw.resize(size_t(e.length));
  XY_CHECK(in.read(raw.data(), e.length), "cannot read '", file.string(), "'");
  t.clear_external_data();
  t.clear_data_location();
}

void read_external(const fs::path& folder, onnx::GraphProto& graph, int depth = 0) {
  XY_CHECK(depth < 32, "graphs are nested too deeply");
  for (auto& t : *graph.mutable_initializer()) read_external(folder, t);
  for (auto& node : *graph.mutable_node())
    for (auto& a : *node.mutable_attribute()) {
      if (a.has_t()) read_external(folder, *a.mutable_t());
      for (auto& t : *a.mutable_tensors()) read_external(folder, t);
      if (a.has_g()) read_external(folder, *a.mutable_g(), depth + 1);
      for (auto& g : *a.mutable_graphs()) read_external(folder, g, depth + 1);
    }
}

// Moves the bytes of large initializers to a file of their own.
void write_external(onnx::GraphProto& graph, const fs::path& file, const std::string& location, int64_t least) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  XY_CHECK(out, "cannot write '", file.string(), "'");
  int64_t at = 0;
  const std::string padding(kPage, '\0');
  for (auto& t : *graph.mutable_initializer()) {
    const auto bytes = int64_t(t.raw_data().size());
    if (bytes < least) continue;
    const int64_t gap = (kPage - at % kPage) % kPage;
    out.write(padding.data(), gap);
    at += gap;
    out.write(t.raw_data().data(), bytes);
    t.clear_raw_data();
    t.set_data_location(TensorProto::EXTERNAL);
    auto add = [&](const char* key, const std::string& value) {
      auto* entry = t.add_external_data();
      entry->set_key(key);
      entry->set_value(value);
    };
    add("location", location);
    add("offset", std::to_string(at));
    add("length", std::to_string(bytes));
    at += bytes;
  }
  out.close();
  XY_CHECK(out, "cannot write '", file.string(), "'; is the disk full?");
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

DType dtype_of(int onnx_type, const std::string& tensor) {
  switch (onnx_type) {
    case TensorProto::DOUBLE:
      return f64;
    case TensorProto::FLOAT:
      return f32;
    case TensorProto::FLOAT16:
      return f16;
    case TensorProto::BFLOAT16:
      return bf16;
    case TensorProto::INT64:
      return i64;
    case TensorProto::INT32:
      return i32;
    case TensorProto::INT8:
      return i8;
    case TensorProto::UINT8:
      return u8;
    case TensorProto::BOOL:
      return boolean;
    default:
      XY_FAIL("tensor '", tensor, "' has the ONNX element type ", onnx_type, ", which Xylem does not have");
  }
}

int element_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return TensorProto::DOUBLE;
    case DType::f32:
      return TensorProto::FLOAT;
    case DType::f16:
      return TensorProto::FLOAT16;
    case DType::bf16:
      return TensorProto::BFLOAT16;
    case DType::i64:
      return TensorProto::INT64;
    case DType::i32:
      return TensorProto::INT32;
    case DType::i8:
      return TensorProto::INT8;
    case DType::u8:
      return TensorProto::UINT8;
    case DType::boolean:
      break;
  }
  return TensorProto::BOOL;
}

int64_t byte_size(int onnx_type, int64_t elements) {
  switch (onnx_type) {
    case TensorProto::DOUBLE:
    case TensorProto::INT64:
    case TensorProto::UINT64:
    case TensorProto::COMPLEX64:
      return elements * 8;
    case TensorProto::COMPLEX128:
      return elements * 16;
    case TensorProto::FLOAT:
    case TensorProto::INT32:
    case TensorProto::UINT32:
      return elements * 4;
    case TensorProto::FLOAT16:
    case TensorProto::BFLOAT16:
    case TensorProto::INT16:
    case TensorProto::UINT16:
      return elements * 2;
    case TensorProto::STRING:
    case TensorProto::UNDEFINED:
      return -1;
    case 21:  // UINT4, INT4, FLOAT4E2M1: two to a byte
    case 22:
    case 23:
      return (elements + 1) / 2;
    default:
      return elements;
  }
}

void load(const std::string& path, onnx::ModelProto& model, bool with_weights) {
  XY_CHECK(fs::is_regular_file(path), "there is no file '", path, "'");
  parse(path, model);
  XY_CHECK(model.has_graph() && model.ir_version() > 0, "'", path, "' is not an ONNX model: it has no graph");
  if (!with_weights) return;
  try {
    read_external(fs::path(path).parent_path(), *model.mutable_graph());
  } catch (const Error& e) {
    XY_FAIL("cannot load '", path, "': ", e.message());
  }
}

void save(onnx::ModelProto model, const std::string& path, const SaveOptions& options) {
  const fs::path file(path);
  if (!file.parent_path().empty()) fs::create_directories(file.parent_path());
  const fs::path weights = fs::path(file).replace_extension(".weights.bin");
  const std::string aside = ".tmp";
  int64_t total = 0;
  for (const auto& t : model.graph().initializer()) total += int64_t(t.raw_data().size());
  const bool external = total > options.external_over;
  if (external)
    write_external(*model.mutable_graph(), weights.string() + aside, weights.filename().string(), options.external_min);
  {
    std::ofstream out(path + aside, std::ios::binary | std::ios::trunc);
    XY_CHECK(out, "cannot write '", path, "'");
    XY_CHECK(model.SerializeToOstream(&out), "cannot write '", path, "'; is the disk full?");
    out.close();
    XY_CHECK(out, "cannot write '", path, "'; is the disk full?");
  }
  if (external) fs::rename(weights.string() + aside, weights);
  fs::rename(path + aside, path);
}

Tensor to_tensor(const TensorProto& t) {
  const DType dtype = dtype_of(t.data_type(), t.name());
  const int64_t n = elements_of(t);
  const Shape shape(std::vector<int64_t>(t.dims().begin(), t.dims().end()));
  XY_CHECK(t.data_location() != TensorProto::EXTERNAL, "the data of tensor '", t.name(), "' was not loaded");
  if (t.has_raw_data()) {
    XY_CHECK(int64_t(t.raw_data().size()) == byte_size(t.data_type(), n), "tensor '", t.name(), "' of shape ", shape,
             " holds ", t.raw_data().size(), " bytes instead of ", byte_size(t.data_type(), n));
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
  proto.set_data_type(element_type(host.dtype()));
  for (int64_t d : host.shape()) proto.add_dims(d);
  proto.set_raw_data(host.numel() ? host.raw() : "", host.nbytes());
}

}  // namespace xylem::onnx_file
