// SPDX-License-Identifier: Apache-2.0
#include "distributed/watchdog/verdict.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>

namespace xylem::watchdog {
namespace {

using recorder::Collective;
using Ranks = std::vector<int>;

bool point_to_point(const Collective& c) { return c.op.starts_with("send ") || c.op.starts_with("receive "); }
bool unfinished(const Collective& c) { return c.finished_ns == 0; }

std::string size_of_entry(const Collective& c) {
  return std::string(name_of(c.dtype)) + " x " + std::to_string(c.count);
}

std::string verb(const Ranks& ranks, const char* one, const char* several) { return ranks.size() == 1 ? one : several; }

// One group of the job: what each of its ranks recorded, by sequence.
struct GroupView {
  std::string name;
  Ranks members;
  std::map<int, std::map<uint64_t, const Collective*>> entries;  // by world rank
  std::map<int, std::vector<const Collective*>> messages;        // sends and receives
  bool mismatched = false;

  uint64_t last(int rank) const {
    auto at = entries.find(rank);
    return at == entries.end() || at->second.empty() ? 0 : at->second.rbegin()->first;
  }
  const Collective* find(int rank, uint64_t sequence) const {
    auto at = entries.find(rank);
    if (at == entries.end()) return nullptr;
    auto entry = at->second.find(sequence);
    return entry == at->second.end() ? nullptr : entry->second;
  }
  std::set<uint64_t> sequences() const {
    std::set<uint64_t> all;
    for (const auto& [rank, list] : entries)
      for (const auto& [sequence, c] : list) all.insert(sequence);
    return all;
  }
};

class Judge {
 public:
  explicit Judge(const std::vector<RankDump>& dumps) : dumps_(dumps) { collect_groups(); }

  std::string judge() {
    bool mismatched = false;
    for (GroupView& g : groups_) mismatched |= g.mismatched = find_mismatch(g);
    bool uneven = !mismatched && find_finished();  // who has not come to what says nothing more then
    find_lost_ranks();
    for (const GroupView& g : groups_) {
      if (uneven || g.mismatched) continue;
      find_absent(g);
      find_unmatched_messages(g);
    }
    if (causes_.empty() && waits_.empty())
      for (const GroupView& g : groups_) find_stuck(g);
    std::string text;
    for (const auto* part : {&causes_, &waits_})
      for (const std::string& line : *part) text += line + "\n";
    if (text.empty()) text = "no rank waits in a collective, and no rank failed\n";
    return text;
  }

 private:
  void collect_groups() {
    std::map<std::pair<std::string, Ranks>, GroupView> found;
    Ranks everyone;
    for (const RankDump& d : dumps_) everyone.push_back(d.rank);
    for (const RankDump& d : dumps_)
      for (const Collective& c : d.collectives) {
        auto known = d.groups.find(c.group);
        const Ranks& members = known == d.groups.end() ? everyone : known->second;
        GroupView& g = found[{c.group, members}];
        g.name = c.group;
        g.members = members;
        if (point_to_point(c))
          g.messages[d.rank].push_back(&c);
        else
          g.entries[d.rank][c.sequence] = &c;
      }
    for (auto& [key, g] : found) groups_.push_back(std::move(g));
  }

  bool answered(int rank) const {
    return rank >= 0 && rank < int(dumps_.size()) && dumps_[size_t(rank)].state == RankState::answered;
  }
  bool healthy(int rank) const { return answered(rank) && dumps_[size_t(rank)].error.empty(); }

  // Ranks that are done while others wait in a collective that needs them.
  bool find_finished() {
    Ranks done, waiting;
    for (const RankDump& d : dumps_)
      if (d.finished && healthy(d.rank)) done.push_back(d.rank);
    const Collective* entry = nullptr;
    for (const RankDump& d : dumps_) {
      const Collective* c = d.finished ? nullptr : waits_elsewhere(d.rank);
      if (!c || !shared_with(done, d, *c)) continue;
      waiting.push_back(d.rank);
      if (!entry) entry = c;
    }
    if (waiting.empty()) return false;
    causes_.push_back(name_ranks(done) + verb(done, " has finished its work", " have finished their work") +
                      ", while " + name_ranks(waiting) + verb(waiting, " waits in ", " wait in ") + describe(*entry) +
                      ": all ranks must take the same number of steps; see that each has as many batches");
    return true;
  }
  static bool shared_with(const Ranks& ranks, const RankDump& d, const Collective& c) {
    auto known = d.groups.find(c.group);
    if (known == d.groups.end()) return !ranks.empty();
    return std::any_of(ranks.begin(), ranks.end(), [&](int r) {
      return std::find(known->second.begin(), known->second.end(), r) != known->second.end();
    });
  }

