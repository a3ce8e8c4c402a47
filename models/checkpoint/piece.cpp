// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint/piece.h"

#include <algorithm>

namespace xylem {

std::vector<Piece> whole_pieces(const std::string& section, const std::vector<NamedTensor>& tensors) {
  std::vector<Piece> pieces;
  for (const NamedTensor& t : tensors)
    pieces.push_back({.section = section, .name = t.name, .shape = t.tensor.shape(), .data = t.tensor});
  return pieces;
}

std::vector<Piece> share_of(const std::vector<Piece>& pieces, int rank, int size) {
  if (size == 1) return pieces;
  int64_t total = 0;
  for (const Piece& p : pieces)
    if (p.shared) total += int64_t(p.data.nbytes());
  int64_t first = total / size * rank + total % size * rank / size,
          last = total / size * (rank + 1) + total % size * (rank + 1) / size;

  std::vector<Piece> mine;
  int64_t at = 0;  // bytes of shared pieces so far
  for (const Piece& p : pieces) {
    if (!p.shared) {
      mine.push_back(p);
      continue;
    }
    int64_t bytes = int64_t(size_of(p.data.dtype())), count = p.count();
    // Neighbours round the cut between them alike.
    auto element = [&](int64_t byte) { return std::clamp<int64_t>((byte - at + bytes - 1) / bytes, 0, count); };
    int64_t begin = element(first), end = element(last);
    at += count * bytes;
    if (begin == end && (count > 0 || rank > 0)) continue;
    Piece part = p;
    part.begin += begin;
    if (end - begin < count) part.data = p.data.detach().reshape({-1}).narrow(0, begin, end - begin);
    mine.push_back(part);
  }
  return mine;
}

}  // namespace xylem
