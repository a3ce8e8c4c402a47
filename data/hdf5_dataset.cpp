// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "data/dataset.h"
#include "data/hdf5.h"

namespace xylem {
namespace {

constexpr int64_t kCacheBytes = int64_t(512) << 20;  // unpacked chunks of one dataset

// Inputs and labels or targets; labels are held in memory.
class Hdf5Dataset final : public Dataset {
 public:
  Hdf5Dataset(Hdf5Array input, std::vector<int64_t> labels, RecordSpec spec, bool channels_last)
      : input_(std::move(input)), labels_(std::move(labels)), spec_(std::move(spec)), channels_last_(channels_last) {
    spec_.input_dtype = *input_.info().dtype;
    describe_storage();
  }
  Hdf5Dataset(Hdf5Array input, Hdf5Array target, RecordSpec spec, bool channels_last)
      : input_(std::move(input)), target_(std::move(target)), spec_(std::move(spec)), channels_last_(channels_last) {
    spec_.input_dtype = *input_.info().dtype;
    spec_.target_dtype = *target_->info().dtype;
    describe_storage();
  }

  int64_t size() const override { return input_.rows(); }
  const RecordSpec& spec() const override { return spec_; }
  void read(int64_t id, void* input, void* target) const override {
    if (channels_last_) {
      std::vector<uint8_t> row(input_.row_bytes());
      input_.read_row(id, row.data());
      if (spec_.input_dtype == u8)
        channels_first(row.data(), static_cast<uint8_t*>(input));
      else
        channels_first(reinterpret_cast<const float*>(row.data()), static_cast<float*>(input));
    } else {
      input_.read_row(id, input);
    }
    if (target_)
      target_->read_row(id, target);
    else
      *static_cast<int64_t*>(target) = labels_[size_t(id)];
  }

 private:
  template <class T>
  void channels_first(const T* in, T* out) const {
    int64_t channels = spec_.input[0], pixels = spec_.input[1] * spec_.input[2];
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t p = 0; p < pixels; ++p) out[c * pixels + p] = in[p * channels + c];
  }
  // A window fills half of the cache, so that the next one can come in while this one is in use.
  void describe_storage() {
    const Hdf5Info& info = input_.info();
    if (info.filters.empty() || info.chunk.rank() == 0 || input_.cached_rows() >= info.shape[0]) return;
    spec_.block = info.chunk[0];
    spec_.window = std::max(spec_.block, input_.cached_rows() / 2);
  }

  Hdf5Array input_;
  std::optional<Hdf5Array> target_ = {};
  std::vector<int64_t> labels_ = {};
  RecordSpec spec_;
  bool channels_last_ = false;
};

Shape row_shape(const Hdf5Array& array) {
  Shape shape = array.info().shape;
  shape.erase(0);
  return shape;
}

std::vector<int64_t> read_labels(const Hdf5File& file, const std::string& name, int64_t rows, int64_t classes) {
  std::vector<int64_t> labels = file.integers(name);
  XY_CHECK(int64_t(labels.size()) == rows, file.path(), ": '", name, "' holds ", labels.size(), " labels for ", rows,
           " samples");
  for (size_t i = 0; i < labels.size(); ++i)
    XY_CHECK(labels[i] >= 0 && (classes == 0 || labels[i] < classes), file.path(), ": label ", labels[i], " of sample ",
             i, " is outside [0, ", classes == 0 ? "..." : std::to_string(classes), ")");
  return labels;
}

struct Images {
  Hdf5Array array;
  Shape shape;  // [C, H, W]
  bool channels_last = false;
};

Images open_images(const Hdf5File& file) {
  const std::string& path = file.path();
  Hdf5Array images = file.array("images", kCacheBytes);
  const Hdf5Info& info = images.info();
  XY_CHECK((*info.dtype == u8 || *info.dtype == f32) && (info.shape.rank() == 3 || info.shape.rank() == 4), path,
           ": 'images' should be u8 or f32, [N, C, H, W], [N, H, W, C] or [N, H, W], but is ", *info.dtype, " ",
           info.shape);
  Shape shape = row_shape(images);
  bool channels_last = false;
  if (shape.rank() == 2) {
    shape.insert(0, 1);
  } else {
    std::vector<std::string> layout = file.strings("images", "layout");
    XY_CHECK(layout.empty() || layout[0] == "NCHW" || layout[0] == "NHWC", path,
             ": attribute 'layout' of 'images' is '", layout[0], "'; NCHW and NHWC are known");
    channels_last = layout.empty() ? shape[0] > 4 && shape[2] <= 4 : layout[0] == "NHWC";
    if (channels_last) shape = {shape[2], shape[0], shape[1]};
  }
  return {images, shape, channels_last};
}

}  // namespace

