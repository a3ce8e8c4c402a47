// SPDX-License-Identifier: Apache-2.0
#include "data/hdf5.h"

#include "core/util/check.h"

#ifdef XY_WITH_HDF5

#include <fcntl.h>
#include <hdf5.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/util/git_lfs.h"
#include "data/chunk_cache.h"
#include "data/gzip.h"
#include "data/hdf5_handle.h"

namespace xylem {
namespace hdf5 {

static std::mutex& mutex() {
  static auto* m = new std::mutex;
  return *m;
}
Lock::Lock() : guard_(mutex()) { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

// The innermost message of the error that HDF5 has just returned.
std::string reason() {
  std::string text;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, const H5E_error2_t* e, void* out) -> herr_t {
        auto& first = *static_cast<std::string*>(out);
        if (first.empty() && e->desc) first = e->desc;
        return 0;
      },
      &text);
  if (text.empty()) return text;
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return detail::concat(" (HDF5 ", major, ".", minor, ".", release, ": ", text, ")");
}

hid_t native(DType t) {
  switch (t) {
    case DType::f64:
      return H5T_NATIVE_DOUBLE;
    case DType::f32:
      return H5T_NATIVE_FLOAT;
    case DType::i64:
      return H5T_NATIVE_INT64;
    case DType::i32:
      return H5T_NATIVE_INT32;
    case DType::i8:
      return H5T_NATIVE_INT8;
    case DType::u8:
      return H5T_NATIVE_UINT8;
    default:
      XY_FAIL("HDF5 datasets of ", t, " are not supported; use f32, f64, u8, i8, i32 or i64");
  }
}

}  // namespace hdf5

namespace {

using namespace hdf5;

std::optional<DType> nearest(hid_t type) {
  size_t bytes = H5Tget_size(type);
  bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
  switch (H5Tget_class(type)) {
    case H5T_FLOAT:
      return bytes > 4 ? f64 : f32;
    case H5T_INTEGER:
      if (bytes == 1) return is_signed ? i8 : u8;
      return bytes == 2 || (bytes == 4 && is_signed) ? i32 : i64;
    default:
      return {};
  }
}

struct Filter {
  H5Z_filter_t id;
  std::string name;  // "deflate 4"
};
std::vector<Filter> filters_of(hid_t plist) {
  std::vector<Filter> filters;
  for (int i = 0; i < H5Pget_nfilters(plist); ++i) {
    unsigned flags = 0, values[8] = {}, config = 0;
    size_t count = 8;
    char label[64] = "";
    H5Z_filter_t id = H5Pget_filter2(plist, unsigned(i), &flags, &count, values, sizeof label, label, &config);
    filters.push_back({id, id == H5Z_FILTER_DEFLATE   ? "deflate " + std::to_string(values[0])
                           : id == H5Z_FILTER_SHUFFLE ? "shuffle"
                           : *label                   ? label
                                                      : "filter " + std::to_string(id)});
  }
  return filters;
}

Hdf5Info describe(const std::string& name, hid_t dataset) {
  Hdf5Info info{.name = name};
  Id space(H5Dget_space(dataset), H5Sclose), type(H5Dget_type(dataset), H5Tclose);
  Id plist(H5Dget_create_plist(dataset), H5Pclose);
  int rank = std::max(0, H5Sget_simple_extent_ndims(space));
  if (rank > kMaxRank) return info;  // has no dtype, so cannot be read
  hsize_t dims[kMaxRank] = {}, chunk[kMaxRank] = {};
  if (rank > 0) H5Sget_simple_extent_dims(space, dims, nullptr);
  for (int d = 0; d < rank; ++d) info.shape.push_back(int64_t(dims[d]));
  info.dtype = nearest(type);
  if (rank > 0 && H5Pget_layout(plist) == H5D_CHUNKED) {
    H5Pget_chunk(plist, kMaxRank, chunk);
    for (int d = 0; d < rank; ++d) info.chunk.push_back(int64_t(chunk[d]));
  }
  for (const Filter& filter : filters_of(plist)) info.filters += (info.filters.empty() ? "" : ", ") + filter.name;
  return info;
}

// Reading by the library needs every filter; without this it would say so at the first batch.
void require_filters(const std::string& path, const std::string& name, hid_t dataset) {
  Id plist(H5Dget_create_plist(dataset), H5Pclose);
  for (const Filter& filter : filters_of(plist))
    XY_CHECK(H5Zfilter_avail(filter.id) > 0, path, ": dataset '", name, "' is packed by the filter ", filter.name,
             " (number ", filter.id,
             "), which this HDF5 does not have; set HDF5_PLUGIN_PATH to the folder of its plugin, or pack the dataset "
             "with gzip");
}

}  // namespace

