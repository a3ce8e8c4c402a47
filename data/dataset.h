// SPDX-License-Identifier: Apache-2.0
// A dataset maps a sample id to a record. Reading is thread-safe and repeatable: the same id gives the same record.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace xylem {

// What one record holds. Image records carry u8 or f32 pixels [C, H, W] and one i64 label, or for segmentation a u8
// class for every pixel [H, W]; token records carry sequence + 1 i32 tokens, from which input and target are cut one
// apart, and no target of their own.
struct RecordSpec {
  enum class Task { classification, segmentation, regression, language_modelling } task = Task::classification;
  Shape input = {};        // of one sample
  DType input_dtype = u8;  // as stored
  Shape target = {};       // of one sample; [] for a label
  DType target_dtype = i64;
  int64_t classes = 0;  // labels are in [0, classes); the vocabulary for token records
  std::vector<std::string> class_names = {};
  // How samples lie in storage, for the shuffle: `block` neighbours are read together, and reading is quick while no
  // more than `window` samples are in play. 1 and 0: any order is as good.
  int64_t block = 1, window = 0;
};

const char* name_of(RecordSpec::Task task);  // "language modelling"

// In a segmentation mask: a pixel without a class, which no loss and no metric counts. Batches hold kIgnoredTarget
// there.
inline constexpr uint8_t kUnlabelled = 255;
inline constexpr int32_t kIgnoredTarget = -100;

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual const RecordSpec& spec() const = 0;
  // Writes record `id` to `input` and `target`, in the shapes and dtypes of spec(). Tokens have no target.
  virtual void read(int64_t id, void* input, void* target) const = 0;
};

// A dataset in memory: inputs [N, ...] and labels [N] of any integer type. Throws if a label is outside [0, classes).
std::shared_ptr<Dataset> array_dataset(const Tensor& inputs, const Tensor& labels, int64_t classes);
// The same with targets [N, ...] of any type, for regression.
std::shared_ptr<Dataset> array_dataset(const Tensor& inputs, const Tensor& targets);

// Images of an HDF5 file: `images` u8 or f32, [N, C, H, W] or [N, H, W, C] or [N, H, W], and `labels`, integers [N].
// Which of the two orders it is, the attribute `layout` of `images` says ("NCHW", "NHWC"); without it channels are last
// if only the last dimension can count them (at most 4). `xylem data` writes NCHW, with the attribute `class_names` on
// `labels`; without it labels run to the largest one. Throws if a label is outside.
std::shared_ptr<Dataset> hdf5_images(const std::string& path);
// The same for segmentation: `images` as above, and `masks`, u8 [N, H, W], the class of every pixel or kUnlabelled,
// with the attribute `class_names`. A class outside is an error when the sample is read.
std::shared_ptr<Dataset> hdf5_masks(const std::string& path);
// Two datasets of an HDF5 file with as many rows: inputs, and integer labels [N] (`classes` > 0) or targets [N, ...].
std::shared_ptr<Dataset> hdf5_arrays(const std::string& path, const std::string& input, const std::string& target,
                                     int64_t classes = 0);

// A memory-mapped token file (see data/tokens.h) in windows of sequence + 1 tokens, one every `stride` tokens. The
// default, 0, is `sequence`: every token is a target once. With 1 shuffling draws windows at any offset.
std::shared_ptr<Dataset> token_dataset(const std::string& path, int64_t sequence, int64_t stride = 0);

}  // namespace xylem
