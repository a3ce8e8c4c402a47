// SPDX-License-Identifier: Apache-2.0
#include "models/export/bundle/reference.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/util/check.h"

namespace xylem {
namespace {

Tensor on_host(const Tensor& t) {
  Tensor host = t.detach().to(Device::cpu()).contiguous();
  return host.dtype() == bf16 ? host.to(f32) : host;
}

const char* numpy_type(DType t) {
  switch (t) {
    case f64:
      return "<f8";
    case f32:
      return "<f4";
    case f16:
      return "<f2";
    case i64:
      return "<i8";
    case i32:
      return "<i4";
    case i8:
      return "|i1";
    case u8:
      return "|u1";
    default:
      return "|b1";
  }
}

const char* request_type(DType t) {
  switch (t) {
    case f64:
      return "FP64";
    case f32:
      return "FP32";
    case f16:
      return "FP16";
    case i64:
      return "INT64";
    case i32:
      return "INT32";
    case i8:
      return "INT8";
    case u8:
      return "UINT8";
    default:
      return "BOOL";
  }
}

std::ofstream open(const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  XY_CHECK(out, "cannot write '", path, "'");
  return out;
}

}  // namespace

void save_npy(const std::string& path, const Tensor& tensor) {
  Tensor t = on_host(tensor);
  std::string shape;
  for (int d = 0; d < t.rank(); ++d)
    shape += std::to_string(t.size(d)) + (d + 1 < t.rank() ? ", " : t.rank() == 1 ? "," : "");
  std::string header =
      std::string("{'descr': '") + numpy_type(t.dtype()) + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.append(63 - (10 + header.size()) % 64, ' ');  // the data begin at a multiple of 64
  header += '\n';
  std::ofstream out = open(path);
  out.write("\x93NUMPY\x01\x00", 8);
  char length[2] = {char(header.size() & 255), char(header.size() >> 8)};
  out.write(length, 2);
  out << header;
  out.write(static_cast<const char*>(t.raw()), std::streamsize(t.nbytes()));
  XY_CHECK(out.flush(), "cannot write '", path, "'");
}

void save_bin(const std::string& path, const Tensor& tensor) {
  Tensor t = on_host(tensor);
  std::ofstream out = open(path);
  out.write(static_cast<const char*>(t.raw()), std::streamsize(t.nbytes()));
  XY_CHECK(out.flush(), "cannot write '", path, "'");
}

std::string inference_request(const std::vector<std::string>& names, const Tensors& inputs) {
  nlohmann::ordered_json request;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensor t = on_host(inputs[i]);
    nlohmann::ordered_json entry{{"name", names[i]}, {"datatype", request_type(t.dtype())}};
    entry["shape"] = std::vector<int64_t>(t.shape().begin(), t.shape().end());
    if (is_float(t.dtype()))
      entry["data"] = t.to_vector<float>();
    else
      entry["data"] = t.to_vector<int64_t>();
    request["inputs"].push_back(entry);
  }
  return request.dump();
}

}  // namespace xylem