bool built_with_hdf5() { return true; }

struct Hdf5File::Impl {
  std::string path;
  int fd = -1;
  Id file;

  explicit Impl(const std::string& p) : path(p), fd(open(p.c_str(), O_RDONLY | O_CLOEXEC)) {
    XY_CHECK(fd >= 0, "cannot open HDF5 file ", path, ": ", std::strerror(errno));
    Lock lock;
    file = Id(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
    if (file < 0) {
      close(fd);
      refuse_git_lfs_pointer(path);
      XY_FAIL(path, " is not an HDF5 file, or is damaged or truncated", reason());
    }
  }
  ~Impl() {
    {
      Lock lock;
      file.reset();
    }
    close(fd);
  }

  // Names of datasets and groups. This and what follows: under the lock.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    H5Lvisit(
        file, H5_INDEX_NAME, H5_ITER_INC,
        [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
          static_cast<std::vector<std::string>*>(out)->push_back(name);
          return 0;
        },
        &names);
    return names;
  }
  std::vector<Hdf5Info> datasets() const {
    std::vector<Hdf5Info> found;
    for (const std::string& name : names()) {
      Id object(H5Oopen(file, name.c_str(), H5P_DEFAULT), H5Oclose);
      if (object < 0)
        found.push_back({.name = name});  // what it is, this library cannot tell
      else if (H5Iget_type(object) == H5I_DATASET)
        found.push_back(describe(name, object));
    }
    return found;
  }
  Id open_dataset(const std::string& name) const {
    Id dataset(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose);
    if (dataset >= 0) return dataset;
    const std::string why = reason();
    for (const std::string& existing : names())
      XY_CHECK(existing != name.substr(name.starts_with('/')), path, ": cannot open '", name, "'", why);
    std::string has;
    for (const Hdf5Info& d : datasets())
      has += detail::concat(has.empty() ? "" : ", ", d.name, " ", d.dtype ? name_of(*d.dtype) : "?", " ", d.shape);
    XY_FAIL(path, " has no dataset '", name, "'; it has ", has.empty() ? "none" : has);
  }

  void read_at(void* out, size_t bytes, int64_t address) const {
    for (size_t done = 0; done < bytes;) {
      ssize_t n = pread(fd, static_cast<char*>(out) + done, bytes - done, off_t(address) + off_t(done));
      if (n < 0 && errno == EINTR) continue;
      XY_CHECK(n >= 0, "cannot read ", path, ": ", std::strerror(errno));
      XY_CHECK(n > 0, path, " is truncated: data of ", bytes, " bytes at ", address, " goes past its end");
      done += size_t(n);
    }
  }
};

struct Hdf5Array::Impl {
  std::shared_ptr<Hdf5File::Impl> file;
  Id dataset;
  Hdf5Info info;
  size_t element = 0, row_bytes = 0, chunk_bytes = 0;
  enum class Layout { library, contiguous, chunked } layout = Layout::library;
  int64_t address = 0;                // contiguous: of row 0
  std::vector<H5Z_filter_t> filters;  // in the order of writing
  Shape grid;                         // chunks along each dimension
  bool whole_rows = false;            // a chunk holds all of its rows

  struct Place {
    int64_t address = -1;  // -1: not written, all fill value
    size_t bytes = 0;
    unsigned skipped = 0;  // bit i: filter i was not applied
  };
  std::mutex places_mutex;
  std::unordered_map<int64_t, Place> places;
  ChunkCache cache;

