// SPDX-License-Identifier: Apache-2.0
#include "distributed/parallel/shard.h"

#include <algorithm>

namespace xylem {
namespace {

constexpr int64_t kAlign = 64;  // elements: vector kernels and DMA want aligned slots and parts

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

void cut_buckets(std::vector<FlatGroup>& groups, int world, int64_t first_bytes, int64_t bucket_bytes) {
  for (FlatGroup& g : groups) {
    g.buckets.clear();
    int64_t at = 0;
    bool first = std::any_of(g.slots.begin(), g.slots.end(), [](const FlatSlot& s) { return s.order == 0; });
    for (size_t i = 0; i < g.slots.size(); ++i) {
      if (g.buckets.empty() || g.buckets.back().end > 0)
        g.buckets.push_back({.begin = at, .end = 0, .first_slot = i, .end_slot = i});
      FlatBucket& b = g.buckets.back();
      g.slots[i].offset = at;
      at += round_up(g.slots[i].param.numel(), kAlign);
      b.end_slot = i + 1;
      int64_t limit = first && g.buckets.size() == 1 ? first_bytes : bucket_bytes;
      if ((at - b.begin) * int64_t(size_of(g.dtype)) >= limit || i + 1 == g.slots.size())
        b.end = at = b.begin + round_up(at - b.begin, kAlign * world);
    }
    g.numel = at;
  }
}

std::string ParamOptions::str() const {
  std::string text;
  auto add = [&](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  if (lr != 1) add(detail::concat("lr * ", lr));
  for (const auto& [name, value] : {std::pair("weight_decay", weight_decay), {"beta1", beta1}, {"beta2", beta2}})
    if (value) add(detail::concat(name, " ", *value));
  if (!rule.empty()) add("by " + rule);
  return text;
}

std::vector<FlatPart> stretches(const FlatGroup& group, const FlatBucket& bucket, const FlatPart& part,
                                const SlotFilter& wanted) {
  std::vector<FlatPart> all;
  for (size_t i = bucket.first_slot; i < bucket.end_slot; ++i) {
    int64_t next = i + 1 < bucket.end_slot ? group.slots[i + 1].offset : bucket.end;
    int64_t begin = std::max(part.begin, group.slots[i].offset), end = std::min(part.end, next);
    if (begin >= end || !wanted(group.slots[i])) continue;
    if (!all.empty() && all.back().end == begin)
      all.back().end = end;
    else
      all.push_back({begin, end, part.compact + begin - part.begin});
  }
  return all;
}

std::vector<FlatRange> owned_ranges(const std::vector<FlatGroup>& groups, int rank, int world, int zero,
                                    const SlotFilter& wanted) {
  std::vector<FlatRange> all;
  for (size_t g = 0; g < groups.size(); ++g)
    for (const FlatBucket& b : groups[g].buckets) {
      FlatPart part = zero == 0 ? FlatPart{b.begin, b.end, b.begin} : part_of(b, rank, world);
      for (const FlatPart& p : stretches(groups[g], b, part, wanted)) {
        FlatRange next{g,         p.size(), zero == 3 ? p.compact : p.begin, zero >= 2 ? p.compact : p.begin,
                       p.compact, p.begin};
        if (!all.empty()) {
          FlatRange& last = all.back();
          if (last.group == g && last.params + last.size == next.params && last.grads + last.size == next.grads &&
              last.state + last.size == next.state) {
            last.size += next.size;
            continue;
          }
        }
        all.push_back(next);
      }
    }
  return all;
}

void list_shards(const FlatGroup& group, const Tensor& buffer, const std::string& prefix, int rank, int world,
                 std::vector<TensorShard>& out) {
  bool whole = buffer.numel() == group.numel;
  XY_CHECK(whole || buffer.numel() * world == group.numel, "a buffer of ", buffer.numel(),
           " elements does not belong to a group of ", group.numel, " on ", world, " ranks");
  for (const FlatBucket& b : group.buckets)
    for (int owner = 0; owner < world; ++owner) {
      if (!whole && owner != rank) continue;
      FlatPart part = part_of(b, owner, world);
      int64_t shift = whole ? 0 : part.compact - part.begin;
      for (size_t i = b.first_slot; i < b.end_slot; ++i) {
        const FlatSlot& s = group.slots[i];
        int64_t begin = std::max(part.begin, s.offset), end = std::min(part.end, s.offset + s.param.numel());
        if (begin < end)
          out.push_back({.name = prefix + s.name,
                         .shape = s.param.shape(),
                         .begin = begin - s.offset,
                         .part = buffer.narrow(0, begin + shift, end - begin),
                         .owner = owner,
                         .everywhere = whole});
      }
    }
}

}  // namespace xylem
