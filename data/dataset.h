// SPDX-License-Identifier: Apache-2.0
// A dataset maps a sample id to a record. Reading is thread-safe and repeatable: the same id gives the same record.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace xylem {

// What one record holds. Image records carry u8 or f32 pixels [C, H, W] and one i64 label; token records carry
// sequence + 1 i32 tokens, from which input and target are cut one apart.
struct RecordSpec {
  enum class Task { classification, language_modelling } task = Task::classification;
  Shape input;             // of one sample
  DType input_dtype = u8;  // as stored
  int64_t classes = 0;     // labels are in [0, classes); the vocabulary for token records
  std::vector<std::string> class_names = {};
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual const RecordSpec& spec() const = 0;
  // Writes record `id` to `input` (spec().input elements of spec().input_dtype; for tokens input holds sequence + 1
  // values) and its label to `label` (untouched for tokens).
  virtual void read(int64_t id, void* input, int64_t* label) const = 0;
};

// A dataset in memory: inputs [N, ...] and i64 labels [N]. Throws if a label is outside [0, classes).
std::shared_ptr<Dataset> array_dataset(const Tensor& inputs, const Tensor& labels, int64_t classes);

// Images of an HDF5 file written by `xylem data`: `images` u8 [N, C, H, W], `labels` integer [N].
std::shared_ptr<Dataset> hdf5_images(const std::string& path);

// A memory-mapped token file (see data/tokens.h), read in windows of sequence + 1 tokens that start every `sequence`.
std::shared_ptr<Dataset> token_dataset(const std::string& path, int64_t sequence);

}  // namespace xylem