  Impl(std::shared_ptr<Hdf5File::Impl> f, const std::string& name, int64_t cache_bytes)
      : file(std::move(f)), cache(cache_bytes) {
    Lock lock;
    dataset = file->open_dataset(name);
    info = describe(name, dataset);
    XY_CHECK(info.dtype && info.shape.rank() > 0, file->path, ": dataset '", name,
             "' has no rows of numbers (its shape is ", info.shape, info.dtype ? ")" : " and its type is not numeric)");
    element = size_of(*info.dtype);
    row_bytes = element;
    for (int d = 1; d < info.shape.rank(); ++d) row_bytes *= size_t(info.shape[d]);
    choose_layout();
    if (layout == Layout::library) require_filters(file->path, name, dataset);
  }
  ~Impl() {
    Lock lock;
    dataset.reset();
  }

  void choose_layout() {
    Id type(H5Dget_type(dataset), H5Tclose), plist(H5Dget_create_plist(dataset), H5Pclose);
    Id file_plist(H5Fget_create_plist(file->file), H5Pclose);
    hsize_t userblock = 0;
    H5Pget_userblock(file_plist, &userblock);
    if (H5Tequal(type, native(*info.dtype)) <= 0 || userblock != 0) return;
    H5D_layout_t stored = H5Pget_layout(plist);
    if (stored == H5D_CONTIGUOUS && H5Pget_external_count(plist) == 0) {
      haddr_t at = H5Dget_offset(dataset);
      if (at == HADDR_UNDEF) return;
      layout = Layout::contiguous, address = int64_t(at);
    }
    if (stored != H5D_CHUNKED) return;
    unsigned options = 0;
    H5Pget_chunk_opts(plist, &options);
    if (options & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS) return;
    for (const Filter& filter : filters_of(plist)) {
      if (filter.id != H5Z_FILTER_DEFLATE && filter.id != H5Z_FILTER_SHUFFLE) return;
      filters.push_back(filter.id);
    }
    layout = Layout::chunked;
    chunk_bytes = element * size_t(info.chunk.numel());
    whole_rows = true;
    for (int d = 0; d < info.shape.rank(); ++d) {
      grid.push_back((info.shape[d] + info.chunk[d] - 1) / info.chunk[d]);
      if (d > 0 && info.chunk[d] != info.shape[d]) whole_rows = false;
    }
  }

