// SPDX-License-Identifier: Apache-2.0
// Messages between the ranks of a group, and the algorithms made of them. Internal to group/.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "distributed/group/backend.h"
#include "distributed/plan/plan.h"

namespace xylem {

// Messages from one rank to another with one tag arrive in the order of their sending.
class Transport {
 public:
  using Message = void*;  // under way; null: finished
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // At most collectives::message_limit bytes.
  virtual Message send(const void* data, int64_t bytes, int to, int tag) = 0;
  virtual Message receive(void* data, int64_t bytes, int from, int tag) = 0;
  virtual bool finished(Message& m) = 0;     // makes progress; throws what went wrong
  virtual void pause() = 0;                  // nothing to do just now; throws after an abort
  virtual char* scratch(int64_t bytes) = 0;  // one piece of memory, valid until the next call
};

inline constexpr int kPeerTag = 1, kCollectiveTag = 2, kResultTag = 3;

// Any number of messages of any length.
class Messages {
 public:
  explicit Messages(Transport& t) : transport_(t) {}
  void send(const void* data, int64_t bytes, int to, int tag = kCollectiveTag);
  void receive(void* data, int64_t bytes, int from, int tag = kCollectiveTag);
  bool finished();
  void wait();

 private:
  Transport& transport_;
  std::vector<Transport::Message> list_;
};

// Which algorithm serves the call: "ring", "tree", "recursive", "direct".
std::string algorithm_of(const Call& call, int ranks);
// Runs one collective to its end; send and receive are the backend's own business.
void run_collective(Transport& transport, const Call& call, const std::string& algorithm);

}  // namespace xylem