const char* name_of(RecordSpec::Task task) {
  switch (task) {
    case RecordSpec::Task::classification:
      return "classification";
    case RecordSpec::Task::segmentation:
      return "segmentation";
    case RecordSpec::Task::regression:
      return "regression";
    case RecordSpec::Task::language_modelling:
      return "language modelling";
  }
  return "?";
}

std::shared_ptr<Dataset> hdf5_images(const std::string& path) {
  Hdf5File file(path);
  auto [images, shape, channels_last] = open_images(file);
  RecordSpec spec{.input = shape, .class_names = file.strings("labels", "class_names")};
  std::vector<int64_t> labels = read_labels(file, "labels", images.rows(), int64_t(spec.class_names.size()));
  spec.classes = int64_t(spec.class_names.size());
  if (spec.classes == 0 && !labels.empty()) spec.classes = *std::max_element(labels.begin(), labels.end()) + 1;
  return std::make_shared<Hdf5Dataset>(std::move(images), std::move(labels), std::move(spec), channels_last);
}

std::shared_ptr<Dataset> hdf5_masks(const std::string& path) {
  Hdf5File file(path);
  auto [images, shape, channels_last] = open_images(file);
  Hdf5Array masks = file.array("masks", kCacheBytes);
  const Shape expected{images.rows(), shape[1], shape[2]};
  XY_CHECK(*masks.info().dtype == u8 && masks.info().shape == expected, path, ": 'masks' should be u8 ", expected,
           ", a class for every pixel of 'images', but is ", *masks.info().dtype, " ", masks.info().shape);
  RecordSpec spec{.task = RecordSpec::Task::segmentation,
                  .input = shape,
                  .target = {shape[1], shape[2]},
                  .class_names = file.strings("masks", "class_names")};
  spec.classes = int64_t(spec.class_names.size());
  XY_CHECK(spec.classes > 0 && spec.classes <= kUnlabelled, path, ": the attribute 'class_names' of 'masks' has ",
           spec.classes, " names; 1 to ", int(kUnlabelled), " classes are possible");
  return std::make_shared<Hdf5Dataset>(std::move(images), std::move(masks), std::move(spec), channels_last);
}

std::shared_ptr<Dataset> hdf5_arrays(const std::string& path, const std::string& input, const std::string& target,
                                     int64_t classes) {
  Hdf5File file(path);
  Hdf5Array inputs = file.array(input, kCacheBytes);
  RecordSpec spec{.input = row_shape(inputs)};
  if (classes > 0) {
    spec.classes = classes;
    return std::make_shared<Hdf5Dataset>(inputs, read_labels(file, target, inputs.rows(), classes), std::move(spec),
                                         false);
  }
  Hdf5Array targets = file.array(target, kCacheBytes);
  XY_CHECK(targets.rows() == inputs.rows(), path, ": '", input, "' has ", inputs.rows(), " rows but '", target,
           "' has ", targets.rows());
  spec.task = RecordSpec::Task::regression;
  spec.target = row_shape(targets);
  return std::make_shared<Hdf5Dataset>(inputs, targets, std::move(spec), false);
}

}  // namespace xylem