  void read_by_library(int64_t row, void* out) const {
    int rank = info.shape.rank();
    hsize_t start[kMaxRank] = {hsize_t(row)}, count[kMaxRank] = {1};
    for (int d = 1; d < rank; ++d) count[d] = hsize_t(info.shape[d]);
    Lock lock;
    Id space(H5Dget_space(dataset), H5Sclose), memory(H5Screate_simple(rank, count, nullptr), H5Sclose);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, start, nullptr, count, nullptr);
    herr_t status = H5Dread(dataset, native(*info.dtype), memory, space, H5P_DEFAULT, out);
    XY_CHECK(status >= 0, file->path, ": cannot read row ", row, " of '", info.name, "'", reason());
  }

  int64_t index_of(const Shape& cell) const {
    int64_t index = 0;
    for (int d = 0; d < cell.rank(); ++d) index = index * grid[d] + cell[d];
    return index;
  }

  Place place(const Shape& cell) {
    std::lock_guard guard(places_mutex);
    auto [it, is_new] = places.try_emplace(index_of(cell));
    if (is_new) {
      hsize_t offset[kMaxRank] = {}, bytes = 0;
      for (int d = 0; d < cell.rank(); ++d) offset[d] = hsize_t(cell[d]) * hsize_t(info.chunk[d]);
      haddr_t at = HADDR_UNDEF;
      unsigned skipped = 0;
      Lock lock;
      if (H5Dget_chunk_info_by_coord(dataset, offset, &skipped, &at, &bytes) < 0) {
        places.erase(it);
        XY_FAIL(file->path, ": cannot find a chunk of '", info.name, "'", reason());
      }
      if (at != HADDR_UNDEF) it->second = {int64_t(at), size_t(bytes), skipped};
    }
    return it->second;
  }

  void unpack(const Place& place, std::vector<uint8_t>& out) const {
    std::vector<uint8_t> other;
    out.resize(place.bytes);
    file->read_at(out.data(), place.bytes, place.address);
    for (size_t i = filters.size(); i-- > 0;) {
      if (place.skipped >> i & 1) continue;
      other.resize(chunk_bytes);
      if (filters[i] == H5Z_FILTER_DEFLATE) {
        inflate_block(out.data(), out.size(), other.data(), chunk_bytes);
      } else {  // byte j of every element was stored together
        size_t n = out.size() / element;
        for (size_t j = 0; j < element; ++j)
          for (size_t k = 0; k < n; ++k) other[k * element + j] = out[j * n + k];
      }
      out.swap(other);
    }
    XY_CHECK(out.size() == chunk_bytes, "a chunk holds ", out.size(), " bytes, not ", chunk_bytes);
  }

  // Copies what chunk `cell` has of `row` to its place in `out`.
  void copy_part(const std::vector<uint8_t>& chunk, const Shape& cell, int64_t row, uint8_t* out) const {
    int rank = info.shape.rank();
    if (whole_rows) {
      std::memcpy(out, chunk.data() + size_t(row % info.chunk[0]) * row_bytes, row_bytes);
      return;
    }
    Shape extent = info.chunk, at = Shape::filled(rank, 0);
    for (int d = 1; d < rank; ++d) extent[d] = std::min(info.chunk[d], info.shape[d] - cell[d] * info.chunk[d]);
    size_t run = element * size_t(extent[rank - 1]);
    while (true) {
      int64_t from = row % info.chunk[0], to = 0;
      for (int d = 1; d < rank; ++d) {
        from = from * info.chunk[d] + at[d];
        to = to * info.shape[d] + cell[d] * info.chunk[d] + at[d];
      }
      std::memcpy(out + size_t(to) * element, chunk.data() + size_t(from) * element, run);
      int d = rank - 2;
      while (d > 0 && ++at[d] == extent[d]) at[d--] = 0;
      if (d <= 0) return;
    }
  }

  void read_by_chunks(int64_t row, uint8_t* out) {
    int rank = info.shape.rank();
    Shape cell = Shape::filled(rank, 0);
    cell[0] = row / info.chunk[0];
    while (true) {
      Place where = place(cell);
      if (where.address < 0) return read_by_library(row, out);
      if (whole_rows && filters.empty()) {
        return file->read_at(out, row_bytes, where.address + (row % info.chunk[0]) * int64_t(row_bytes));
      }
      auto chunk = cache.get(index_of(cell), chunk_bytes, [&](std::vector<uint8_t>& data) { unpack(where, data); });
      copy_part(*chunk, cell, row, out);
      int d = rank - 1;
      while (d > 0 && ++cell[d] == grid[d]) cell[d--] = 0;
      if (d <= 0) return;
    }
  }

  void read_row(int64_t row, void* out) {
    XY_CHECK(row >= 0 && row < info.shape[0], file->path, ": row ", row, " of '", info.name, "', which has ",
             info.shape[0]);
    if (row_bytes == 0) return;
    if (layout == Layout::contiguous)
      file->read_at(out, row_bytes, address + row * int64_t(row_bytes));
    else if (layout == Layout::library)
      read_by_library(row, out);
    else
      read_by_chunks(row, static_cast<uint8_t*>(out));
  }
};

Hdf5File::Hdf5File(const std::string& path) : impl_(std::make_shared<Impl>(path)) {}
const std::string& Hdf5File::path() const { return impl_->path; }
std::vector<Hdf5Info> Hdf5File::datasets() const {
  Lock lock;
  return impl_->datasets();
}
Hdf5Array Hdf5File::array(const std::string& name, int64_t cache_bytes) const {
  return Hdf5Array(std::make_shared<Hdf5Array::Impl>(impl_, name, cache_bytes));
}

