// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/util/file_error.h"
#include "core/util/git_lfs.h"
#include "models/nn/lazy.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit

constexpr std::pair<const char*, DType> kTypes[] = {{"F64", f64},   {"F32", f32}, {"F16", f16},
                                                    {"BF16", bf16}, {"I64", i64}, {"I32", i32},
                                                    {"I8", i8},     {"U8", u8},   {"BOOL", boolean}};

std::optional<DType> parse_type(const std::string& name) {
  for (auto& [text, type] : kTypes)
    if (name == text) return type;
  return {};
}
const char* type_name(DType dtype) {
  for (auto& [text, type] : kTypes)
    if (type == dtype) return text;
  XY_FAIL("safetensors has no type for ", name_of(dtype));
}

std::string system_error() { return std::strerror(errno); }

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  operator int() const { return fd_; }

 private:
  int fd_;
};

struct MappedFile {
  std::shared_ptr<void> owner;
  char* data = nullptr;
  uint64_t size = 0;
};

// Pages are private: a write to a tensor copies its page and leaves the file alone.
MappedFile map_file(const std::string& path) {
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  XY_CHECK(fd >= 0, "cannot open '", path, "': ", system_error());
  struct stat info;
  XY_CHECK(::fstat(fd, &info) == 0 && S_ISREG(info.st_mode), "'", path, "' is not a regular file");
  MappedFile file;
  file.size = uint64_t(info.st_size);
  XY_CHECK(file.size >= 8, "'", path, "' is not a safetensors file: it has ", file.size, " bytes");
  void* data = ::mmap(nullptr, file.size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  XY_CHECK(data != MAP_FAILED, "cannot map '", path, "' into memory: ", system_error());
  file.owner = std::shared_ptr<void>(data, [size = file.size](void* p) { ::munmap(p, size); });
  file.data = static_cast<char*>(data);
  return file;
}

struct Entry {
  std::string name, type;      // the type as it is written
  std::optional<DType> dtype;  // none: Xylem does not have it
  Shape shape;
  uint64_t begin = 0, end = 0;
};

template <class... Parts>
[[noreturn]] void bad_tensor(const std::string& path, const std::string& name, const Parts&... why) {
  XY_FAIL("'", path, "': tensor '", name, "' ", why...);
}

Entry parse_entry(const std::string& path, const std::string& name, const nlohmann::json& json, uint64_t data_bytes) {
  auto bad = [&](const auto&... why) { bad_tensor(path, name, why...); };
  try {
    Entry e{.name = name, .type = json.at("dtype").get<std::string>(), .dtype = {}, .shape = {}};
    e.dtype = parse_type(e.type);
    uint64_t count = 1;
    for (const auto& d : json.at("shape")) {
      uint64_t size = d.get<uint64_t>();
      if (size > uint64_t(INT64_MAX) || (size != 0 && count > uint64_t(INT64_MAX) / 8 / size))
        bad("has an impossible shape ", json.at("shape").dump());
      count *= size;
      e.shape.push_back(int64_t(size));
    }
    const auto& range = json.at("data_offsets");
    if (range.size() != 2) bad("has no [begin, end] in data_offsets");
    e.begin = range[0].get<uint64_t>(), e.end = range[1].get<uint64_t>();
    if (e.begin > e.end) bad("ends at byte ", e.end, " before it begins at ", e.begin);
    if (e.end > data_bytes)
      bad("ends at byte ", e.end, " of the data, of which the file has ", data_bytes, ": the file is truncated");
    if (e.dtype && e.end - e.begin != count * size_of(*e.dtype))
      bad("of type ", e.type, " and shape ", e.shape, " takes ", count * size_of(*e.dtype),
          " bytes but its offsets span ", e.end - e.begin);
    return e;
  } catch (const nlohmann::json::exception& e) {
    bad_tensor(path, name, "has a malformed header entry: ", e.what());
  }
}

// A tensor of a type that Xylem does not have is an error when something asks for its values.
Tensor unreadable(const std::string& path, const Entry& e) {
  return lazy_tensor(e.shape, u8, [path, name = e.name, type = e.type]() -> Tensor {
    bad_tensor(path, name, "has type ", type, ", which Xylem does not have");
  });
}

}  // namespace

