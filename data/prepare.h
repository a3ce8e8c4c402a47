// SPDX-License-Identifier: Apache-2.0
// What `xylem data` does: makes datasets of files as they are found. Everything is written aside and renamed.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace xylem {

using Progress = std::function<void(const std::string& what, int64_t done, int64_t total)>;

// <from>/{train,t10k}-{images-idx3,labels-idx1}-ubyte, gzipped (.gz) or not -> <out>/train.h5 and <out>/test.h5.
void prepare_mnist(const std::string& from, const std::string& out, const std::vector<std::string>& class_names,
                   const Progress& progress = {});

// The bytes of all files, one after the other, -> <out>/train.tok and <out>/val.tok, which gets the last part of about
// `val_fraction` from a line's start on (none if it is 0). "-" is standard input.
struct PreparedText {
  int64_t train_tokens = 0, val_tokens = 0;
};
PreparedText prepare_text(const std::vector<std::string>& files, const std::string& out, double val_fraction = 0.05);

// <folder>/<class>/**/*.{jpg,jpeg,png} -> an HDF5 file for hdf5_images(): the central square of each image, resized.
// Classes are numbered by name; images are stored in a random order that is always the same.
struct ImageFolderOptions {
  int64_t size = 224, channels = 3;
  int deflate = 0;        // 1 to 9 compresses: smaller, slower to read; photographs hardly shrink
  bool skip_bad = false;  // leave damaged images out instead of stopping at the first
};
struct PreparedImages {
  int64_t images = 0;
  std::vector<std::string> classes;
  std::vector<std::string> skipped;  // why, one sentence per image
};
PreparedImages prepare_images(const std::string& folder, const std::string& out, const ImageFolderOptions& options = {},
                              const Progress& progress = {});

// A segmentation data set that is made up, for hdf5_masks(): <out>/train.h5 and <out>/test.h5 of RGB pictures with
// discs and rectangles of any colour on a dark ground, and the class of every pixel. Equal options give equal files.
struct ShapesOptions {
  int64_t train = 2000, test = 200;  // pictures
  int64_t size = 64;                 // height and width
  uint64_t seed = 0;
};
void prepare_shapes(const std::string& out, const ShapesOptions& options = {});

// What a token file, HDF5 file, IDX file or image holds, in a few lines.
std::string describe_data(const std::string& path);

}  // namespace xylem