  // The comparison that ends a run, which the user has not called: against it nothing is a mismatch.
  bool closing(int rank, const Collective& c) const {
    return healthy(rank) && dumps_[size_t(rank)].finished && c.tag == recorder::kAtEnd;
  }

  // The first collective that its ranks did not agree on; what follows it in the group is garbage.
  bool find_mismatch(const GroupView& g) {
    for (uint64_t sequence : g.sequences()) {
      std::map<std::string, Ranks> operations, sizes;
      const Collective* sample = nullptr;
      for (int rank : g.members)
        if (const Collective* c = g.find(rank, sequence); c && !closing(rank, *c)) {
          operations[c->op].push_back(rank);
          if (c->op != "all_to_all") sizes[size_of_entry(*c)].push_back(rank);
          sample = c;
        }
      std::string of = g.name == "world" ? "" : " of " + g.name;
      if (operations.size() > 1) {
        std::string line;
        for (const auto& [op, ranks] : by_size(operations))
          line += (line.empty() ? "" : ", ") + name_ranks(ranks) +
                  (line.empty() ? verb(ranks, " is in ", " are in ") : " in ") + op + " #" + std::to_string(sequence) +
                  of + tag_of(g, ranks[0], sequence);
        causes_.push_back(line + ": all ranks of a group must call the same collectives in the same order");
        return true;
      }
      if (sizes.size() > 1) {
        std::string line = "ranks disagree on the size of " + sample->op + " #" + std::to_string(sequence) + of + ": ",
                    list;
        for (const auto& [size, ranks] : by_size(sizes))
          list += (list.empty() ? "" : " and ") + size + tag_of(g, ranks[0], sequence) + " (" + name_ranks(ranks) + ")";
        causes_.push_back(line + list);
        return true;
      }
    }
    return false;
  }

  static std::vector<std::pair<std::string, Ranks>> by_size(const std::map<std::string, Ranks>& parties) {
    std::vector<std::pair<std::string, Ranks>> list(parties.begin(), parties.end());
    std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
      if (a.second.size() != b.second.size()) return a.second.size() > b.second.size();
      return a.second < b.second;
    });
    return list;
  }
  static std::string tag_of(const GroupView& g, int rank, uint64_t sequence) {
    const Collective* c = g.find(rank, sequence);
    return c && !c->tag.empty() ? " (" + c->tag + ")" : "";
  }

  void find_lost_ranks() {
    std::map<std::string, Ranks> errors, unheard;
    for (const RankDump& d : dumps_) {
      std::string process = "process " + std::to_string(d.pid) + " on " + d.host;
      std::string name = "rank " + std::to_string(d.rank);
      if (d.state == RankState::gone)
        causes_.push_back(name + " is gone: " + process +
                          (d.error.empty()
                               ? " no longer exists (killed, perhaps by the out-of-memory killer: see dmesg)"
                               : " " + d.error));
      else if (d.state == RankState::stopped)
        causes_.push_back(name + " is stopped: " + process + " was halted by SIGSTOP or a debugger (kill -CONT " +
                          std::to_string(d.pid) + " lets it go on)");
      else if (d.state == RankState::silent && !d.unread.empty())
        unheard[d.unread].push_back(d.rank);
      else if (d.state == RankState::silent)
        causes_.push_back(name + " does not answer (" + process +
                          "): its host or network is down, or the folder of these files is not shared by all hosts");
      else if (!d.error.empty())
        errors[d.error].push_back(d.rank);
    }
    for (const auto& [error, ranks] : by_size(errors)) causes_.push_back(name_ranks(ranks) + " threw: " + error);
    for (const auto& [why, ranks] : unheard) waits_.push_back("nothing is known of " + name_ranks(ranks) + ": " + why);
  }