std::vector<int64_t> Hdf5File::integers(const std::string& name) const {
  Lock lock;
  Id dataset = impl_->open_dataset(name);
  Hdf5Info info = describe(name, dataset);
  XY_CHECK(info.dtype && !is_float(*info.dtype) && info.shape.rank() > 0 && info.shape.numel() == info.shape[0],
           impl_->path, ": dataset '", name, "' should hold one integer per sample, but is ",
           info.dtype ? name_of(*info.dtype) : "not numeric", " ", info.shape);
  require_filters(impl_->path, name, dataset);
  std::vector<int64_t> values(size_t(info.shape[0]));
  herr_t status = H5Dread(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  XY_CHECK(status >= 0, impl_->path, ": cannot read '", name, "'", reason());
  return values;
}

std::vector<std::string> Hdf5File::strings(const std::string& name, const std::string& attribute) const {
  Lock lock;
  Id dataset = impl_->open_dataset(name);
  if (H5Aexists(dataset, attribute.c_str()) <= 0) return {};
  Id attr(H5Aopen(dataset, attribute.c_str(), H5P_DEFAULT), H5Aclose);
  Id type(H5Aget_type(attr), H5Tclose), space(H5Aget_space(attr), H5Sclose);
  hssize_t count = H5Sget_simple_extent_npoints(space);
  if (H5Tget_class(type) != H5T_STRING || count <= 0) return {};
  std::vector<std::string> values;
  if (H5Tis_variable_str(type) > 0) {
    std::vector<char*> raw(size_t(count), nullptr);
    XY_CHECK(H5Aread(attr, type, raw.data()) >= 0, impl_->path, ": cannot read attribute '", attribute, "'", reason());
    for (const char* s : raw) values.emplace_back(s ? s : "");
    H5Dvlen_reclaim(type, space, H5P_DEFAULT, raw.data());
  } else {
    size_t length = H5Tget_size(type);
    std::string raw(length * size_t(count), '\0');
    XY_CHECK(H5Aread(attr, type, raw.data()) >= 0, impl_->path, ": cannot read attribute '", attribute, "'", reason());
    for (hssize_t i = 0; i < count; ++i) {
      std::string value = raw.substr(size_t(i) * length, length);
      values.push_back(value.substr(0, value.find_last_not_of(std::string(" \0", 2)) + 1));
    }
  }
  return values;
}

const Hdf5Info& Hdf5Array::info() const { return impl_->info; }
size_t Hdf5Array::row_bytes() const { return impl_->row_bytes; }
void Hdf5Array::read_row(int64_t row, void* out) const { impl_->read_row(row, out); }
bool Hdf5Array::direct() const { return impl_->layout != Impl::Layout::library; }
int64_t Hdf5Array::cached_rows() const {
  return impl_->cache.capacity() / int64_t(std::max<size_t>(1, impl_->row_bytes));
}
int64_t Hdf5Array::chunks_unpacked() const { return impl_->cache.misses(); }

}  // namespace xylem

#else

namespace xylem {
namespace {
[[noreturn]] void missing() { XY_FAIL("this build of Xylem has no HDF5; install libhdf5-dev and build again"); }
}  // namespace
bool built_with_hdf5() { return false; }
struct Hdf5File::Impl {};
struct Hdf5Array::Impl {};
Hdf5File::Hdf5File(const std::string&) { missing(); }
const std::string& Hdf5File::path() const { missing(); }
std::vector<Hdf5Info> Hdf5File::datasets() const { missing(); }
Hdf5Array Hdf5File::array(const std::string&, int64_t) const { missing(); }
std::vector<int64_t> Hdf5File::integers(const std::string&) const { missing(); }
std::vector<std::string> Hdf5File::strings(const std::string&, const std::string&) const { missing(); }
const Hdf5Info& Hdf5Array::info() const { missing(); }
size_t Hdf5Array::row_bytes() const { missing(); }
void Hdf5Array::read_row(int64_t, void*) const { missing(); }
bool Hdf5Array::direct() const { missing(); }
int64_t Hdf5Array::cached_rows() const { missing(); }
int64_t Hdf5Array::chunks_unpacked() const { missing(); }
}  // namespace xylem

#endif
