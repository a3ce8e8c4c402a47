// SPDX-License-Identifier: Apache-2.0
// Tensors of a training state, or the parts of them that one process holds.
#pragma once
#include <string>
#include <vector>

#include "models/nn/module.h"

namespace xylem {

// A range of a tensor's elements in row-major order: the whole, or what this rank holds of it.
struct Piece {
  std::string section;  // "model", "optimizer" or "ema", of a further network "name.model", ...
  std::string name;     // unique within the section and the same for any number of ranks
  Shape shape;          // of the whole tensor
  int64_t begin = 0;    // first element of the range
  Tensor data;          // its elements: of that shape if it is the whole, else contiguous
  bool shared = true;   // every rank holds the same; otherwise no two ranks hold the same element

  int64_t count() const { return data.numel(); }
  bool whole() const { return begin == 0 && count() == shape.numel(); }
};

// Tensors that every rank holds whole.
std::vector<Piece> whole_pieces(const std::string& section, const std::vector<NamedTensor>& tensors);

// What rank `rank` of `size` saves: the pieces it alone holds, and its part of the shared ones, which are cut into
// ranges of equal bytes so that all ranks write at once.
std::vector<Piece> share_of(const std::vector<Piece>& pieces, int rank, int size);

}  // namespace xylem