std::vector<NamedTensor> load_safetensors(const std::string& path, Metadata* metadata) {
  MappedFile file = map_file(path);
  refuse_git_lfs_pointer(path);
  uint64_t header_bytes;
  std::memcpy(&header_bytes, file.data, 8);
  XY_CHECK(header_bytes <= kMaxHeader, "'", path, "' is not a safetensors file: it claims a header of ", header_bytes,
           " bytes");
  XY_CHECK(header_bytes <= file.size - 8, "'", path, "' is truncated: the header takes ", header_bytes,
           " bytes but only ", file.size - 8, " follow");
  const char* text = file.data + 8;
  auto header = nlohmann::json::parse(text, text + header_bytes, nullptr, false);
  XY_CHECK(header.is_object(), "'", path, "' is not a safetensors file: its header is not a JSON object");

  uint64_t data_bytes = file.size - 8 - header_bytes;
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      entries.push_back(parse_entry(path, name, value, data_bytes));
    } else if (metadata) {
      for (const auto& [key, v] : value.items()) (*metadata)[key] = v.is_string() ? v.get<std::string>() : v.dump();
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });

  uint64_t position = 0;
  std::vector<NamedTensor> tensors;
  for (const Entry& e : entries) {
    XY_CHECK(e.begin == position, "'", path, "': tensor '", e.name, "' begins at byte ", e.begin,
             " of the data instead of ", position, ": tensors overlap or leave a gap");
    position = e.end;
    if (!e.dtype) {
      tensors.push_back({e.name, unreadable(path, e)});
      continue;
    }
    char* data = file.data + 8 + header_bytes + e.begin;
    bool aligned = reinterpret_cast<uintptr_t>(data) % size_of(*e.dtype) == 0;
    tensors.push_back({e.name, aligned ? from_external(data, e.shape, *e.dtype, Device::cpu(), file.owner)
                                       : from_bytes(data, e.shape, *e.dtype)});
  }
  XY_CHECK(position == data_bytes, "'", path, "' holds ", data_bytes - position, " bytes that belong to no tensor");
  return tensors;
}

std::string safetensors_header(const std::vector<SafetensorsEntry>& entries, const Metadata& metadata) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t position = 0;
  std::set<std::string> names;
  for (const SafetensorsEntry& e : entries) {
    XY_CHECK(e.name != "__metadata__" && names.insert(e.name).second, "two tensors are named '", e.name, "'");
    uint64_t end = position + uint64_t(e.shape.numel()) * size_of(e.dtype);
    header[e.name] = {{"dtype", type_name(e.dtype)}, {"shape", e.shape.vec()}, {"data_offsets", {position, end}}};
    position = end;
  }
  std::string text = header.empty() ? "{}" : header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  uint64_t bytes = text.size();
  return std::string(reinterpret_cast<const char*>(&bytes), 8) + text;
}

void save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
  std::vector<NamedTensor> order = tensors;
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor& a, const NamedTensor& b) {
    return size_of(a.tensor.dtype()) > size_of(b.tensor.dtype());
  });
  std::vector<SafetensorsEntry> entries;
  for (const NamedTensor& t : order) entries.push_back({t.name, t.tensor.dtype(), t.tensor.shape()});
  std::string header = safetensors_header(entries, metadata);

  std::string aside = path + ".tmp" + std::to_string(::getpid());
  Descriptor fd(::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (fd < 0) cannot_write(aside);
  struct Cleanup {
    const std::string& path;
    bool armed = true;
    ~Cleanup() {
      if (armed) ::unlink(path.c_str());
    }
  } cleanup{aside};
  auto write = [&](const void* data, uint64_t bytes) {
    const char* p = static_cast<const char*>(data);
    while (bytes > 0) {
      ssize_t n = ::write(fd, p, std::min<uint64_t>(bytes, 1u << 30));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) cannot_write(path);  // the previous file is unchanged
      p += n, bytes -= uint64_t(n);
    }
  };
  write(header.data(), header.size());
  for (const NamedTensor& t : order) {
    Tensor host = t.tensor.detach().to(Device::cpu()).contiguous();
    if (host.numel() > 0) write(host.raw(), host.nbytes());
  }
  if (::fsync(fd) != 0 || ::rename(aside.c_str(), path.c_str()) != 0) cannot_write(path);
  cleanup.armed = false;
}

std::vector<NamedTensor> load_checkpoint_tensors(const std::string& path, Metadata* metadata) {
  fs::path file = path;
  if (fs::is_directory(file)) {
    fs::path single = file / "model.safetensors", index = file / "model.safetensors.index.json";
    XY_CHECK(fs::exists(single) || fs::exists(index), "the folder '", path,
             "' holds neither model.safetensors nor model.safetensors.index.json");
    file = fs::exists(single) ? single : index;
  }
  if (file.extension() != ".json") return load_safetensors(file.string(), metadata);

  std::ifstream in(file);
  XY_CHECK(in, "cannot open '", file.string(), "': ", system_error());
  auto index = nlohmann::json::parse(in, nullptr, false);
  XY_CHECK(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object(), "'", file.string(),
           "' is not a safetensors index: it has no weight_map");
  std::set<std::string> shards;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    XY_CHECK(shard.is_string(), "'", file.string(), "': the shard of '", name, "' is not a file name");
    auto file_name = shard.get<std::string>();
    XY_CHECK(fs::path(file_name).filename() == file_name, "'", file.string(), "': the shard '", file_name,
             "' is not in the same folder");
    shards.insert(file_name);
  }
  std::vector<NamedTensor> tensors;
  for (const std::string& shard : shards)
    for (NamedTensor& t : load_safetensors((file.parent_path() / shard).string(), metadata))
      tensors.push_back(std::move(t));
  return tensors;
}

}  // namespace xylem