  // The first collective in which some wait for others that have not come.
  void find_absent(const GroupView& g) {
    for (uint64_t sequence : g.sequences()) {
      Ranks waiting, absent;
      const Collective* entry = nullptr;
      for (int rank : g.members) {
        const Collective* c = g.find(rank, sequence);
        if (c && unfinished(*c)) {
          waiting.push_back(rank);
          entry = c;
        } else if (!c && g.last(rank) < sequence) {
          absent.push_back(rank);
        }
      }
      if (waiting.empty() || absent.empty()) continue;
      bool explained = false;
      for (int rank : absent) {
        if (!healthy(rank)) {
          explained = true;
          continue;
        }
        std::string line =
            "rank " + std::to_string(rank) + " never entered " + describe(*entry) + "; it " + whereabouts(rank);
        (waits_elsewhere(rank) ? waits_ : causes_).push_back(line);
      }
      if (explained || causes_.empty())
        waits_.push_back(name_ranks(waiting) + verb(waiting, " waits in ", " wait in ") + describe(*entry) + " for " +
                         name_ranks(absent));
      return;
    }
  }

  const Collective* waits_elsewhere(int rank) const {
    for (const Collective& c : dumps_[size_t(rank)].collectives)
      if (unfinished(c)) return &c;
    return nullptr;
  }
  std::string whereabouts(int rank) const {
    if (const Collective* c = waits_elsewhere(rank)) return "waits in " + describe(*c);
    const std::string& activity = dumps_[size_t(rank)].activity;
    return activity.empty() ? "is busy outside of communication" : "is in " + activity;
  }

  // A send or receive whose peer has not made the matching call, or with another size.
  void find_unmatched_messages(const GroupView& g) {
    for (const auto& [rank, list] : g.messages)
      for (const Collective* c : list) {
        if (!unfinished(*c)) continue;
        int peer = std::atoi(c->op.c_str() + c->op.rfind(' ') + 1);
        auto mine = std::find(g.members.begin(), g.members.end(), rank);
        if (peer < 0 || peer >= int(g.members.size()) || mine == g.members.end()) break;
        int other = g.members[size_t(peer)];
        std::string match =
            (c->op.starts_with("send ") ? "receive from " : "send to ") + std::to_string(mine - g.members.begin());
        const Collective* found = nullptr;
        if (auto theirs = g.messages.find(other); theirs != g.messages.end())
          for (const Collective* m : theirs->second)
            if (m->op == match && m->sequence == c->sequence) found = m;
        std::string name = "rank " + std::to_string(other);
        if (found && size_of_entry(*found) != size_of_entry(*c))
          causes_.push_back("rank " + std::to_string(rank) + " calls " + describe(*c) + " but " + name + " calls " +
                            describe(*found));
        else if (!found && healthy(other))
          (waits_elsewhere(other) ? waits_ : causes_)
              .push_back(name + " never called " + match + " #" + std::to_string(c->sequence) + ", for which rank " +
                         std::to_string(rank) + " waits in " + describe(*c) + "; it " + whereabouts(other));
        else if (!found)
          waits_.push_back("rank " + std::to_string(rank) + " waits in " + describe(*c) + " for " + name);
        break;  // the others queue behind it
      }
  }

  void find_stuck(const GroupView& g) {
    for (uint64_t sequence : g.sequences()) {
      Ranks waiting;
      const Collective* entry = nullptr;
      for (int rank : g.members)
        if (const Collective* c = g.find(rank, sequence); c && unfinished(*c)) {
          waiting.push_back(rank);
          entry = c;
        }
      if (waiting.empty()) continue;
      causes_.push_back("all ranks entered " + describe(*entry) + " alike, but " + name_ranks(waiting) +
                        verb(waiting, " does", " do") +
                        " not leave it: the network, a GPU or a kernel before it is at fault (NCCL_DEBUG=INFO and "
                        "`xylem topo` tell more)");
      return;
    }
  }

  const std::vector<RankDump>& dumps_;
  std::vector<GroupView> groups_;
  std::vector<std::string> causes_, waits_;
};

}  // namespace

std::string name_ranks(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) ++end;
    if (end - i >= 2) {
      parts.push_back(std::to_string(ranks[i]) + "-" + std::to_string(ranks[end]));
      i = end + 1;
    } else {
      parts.push_back(std::to_string(ranks[i++]));
    }
  }
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < parts.size(); ++i) text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  return text;
}

std::string describe(const recorder::Collective& c) {
  std::string about = c.tag;
  if (c.count > 0) about += (about.empty() ? "" : ", ") + size_of_entry(c);  // a barrier has none
  if (c.graph) about += about.empty() ? "in a CUDA graph" : ", in a CUDA graph";
  return c.op + " #" + std::to_string(c.sequence) + (about.empty() ? "" : " (" + about + ")") +
         (c.group == "world" ? "" : " of " + c.group);
}

std::string verdict(const std::vector<RankDump>& dumps) { return Judge(dumps).judge(); }

}  // namespace xylem::watchdog
