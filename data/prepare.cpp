// SPDX-License-Identifier: Apache-2.0
#include "data/prepare.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <utility>

#include "core/util/parallel.h"
#include "data/hdf5.h"
#include "data/idx.h"
#include "data/image.h"
#include "data/sampler.h"
#include "data/tokens.h"

namespace xylem {
namespace fs = std::filesystem;
namespace {

void make_folder(const fs::path& folder) {
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  XY_CHECK(!error, "cannot make the folder ", folder.string(), ": ", error.message());
}

// About 256 KiB, but at least one row.
int64_t rows_per_chunk(int64_t row_bytes) { return std::max<int64_t>(1, (int64_t(256) << 10) / row_bytes); }

class ImageWriter {
 public:
  ImageWriter(const std::string& path, const Shape& row, int deflate, const std::vector<std::string>& classes)
      : file_(path) {
    file_.create("images", row, u8, {rows_per_chunk(row.numel())}, deflate);
    file_.set_strings("images", "layout", {"NCHW"});
    file_.create("labels", {}, i64, {4096});
    file_.set_strings("labels", "class_names", classes);
  }
  void append(const uint8_t* images, const std::vector<int64_t>& labels) {
    file_.append("images", images, int64_t(labels.size()));
    file_.append("labels", labels.data(), int64_t(labels.size()));
  }
  void finish() { file_.finish(); }

 private:
  Hdf5Writer file_;
};

Tensor read_idx_of(const fs::path& folder, const std::string& name) {
  fs::path packed = folder / (name + ".gz"), plain = folder / name;
  XY_CHECK(fs::exists(packed) || fs::exists(plain), folder.string(), " has neither ", name, ".gz nor ", name);
  return read_idx((fs::exists(packed) ? packed : plain).string());
}

}  // namespace

void prepare_mnist(const std::string& from, const std::string& out, const std::vector<std::string>& class_names,
                   const Progress& progress) {
  XY_CHECK(fs::is_directory(from), "there is no folder ", from);
  make_folder(out);
  for (auto [source, name] : {std::pair("train", "train.h5"), std::pair("t10k", "test.h5")}) {
    Tensor images = read_idx_of(from, std::string(source) + "-images-idx3-ubyte");
    Tensor labels = read_idx_of(from, std::string(source) + "-labels-idx1-ubyte");
    XY_CHECK(images.rank() == 3 && labels.rank() == 1 && images.size(0) == labels.size(0), from, ": the images ",
             images.shape(), " and labels ", labels.shape(), " of '", source, "' do not belong together");
    std::vector<int64_t> values = labels.to_vector<int64_t>();
    for (size_t i = 0; i < values.size(); ++i)
      XY_CHECK(values[i] < int64_t(class_names.size()), from, ": label ", values[i], " of sample ", i, " of '", source,
               "' is outside [0, ", class_names.size(), ")");
    ImageWriter writer((fs::path(out) / name).string(), {1, images.size(1), images.size(2)}, 0, class_names);
    writer.append(images.data<uint8_t>(), values);
    writer.finish();
    if (progress) progress(name, images.size(0), images.size(0));
  }
}

PreparedText prepare_text(const std::vector<std::string>& files, const std::string& out, double val_fraction) {
  XY_CHECK(val_fraction >= 0 && val_fraction < 1, "the validation fraction is ", val_fraction,
           "; it should be in [0, 1)");
  std::string text;
  for (const std::string& name : files) {
    std::ifstream file;
    if (name != "-") {
      XY_CHECK(!fs::is_directory(name), name, " is a folder; name text files");
      file.open(name, std::ios::binary);
      XY_CHECK(file, "cannot open ", name, ": ", std::strerror(errno));
    }
    std::istream& in = name == "-" ? std::cin : file;
    size_t before = text.size();
    text.append(std::istreambuf_iterator<char>(in), {});
    XY_CHECK(text.size() > before, name == "-" ? "standard input" : name, " is empty");
  }
  size_t cut = text.size() - size_t(double(text.size()) * val_fraction);
  if (cut < text.size()) {
    size_t line = text.find('\n', cut - 1);
    if (line != text.npos && line + 1 < text.size()) cut = line + 1;
  }
  make_folder(out);
  std::string_view all = text;
  write_byte_tokens((fs::path(out) / "train.tok").string(), all.substr(0, cut));
  if (cut < text.size()) write_byte_tokens((fs::path(out) / "val.tok").string(), all.substr(cut));
  return {int64_t(cut), int64_t(text.size() - cut)};
}

namespace {

struct Labelled {
  fs::path path;
  int64_t label;
};

bool is_image(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

std::vector<Labelled> find_images(const std::string& folder, std::vector<std::string>& classes) {
  XY_CHECK(fs::is_directory(folder), "there is no folder ", folder);
  std::map<std::string, std::vector<fs::path>> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.is_directory()) continue;
    std::vector<fs::path> images;
    for (const auto& file : fs::recursive_directory_iterator(entry.path()))
      if (file.is_regular_file() && is_image(file.path())) images.push_back(file.path());
    std::sort(images.begin(), images.end());
    if (!images.empty()) found[entry.path().filename().string()] = std::move(images);
  }
  XY_CHECK(!found.empty(), folder, " has no folders of images; expected ", folder, "/<class>/<name>.jpg or .png");
  std::vector<Labelled> all;
  for (auto& [name, images] : found) {
    for (auto& path : images) all.push_back({std::move(path), int64_t(classes.size())});
    classes.push_back(name);
  }
  return all;
}

void channels_first(const Image& image, uint8_t* out) {
  int64_t pixels = image.height * image.width;
  for (int64_t c = 0; c < image.channels; ++c)
    for (int64_t p = 0; p < pixels; ++p) out[c * pixels + p] = image.pixels[size_t(p * image.channels + c)];
}

}  // namespace

