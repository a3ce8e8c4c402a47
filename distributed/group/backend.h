// SPDX-License-Identifier: Apache-2.0
// What a Group stands on: a backend for each kind of device, and a channel for small host values. Internal to group/.
#pragma once
#include <map>
#include <mutex>

#include "distributed/group/group.h"

namespace xylem {

// One collective, its arguments checked. Collectives in place have no input.
struct Call {
  enum Kind { all_reduce, reduce, broadcast, all_gather, reduce_scatter, all_to_all, send, receive, send_receive } kind;
  Tensor output = {}, input = {};
  ReduceOp op = ReduceOp::sum;
  int to = -1, from = -1;                         // peers; the root of broadcast and reduce is `from`
  std::vector<int64_t> received = {}, sent = {};  // all_to_all: elements for each rank
};

// The flight recorder's entries for a call: one, or two for send_receive.
struct Record {
  uint64_t first = 0, second = 0;
  void started(int64_t when_ns = 0) const;
  void finished(int64_t when_ns = 0) const;
};

class Backend {
 public:
  virtual ~Backend() = default;
  // Called by one thread at a time.
  virtual Work launch(Call call, Record record) = 0;
  virtual std::string algorithm(const Call& call) const = 0;  // for the recorder
};

// Blocking exchange of host values; may be used while collectives are under way.
class HostChannel {
 public:
  virtual ~HostChannel() = default;
  virtual std::vector<std::string> gather(const std::string& mine) = 0;
  virtual std::string broadcast(const std::string& value, int root) = 0;
  virtual void barrier() = 0;
};

struct Group::Impl {
  std::string name = "self";
  std::vector<int> world_ranks;
  int rank = 0;
  std::unique_ptr<HostChannel> host;    // null in a group of one
  std::unique_ptr<Backend> cpu, cuda;   // null in a group of one; cuda is made by the first collective of GPU tensors
  std::mutex mutex;                     // one collective is launched at a time
  std::map<std::string, int> children;  // names given to splits, to keep them apart
  int size() const { return static_cast<int>(world_ranks.size()); }
};

namespace detail {
// group_mpi.cpp: the communicators of the world or of a part of `parent`; the latter is collective over the parent.
void connect_world(Group::Impl& world);
void connect_split(Group::Impl& child, Group::Impl& parent, int color, int key);
bool stop_mpi();
// group_nccl.cpp
std::unique_ptr<Backend> make_nccl(Group::Impl& group, Device device);
void abort_nccl();
std::string nccl_async_error();
void stop_nccl();
}  // namespace detail

}  // namespace xylem
