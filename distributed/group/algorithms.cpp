// SPDX-License-Identifier: Apache-2.0
// Collectives on the host. Every sum is x0 + x1 + x2 + ... in the order of the ranks, element by element, so that it
// depends on neither the algorithm nor the partition: all_reduce has the bits of reduce_scatter and all_gather.
//   ring       a chain in rank order: partial results travel 0 -> 1 -> .. -> n-1 in small pieces, the results on
//              around the ring. No link carries more than twice the message; for large messages.
//   tree       operands are collected up a binomial tree, reduced at its root, and the result goes down again
//   recursive  operands are exchanged in log2(n) rounds (Bruck); for tiny messages
//   direct     everybody sends to everybody
#include <algorithm>
#include <array>
#include <cstring>

#include "distributed/group/control.h"
#include "distributed/group/reduction.h"
#include "distributed/group/transport.h"

namespace xylem {

void Messages::send(const void* data, int64_t bytes, int to, int tag) {
  for (int64_t at = 0; at < bytes; at += collectives::message_limit)
    list_.push_back(transport_.send(static_cast<const char*>(data) + at,
                                    std::min(bytes - at, collectives::message_limit), to, tag));
}
void Messages::receive(void* data, int64_t bytes, int from, int tag) {
  for (int64_t at = 0; at < bytes; at += collectives::message_limit)
    list_.push_back(
        transport_.receive(static_cast<char*>(data) + at, std::min(bytes - at, collectives::message_limit), from, tag));
}
bool Messages::finished() {
  while (!list_.empty() && transport_.finished(list_.back())) list_.pop_back();
  return list_.empty();
}
void Messages::wait() {
  while (!finished()) transport_.pause();
}

namespace {

using Message = Transport::Message;

// A tree's root holds the operands of all ranks: in bytes, what is too much for it, and what is little enough for all.
constexpr int64_t kMostOperands = 16 << 20, kFewOperands = 16 << 10;

char* bytes_of(const Tensor& t) { return static_cast<char*>(t.raw()); }

// Part of a message that travels by itself. `owner`: the rank that gets the result, -1: all.
struct Piece {
  int64_t begin, count;
  int owner;
  char* result;  // where this rank puts it; null if it gets none
};

// Cuts `count` elements from `begin` on into pieces that keep all links of a chain busy.
void cut(std::vector<Piece>& pieces, int64_t begin, int64_t count, size_t wide, int ranks, int owner, char* result,
         size_t size) {
  int64_t bytes = std::clamp<int64_t>(count * int64_t(wide) / (8 * ranks), 16 << 10, 512 << 10);
  int64_t each = std::max<int64_t>(1, std::min(bytes, collectives::message_limit) / int64_t(wide));
  for (int64_t at = 0; at < count; at += each)
    pieces.push_back({begin + at, std::min(each, count - at), owner, result ? result + at * int64_t(size) : nullptr});
}

// A message queue of few slots: entries are added at the back, and leave at the front once finished.
template <int slots>
struct Fifo {
  Transport& transport;
  std::array<Message, slots> message{};
  int added = 0, finished = 0;
  bool full() const { return added - finished == slots; }
  void add(Message m) { message[added++ % slots] = m; }
  bool front_finished() { return finished < added && transport.finished(message[finished % slots]); }
};

// Results may be written over the input: a piece's result comes only after its operand has left.
void reduce_along_chain(Transport& t, const HostReduction& reduction, const char* input,
                        const std::vector<Piece>& pieces) {
  constexpr int kSlots = 4;
  const int rank = t.rank(), last = t.size() - 1, n = static_cast<int>(pieces.size());
  const int64_t size = int64_t(reduction.size()), wide = int64_t(reduction.wide_size());
  int64_t longest = 0;
  for (const Piece& p : pieces) longest = std::max(longest, p.count);
  // Each slot: the partial result, and a piece in the element type.
  char* room = t.scratch(kSlots * longest * (wide + size));
  auto sum = [&](int k) { return room + (k % kSlots) * longest * wide; };
  auto narrow = [&](int k) { return room + kSlots * longest * wide + (k % kSlots) * longest * size; };
  const bool first_hop = rank == 1;  // what rank 0 sends is an operand, in the element type
  Fifo<kSlots> partial_in{t}, out{t}, result_in{t}, result_out{t};
  auto deliver = [&](int k) -> Message {  // by the last rank
    const Piece& p = pieces[k];
    char* result = p.result ? p.result : narrow(k);
    reduction.finish(result, sum(k), p.count);
    int to = p.owner < 0 ? 0 : p.owner;
    return to == last ? nullptr : t.send(result, p.count * size, to, kResultTag);
  };
  while (out.finished < n || (rank != last && result_out.finished < n)) {
    bool moved = false;
    if (rank > 0) {
      while (partial_in.added < n && partial_in.added - out.finished < kSlots) {
        int k = partial_in.added;
        partial_in.add(t.receive(first_hop ? narrow(k) : sum(k), pieces[k].count * (first_hop ? size : wide), rank - 1,
                                 kCollectiveTag));
        moved = true;
      }
      if (partial_in.front_finished()) {
        int k = partial_in.finished++;
        const Piece& p = pieces[k];
        if (first_hop) reduction.widen(sum(k), narrow(k), p.count);
        reduction.combine(sum(k), input + p.begin * size, p.count);
        out.add(rank == last ? deliver(k) : t.send(sum(k), p.count * wide, rank + 1, kCollectiveTag));
        moved = true;
      }
    } else if (out.added < n && !out.full()) {
      const Piece& p = pieces[out.added];
      out.add(t.send(input + p.begin * size, p.count * size, 1, kCollectiveTag));
      moved = true;
    }
    if (out.front_finished()) ++out.finished, moved = true;
    if (rank != last) {
      while (result_in.added < (rank == 0 ? out.finished : out.added) &&
             result_in.added - result_out.finished < kSlots) {
        const Piece& p = pieces[result_in.added];
        int from = p.owner < 0 && rank > 0 ? rank - 1 : last;
        result_in.add(p.owner < 0 || p.owner == rank ? t.receive(p.result, p.count * size, from, kResultTag) : nullptr);
        moved = true;
      }
      if (result_in.front_finished()) {
        const Piece& p = pieces[result_in.finished++];
        bool forward = p.owner < 0 && rank + 1 < last;
        result_out.add(forward ? t.send(p.result, p.count * size, rank + 1, kResultTag) : nullptr);
        moved = true;
      }
      if (result_out.front_finished()) ++result_out.finished, moved = true;
    }
    if (!moved) t.pause();
  }
}

// ---- trees
// -----------------------------------------------------------------------------------------------------------

// At root: the operands, that of rank (root + i) mod n at place i; elsewhere a part of them.
char* gather_up(Transport& t, int root, const char* mine, int64_t bytes) {
  const int n = t.size(), v = (t.rank() - root + n) % n;
  auto real = [&](int virtual_rank) { return (virtual_rank + root) % n; };
  const int below = v == 0 ? n : std::min(v & -v, n - v);  // ranks of the subtree
  char* buffer = t.scratch(below * bytes);
  std::memcpy(buffer, mine, size_t(bytes));
  Messages messages(t);
  for (int mask = 1; mask < below; mask <<= 1)
    messages.receive(buffer + mask * bytes, std::min(mask, below - mask) * bytes, real(v + mask));
  messages.wait();
  if (v != 0) messages.send(buffer, below * bytes, real(v - (v & -v)));
  messages.wait();
  return buffer;
}

void broadcast_down(Transport& t, int root, char* data, int64_t bytes) {
  const int n = t.size(), v = (t.rank() - root + n) % n;
  auto real = [&](int virtual_rank) { return (virtual_rank + root) % n; };
  Messages messages(t);
  int mask = 1;
  while (mask < n && !(v & mask)) mask <<= 1;
  if (v != 0) messages.receive(data, bytes, real(v - mask));
  messages.wait();
  for (mask >>= 1; mask > 0; mask >>= 1)
    if (v + mask < n) messages.send(data, bytes, real(v + mask));
  messages.wait();
}

// output[r] becomes the input of rank r.
void gather_recursive(Transport& t, const char* mine, int64_t bytes, char* output) {
  const int n = t.size(), rank = t.rank();
  char* buffer = t.scratch(n * bytes);  // buffer[i]: of rank (rank + i) mod n
  std::memcpy(buffer, mine, size_t(bytes));
  for (int held = 1; held < n; held <<= 1) {
    int count = std::min(held, n - held);
    Messages messages(t);
    messages.receive(buffer + held * bytes, count * bytes, (rank + held) % n);
    messages.send(buffer, count * bytes, (rank - held + n) % n);
    messages.wait();
  }
  for (int i = 0; i < n; ++i) std::memcpy(output + (rank + i) % n * bytes, buffer + i * bytes, size_t(bytes));
}

void reduce_operands(const HostReduction& reduction, char* out, const char* operands, int ranks, int root,
                     int64_t count) {
  std::vector<const char*> x(ranks);
  for (int r = 0; r < ranks; ++r) x[r] = operands + (r - root + ranks) % ranks * count * int64_t(reduction.size());
  reduction.all(out, x.data(), ranks, count);
}

// ---- the collectives
// -------------------------------------------------------------------------------------------------

void all_reduce(Transport& t, const Call& call, const std::string& algorithm) {
  const HostReduction reduction(call.output.dtype(), call.op, t.size());
  const int64_t count = call.output.numel(), bytes = int64_t(call.output.nbytes());
  char* data = bytes_of(call.output);
  if (algorithm == "ring") {
    std::vector<Piece> pieces;
    cut(pieces, 0, count, reduction.wide_size(), t.size(), -1, data, reduction.size());
    reduce_along_chain(t, reduction, data, pieces);
  } else if (algorithm == "recursive") {
    std::vector<char> operands(size_t(t.size() * bytes));
    gather_recursive(t, data, bytes, operands.data());
    reduce_operands(reduction, data, operands.data(), t.size(), 0, count);
  } else {
    const char* operands = gather_up(t, 0, data, bytes);
    if (t.rank() == 0) reduce_operands(reduction, data, operands, t.size(), 0, count);
    broadcast_down(t, 0, data, bytes);
  }
}

void reduce(Transport& t, const Call& call, const std::string& algorithm) {
  const HostReduction reduction(call.output.dtype(), call.op, t.size());
  const int64_t count = call.output.numel(), bytes = int64_t(call.output.nbytes());
  char* data = bytes_of(call.output);
  const int root = call.from;
  if (algorithm == "ring") {
    std::vector<Piece> pieces;
    cut(pieces, 0, count, reduction.wide_size(), t.size(), root, t.rank() == root ? data : nullptr, reduction.size());
    reduce_along_chain(t, reduction, data, pieces);
  } else {
    const char* operands = gather_up(t, root, data, bytes);
    if (t.rank() == root) reduce_operands(reduction, data, operands, t.size(), root, count);
  }
}

void reduce_scatter(Transport& t, const Call& call, const std::string& algorithm) {
  const HostReduction reduction(call.output.dtype(), call.op, t.size());
  const int64_t count = call.output.numel(), bytes = int64_t(call.output.nbytes());
  const int n = t.size(), rank = t.rank();
  const char* input = bytes_of(call.input);
  char* output = bytes_of(call.output);
  if (algorithm == "ring") {
    std::vector<Piece> pieces;
    for (int r = 0; r < n; ++r)
      cut(pieces, r * count, count, reduction.wide_size(), n, r, r == rank ? output : nullptr, reduction.size());
    reduce_along_chain(t, reduction, input, pieces);
    return;
  }
  char* operands = t.scratch(n * bytes);
  Messages messages(t);
  for (int i = 1; i < n; ++i) messages.receive(operands + (rank + i) % n * bytes, bytes, (rank + i) % n);
  for (int i = 1; i < n; ++i) messages.send(input + (rank + n - i) % n * bytes, bytes, (rank + n - i) % n);
  messages.wait();
  std::memcpy(operands + rank * bytes, input + rank * bytes, size_t(bytes));
  reduce_operands(reduction, output, operands, n, 0, count);
}

void all_gather(Transport& t, const Call& call, const std::string& algorithm) {
  const int64_t bytes = int64_t(call.input.nbytes());
  const int n = t.size(), rank = t.rank();
  char* output = bytes_of(call.output);
  if (algorithm == "recursive") return gather_recursive(t, bytes_of(call.input), bytes, output);
  if (output + rank * bytes != bytes_of(call.input))
    std::memcpy(output + rank * bytes, bytes_of(call.input), size_t(bytes));
  for (int step = 0; step < n - 1; ++step) {  // around the ring, each part from neighbour to neighbour
    Messages messages(t);
    messages.receive(output + (rank + 2 * n - step - 1) % n * bytes, bytes, (rank + n - 1) % n);
    messages.send(output + (rank + n - step) % n * bytes, bytes, (rank + 1) % n);
    messages.wait();
  }
}

void broadcast(Transport& t, const Call& call, const std::string& algorithm) {
  const int n = t.size(), root = call.from, v = (t.rank() - root + n) % n;
  char* data = bytes_of(call.output);
  if (algorithm == "tree") return broadcast_down(t, root, data, int64_t(call.output.nbytes()));
  std::vector<Piece> pieces;
  cut(pieces, 0, call.output.numel(), size_of(call.output.dtype()), n, -1, nullptr, 0);
  const int count = static_cast<int>(pieces.size());
  const int64_t size = int64_t(size_of(call.output.dtype()));
  constexpr int kSlots = 4;
  Fifo<kSlots> in{t}, out{t};
  while (out.finished < count) {
    bool moved = false;
    if (in.added < count && in.added - out.finished < kSlots) {
      const Piece& p = pieces[in.added];
      in.add(v == 0 ? nullptr
                    : t.receive(data + p.begin * size, p.count * size, (t.rank() + n - 1) % n, kCollectiveTag));
      moved = true;
    }
    if (in.front_finished()) {
      const Piece& p = pieces[in.finished++];
      out.add(v == n - 1 ? nullptr : t.send(data + p.begin * size, p.count * size, (t.rank() + 1) % n, kCollectiveTag));
      moved = true;
    }
    if (out.front_finished()) ++out.finished, moved = true;
    if (!moved) t.pause();
  }
}

void all_to_all(Transport& t, const Call& call) {
  const int n = t.size(), rank = t.rank();
  const int64_t size = int64_t(size_of(call.output.dtype()));
  std::vector<int64_t> from(n), to(n);  // where each rank's part begins
  for (int r = 1; r < n; ++r) from[r] = from[r - 1] + call.received[r - 1], to[r] = to[r - 1] + call.sent[r - 1];
  Messages messages(t);
  for (int i = 1; i < n; ++i) {
    int r = (rank + i) % n;
    messages.receive(bytes_of(call.output) + from[r] * size, call.received[r] * size, r);
  }
  for (int i = 1; i < n; ++i) {
    int r = (rank + n - i) % n;
    messages.send(bytes_of(call.input) + to[r] * size, call.sent[r] * size, r);
  }
  if (call.sent[rank])
    std::memcpy(bytes_of(call.output) + from[rank] * size, bytes_of(call.input) + to[rank] * size,
                size_t(call.sent[rank] * size));
  messages.wait();
}

}  // namespace

std::string algorithm_of(const Call& call, int ranks) {
  auto choice = [&](CollectiveKind kind, const Tensor& larger) -> std::string {
    return collectives::algorithm_for(kind, int64_t(larger.nbytes()), ranks) == Algorithm::tree ? "tree" : "ring";
  };
  const int64_t operands = int64_t(call.output.defined() ? call.output.nbytes() : 0) * ranks;
  switch (call.kind) {
    case Call::all_reduce:
      if (operands > kMostOperands || choice(CollectiveKind::all_reduce, call.output) == "ring") return "ring";
      return operands <= kFewOperands ? "recursive" : "tree";
    case Call::reduce:
      return operands > kMostOperands ? "ring" : choice(CollectiveKind::reduce, call.output);
    case Call::broadcast:
      return choice(CollectiveKind::broadcast, call.output);
    case Call::all_gather:
      return choice(CollectiveKind::all_gather, call.output) == "tree" ? "recursive" : "ring";
    case Call::reduce_scatter:
      return choice(CollectiveKind::reduce_scatter, call.input) == "tree" ? "direct" : "ring";
    default:
      return "direct";
  }
}

void run_collective(Transport& t, const Call& call, const std::string& algorithm) {
  switch (call.kind) {
    case Call::all_reduce:
      return all_reduce(t, call, algorithm);
    case Call::reduce:
      return reduce(t, call, algorithm);
    case Call::broadcast:
      return broadcast(t, call, algorithm);
    case Call::all_gather:
      return all_gather(t, call, algorithm);
    case Call::reduce_scatter:
      return reduce_scatter(t, call, algorithm);
    default:
      return all_to_all(t, call);
  }
}

}  // namespace xylem