PreparedImages prepare_images(const std::string& folder, const std::string& out, const ImageFolderOptions& options,
                              const Progress& progress) {
  XY_CHECK(options.size > 0, "the image size is ", options.size, "; it should be positive");
  PreparedImages result;
  std::vector<Labelled> files = find_images(folder, result.classes);
  make_folder(fs::path(out).parent_path());
  Shape row{options.channels, options.size, options.size};
  ImageWriter writer(out, row, options.deflate, result.classes);
  constexpr int64_t kAtOnce = 256;
  int64_t total = int64_t(files.size()), row_bytes = row.numel();
  std::vector<uint8_t> pixels(size_t(kAtOnce * row_bytes));
  for (int64_t begin = 0; begin < total; begin += kAtOnce) {
    int64_t count = std::min(kAtOnce, total - begin);
    std::vector<std::string> errors(static_cast<size_t>(count));
    auto file_at = [&](int64_t i) -> const Labelled& { return files[size_t(permute_index(begin + i, total, 0))]; };
    parallel_for(count, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        try {
          Image image = read_image(file_at(i).path.string(), options.channels, options.size);
          channels_first(resize_image(center_square(image), options.size, options.size),
                         &pixels[size_t(i * row_bytes)]);
        } catch (const std::exception& e) {
          auto* ours = dynamic_cast<const Error*>(&e);
          errors[size_t(i)] = ours ? ours->message() : e.what();
        }
      }
    });
    std::vector<int64_t> labels;
    for (int64_t i = 0; i < count; ++i) {
      const std::string& error = errors[size_t(i)];
      if (!error.empty()) {
        XY_CHECK(options.skip_bad, error, "; --skip-bad leaves such images out");
        result.skipped.push_back(error);
        continue;
      }
      std::memmove(&pixels[labels.size() * size_t(row_bytes)], &pixels[size_t(i * row_bytes)], size_t(row_bytes));
      labels.push_back(file_at(i).label);
    }
    if (!labels.empty()) writer.append(pixels.data(), labels);
    result.images += int64_t(labels.size());
    if (progress) progress("images", begin + count, total);
  }
  XY_CHECK(result.images > 0, "no image in ", folder, " could be read; the first: ", result.skipped[0]);
  writer.finish();
  return result;
}

std::string describe_data(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  XY_CHECK(in && !fs::is_directory(path), "cannot open ", path, ": ",
           fs::is_directory(path) ? "it is a folder" : std::strerror(errno));
  char magic[8] = {};
  in.read(magic, sizeof magic);
  auto starts = [&](std::string_view text) { return std::memcmp(magic, text.data(), text.size()) == 0; };
  std::ostringstream text;
  if (starts("XYTOKENS")) {
    TokenFile tokens(path);
    text << "token file: " << tokens.size() << " tokens of " << tokens.bytes_per_token() << " byte"
         << (tokens.bytes_per_token() > 1 ? "s" : "") << ", vocabulary " << tokens.vocab();
    std::vector<int32_t> head(size_t(std::min<int64_t>(tokens.size(), 64)));
    tokens.read(0, int64_t(head.size()), head.data());
    text << "\nstarts with: ";
    for (int32_t t : head) {
      if (tokens.vocab() > 256)
        text << t << ' ';
      else
        text << (t < 128 && std::isprint(t) ? char(t) : ' ');
    }
  } else if (starts("\x89HDF\r\n\x1a\n")) {
    Hdf5File file(path);
    text << "HDF5 file";
    for (const Hdf5Info& d : file.datasets()) {
      text << "\n  " << d.name << ": " << (d.dtype ? name_of(*d.dtype) : "not numeric") << ' ' << d.shape;
      if (d.chunk.rank() > 0) text << ", chunks " << d.chunk;
      if (!d.filters.empty()) text << ", " << d.filters;
      std::vector<std::string> classes = file.strings(d.name, "class_names");
      if (!classes.empty()) text << ", " << classes.size() << " classes:";
      for (size_t i = 0; i < std::min<size_t>(classes.size(), 12); ++i) text << (i ? ", " : " ") << classes[i];
      if (classes.size() > 12) text << ", ...";
    }
  } else if (starts("\x89PNG") || starts("\xff\xd8")) {
    Image image = read_image(path);
    text << (starts("\x89PNG") ? "PNG" : "JPEG") << " image: " << image.width << " x " << image.height;
  } else if (starts(std::string_view("\0\0\x08", 3)) || starts("\x1f\x8b")) {
    text << "IDX file: u8 " << read_idx(path).shape();
  } else {
    XY_FAIL(path,
            " is no token file, HDF5 file, IDX file, JPEG or PNG image; `xylem data text` makes token files of text");
  }
  return text.str();
}

}  // namespace xylem
