// SPDX-License-Identifier: Apache-2.0
#include "core/util/check.h"
#include "data/hdf5.h"

#ifdef XY_WITH_HDF5

#include <hdf5.h>

#include <filesystem>
#include <map>

#include "data/hdf5_handle.h"

namespace xylem {

using namespace hdf5;

struct Hdf5Writer::Impl {
  std::string path, aside;
  Id file;
  struct Column {
    Id dataset;
    Shape row;
    DType dtype;
    hsize_t rows = 0;
  };
  std::map<std::string, Column> columns;

  Column& column(const std::string& name) {
    auto it = columns.find(name);
    XY_CHECK(it != columns.end(), aside, ": no dataset '", name, "' was created");
    return it->second;
  }
};

Hdf5Writer::Hdf5Writer(const std::string& path) : impl_(std::make_unique<Impl>()) {
  impl_->path = path, impl_->aside = path + ".tmp";
  Lock lock;
  impl_->file = Id(H5Fcreate(impl_->aside.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
  XY_CHECK(impl_->file >= 0, "cannot write ", impl_->aside, reason());
}

Hdf5Writer::~Hdf5Writer() {
  if (impl_->file < 0) return;
  {
    Lock lock;
    impl_->columns.clear();
    impl_->file.reset();
  }
  std::error_code ignored;
  std::filesystem::remove(impl_->aside, ignored);
}

void Hdf5Writer::create(const std::string& name, const Shape& row, DType dtype, const Shape& chunk, int deflate) {
  Lock lock;
  hsize_t dims[kMaxRank] = {0}, limit[kMaxRank] = {H5S_UNLIMITED}, chunks[kMaxRank] = {hsize_t(chunk[0])};
  for (int d = 1; d <= row.rank(); ++d) {
    dims[d] = limit[d] = hsize_t(row[d - 1]);
    chunks[d] = hsize_t(chunk.rank() > 1 ? chunk[d] : row[d - 1]);
  }
  Id space(H5Screate_simple(row.rank() + 1, dims, limit), H5Sclose), plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_chunk(plist, row.rank() + 1, chunks);
  if (deflate > 0) {
    if (size_of(dtype) > 1) H5Pset_shuffle(plist);
    H5Pset_deflate(plist, unsigned(deflate));
  }
  Id dataset(H5Dcreate2(impl_->file, name.c_str(), native(dtype), space, H5P_DEFAULT, plist, H5P_DEFAULT), H5Dclose);
  XY_CHECK(dataset >= 0, impl_->aside, ": cannot create dataset '", name, "'", reason());
  impl_->columns[name] = {std::move(dataset), row, dtype, 0};
}

void Hdf5Writer::append(const std::string& name, const void* rows, int64_t count) {
  Lock lock;
  Impl::Column& c = impl_->column(name);
  int rank = c.row.rank() + 1;
  hsize_t start[kMaxRank] = {c.rows}, size[kMaxRank] = {hsize_t(count)}, total[kMaxRank] = {c.rows + hsize_t(count)};
  for (int d = 1; d < rank; ++d) size[d] = total[d] = hsize_t(c.row[d - 1]);
  bool ok = H5Dset_extent(c.dataset, total) >= 0;
  Id space(H5Dget_space(c.dataset), H5Sclose), memory(H5Screate_simple(rank, size, nullptr), H5Sclose);
  ok = ok && H5Sselect_hyperslab(space, H5S_SELECT_SET, start, nullptr, size, nullptr) >= 0;
  ok = ok && H5Dwrite(c.dataset, native(c.dtype), memory, space, H5P_DEFAULT, rows) >= 0;
  XY_CHECK(ok, "cannot write ", impl_->aside, "; is the disk full?", reason());
  c.rows += hsize_t(count);
}

void Hdf5Writer::set_strings(const std::string& name, const std::string& attribute,
                             const std::vector<std::string>& values) {
  Lock lock;
  hsize_t count = values.size();
  std::vector<const char*> raw;
  for (const std::string& v : values) raw.push_back(v.c_str());
  Id type(H5Tcopy(H5T_C_S1), H5Tclose), space(H5Screate_simple(1, &count, nullptr), H5Sclose);
  H5Tset_size(type, H5T_VARIABLE);
  H5Tset_cset(type, H5T_CSET_UTF8);
  Id attr(H5Acreate2(impl_->column(name).dataset, attribute.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  XY_CHECK(attr >= 0 && H5Awrite(attr, type, raw.data()) >= 0, impl_->aside, ": cannot write attribute '", attribute,
           "'", reason());
}

void Hdf5Writer::finish() {
  Lock lock;
  bool ok = H5Fflush(impl_->file, H5F_SCOPE_LOCAL) >= 0;
  XY_CHECK(ok, "cannot write ", impl_->aside, "; is the disk full?", reason());
  impl_->columns.clear();
  impl_->file.reset();
  std::filesystem::rename(impl_->aside, impl_->path);
}

}  // namespace xylem

#else

namespace xylem {
struct Hdf5Writer::Impl {};
Hdf5Writer::Hdf5Writer(const std::string& path) {
  XY_FAIL("cannot write ", path, ": this build of Xylem has no HDF5; install libhdf5-dev and build again");
}
Hdf5Writer::~Hdf5Writer() = default;
void Hdf5Writer::create(const std::string&, const Shape&, DType, const Shape&, int) {}
void Hdf5Writer::append(const std::string&, const void*, int64_t) {}
void Hdf5Writer::set_strings(const std::string&, const std::string&, const std::vector<std::string>&) {}
void Hdf5Writer::finish() {}
}  // namespace xylem

#endif
