// SPDX-License-Identifier: Apache-2.0
// The safetensors format (https://github.com/huggingface/safetensors): an 8-byte header length, a JSON header with a
// dtype, a shape and a byte range for each tensor, then the bytes.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "models/nn/module.h"

namespace xylem {

using Metadata = std::map<std::string, std::string>;

// The tensors of a file, ordered as they lie in it. They view the memory-mapped file, so nothing is read until it is
// used; writing to one does not change the file. Throws naming the file when it is missing, truncated or malformed. One
// of a type that Xylem does not have (I16, F8_E4M3, ...) throws when its values are read, and stands as u8 until then.
std::vector<NamedTensor> load_safetensors(const std::string& path, Metadata* metadata = nullptr);

// What stands before the data of a file: its length and the JSON header. The tensors follow in this order without gaps;
// wide types first keeps them aligned.
struct SafetensorsEntry {
  std::string name;
  DType dtype = f32;
  Shape shape;
};
std::string safetensors_header(const std::vector<SafetensorsEntry>& entries, const Metadata& metadata = {});

// Writes aside and renames, so that a file by that name is always whole. Tensors may be on any device and have any
// strides.
void save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata = {});

// Tensors of a checkpoint as the Hugging Face hub lays them out: a .safetensors file, an index of shards
// (.safetensors.index.json), or a folder that holds model.safetensors or its index.
std::vector<NamedTensor> load_checkpoint_tensors(const std::string& path, Metadata* metadata = nullptr);

}  // namespace xylem
