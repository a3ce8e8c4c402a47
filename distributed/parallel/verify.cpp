// SPDX-License-Identifier: Apache-2.0
#include "distributed/parallel/verify.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>
#include <vector>

#include "core/util/hash.h"
#include "core/util/parallel.h"
#include "distributed/record/recorder.h"
#include "distributed/watchdog/verdict.h"
#include "distributed/world/world.h"

namespace xylem {
namespace {

// Blocks are hashed side by side; any bit that changes changes the result, since each step is one-to-one in the word.
uint64_t hash_bytes(const char* data, int64_t bytes) {
  constexpr int64_t kBlock = 1 << 20;
  int64_t blocks = (bytes + kBlock - 1) / kBlock;
  std::vector<uint64_t> sums(static_cast<size_t>(blocks));
  parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const char* at = data + b * kBlock;
      int64_t n = std::min(kBlock, bytes - b * kBlock);
      uint64_t hash = uint64_t(n), word = 0;
      for (; n >= 8; n -= 8, at += 8) std::memcpy(&word, at, 8), hash = mix(hash, word);
      if (n > 0) word = 0, std::memcpy(&word, at, size_t(n)), hash = mix(hash, word);
      sums[size_t(b)] = hash;
    }
  });
  uint64_t hash = uint64_t(bytes);
  for (uint64_t s : sums) hash = mix(hash, s);
  return hash;
}

struct Parties {
  std::map<std::string, std::vector<int>> ranks;  // by what they say
  explicit Parties(const std::vector<std::string>& all) {
    for (size_t r = 0; r < all.size(); ++r) ranks[all[r]].push_back(int(r));
  }
  bool agree() const { return ranks.size() < 2; }
  // The value of more than half of the ranks, or null.
  const std::string* majority() const {
    size_t total = 0;
    for (const auto& [value, who] : ranks) total += who.size();
    for (const auto& [value, who] : ranks)
      if (2 * who.size() > total) return &value;
    return nullptr;
  }
};

std::vector<int> in_world(const std::vector<int>& ranks, const Group& group) {
  std::vector<int> list;
  for (int r : ranks) list.push_back(group.world_ranks()[size_t(r)]);
  return list;
}

std::string who_differs(const std::string& what, const Parties& parties, const Group& group,
                        const std::vector<std::string>& hosts) {
  std::string text = what + " of the replicas differ: ";
  const std::string* right = parties.majority();
  bool first = true;
  for (const auto& [value, ranks] : parties.ranks) {
    if (right && value == *right) continue;
    text += (first ? "" : ", ") + watchdog::name_ranks(in_world(ranks, group));
    if (ranks.size() == 1) text += " on " + hosts[size_t(ranks[0])];
    text += (ranks.size() == 1 ? " has " : " have ") + value;
    first = false;
  }
  if (right)
    text += ", the other " + std::to_string(parties.ranks.at(*right).size()) + " ranks have " + *right +
            ". Suspect the memory of the GPU or host that is named";
  else
    text += ". There is no majority to tell which are right";
  return text;
}

}  // namespace

uint64_t hash_of(const Tensor& t) {
  Tensor host = t.detach().contiguous().to(Device::cpu());
  uint64_t hash = mix(uint64_t(t.dtype()), uint64_t(t.rank()));
  for (int64_t n : t.shape()) hash = mix(hash, uint64_t(n));
  return mix(hash, hash_bytes(static_cast<const char*>(host.raw()), host.numel() * int64_t(size_of(host.dtype()))));
}

std::optional<std::string> verify_replicas(const Tensors& tensors, const Group& group,
                                           const std::vector<std::string>& names) {
  if (group.size() < 2) return {};
  recorder::Activity activity("the comparison of replicas");
  recorder::Signature calls = recorder::signature(group.name());
  std::vector<uint64_t> hashes;
  uint64_t total = tensors.size();
  for (const Tensor& t : tensors) hashes.push_back(hash_of(t)), total = mix(total, hashes.back());

  // One exchange where all is well.
  std::vector<std::string> said =
      group.gather_strings(hex(total) + " " + hex(calls.hash) + " " + std::to_string(calls.count));
  if (Parties(said).agree()) return {};
  std::vector<std::string> hosts = group.gather_strings(world().host), own, collectives;
  for (const std::string& s : said) {
    own.push_back(s.substr(0, 16));
    collectives.push_back(s.substr(17));
  }
  Parties values(own);
  if (values.agree())
    return who_differs("the collectives (hash and number)", Parties(collectives), group, hosts) +
           "; all ranks of a group must call the same collectives with the same sizes";
  std::string list;
  for (uint64_t h : hashes) list += hex(h);
  std::vector<std::string> lists = group.gather_strings(list);
  size_t different = 0, first = tensors.size();
  for (size_t t = tensors.size(); t-- > 0;)
    if (std::any_of(lists.begin(), lists.end(), [&](const std::string& l) {
          return l.size() != lists[0].size() || l.compare(t * 16, 16, lists[0], t * 16, 16) != 0;
        }))
      first = t, ++different;
  std::string text = who_differs("the parameters", values, group, hosts) + "; " + std::to_string(different) + " of " +
                     std::to_string(tensors.size()) + " tensors differ";
  if (first < tensors.size())
    text += ", the first is " + (first < names.size() ? names[first] : "number " + std::to_string(first));
  return text;
}

}  // namespace xylem
