// SPDX-License-Identifier: Apache-2.0
// Group: some of the job's processes that exchange tensors. CPU tensors travel over MPI, GPU tensors over NCCL; the
// same calls serve both.
//
//   Group world = Group::world();
//   Work sum = world.all_reduce(grads, ReduceOp::avg);   // in place; other work goes on meanwhile
//   ...
//   sum.wait();                                           // grads may be read from here on
//
// Every rank of a group calls the same collectives in the same order with the same sizes and types. Tensors must be
// contiguous. One collective of a group runs after the other, all groups of a process on one communication stream.
// 16-bit floats are summed in f32 over MPI. Errors that a rank can see alone (a wrong type, an odd size) are thrown by
// the call; what other ranks do wrong is found by the watchdog (distributed/watchdog/watchdog.h).
//
// This folder: the group and its two backends (group_mpi, group_nccl), the algorithms over MPI (algorithms, reduction),
// collectives as differentiable operations (collectives), and what the watchdog and the plan may do to them (control).
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace xylem {

enum class ReduceOp { sum, avg, min, max };

// A collective under way. wait() orders what follows behind it: the host on the CPU, the current stream on a GPU.
// The tensors stay alive until then. The destructor waits.
class [[nodiscard]] Work {
 public:
  struct State {
    virtual ~State() = default;
    virtual void wait() = 0;  // throws the error of the collective
    virtual bool done() = 0;
  };
  Work() = default;
  explicit Work(std::unique_ptr<State> state) : state_(std::move(state)) {}
  Work(Work&&) = default;
  // NOLINTNEXTLINE(performance-noexcept-move-constructor): it waits for the work it held, whose error it throws.
  Work& operator=(Work&& o);
  ~Work();
  void wait();
  bool done() const { return !state_ || state_->done(); }

 private:
  std::unique_ptr<State> state_;
};

class Group {
 public:
  // All processes of the job. A single process without a launcher is a group of one, and MPI is never initialised.
  static Group world();
  Group();  // of this process alone

  int rank() const;
  int size() const;
  const std::string& name() const;              // for reports: "world", "world/data"
  const std::vector<int>& world_ranks() const;  // of the members, in order of their rank in the group
  int world_rank() const;                       // of this process

  // Collective over this group: the processes that give the same `color` form a new group, ordered by (key, rank).
  // color < 0: this process joins none and gets a group of one.
  Group split(int color, int key, const std::string& name) const;

  // In place, same shape on all ranks. avg needs a floating point type.
  Work all_reduce(const Tensor& t, ReduceOp op = ReduceOp::sum) const;
  Work reduce(const Tensor& t, int root,
              ReduceOp op = ReduceOp::sum) const;  // `t` is undefined on other ranks after it
  Work broadcast(const Tensor& t, int root) const;
  // output.numel() == size() * input.numel(); rank r's input is at r * input.numel(). `input` may be that part of
  // `output` itself.
  Work all_gather(const Tensor& output, const Tensor& input) const;
  // input.numel() == size() * output.numel(); rank r receives the reduction of part r. `output` may be that part.
  Work reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op = ReduceOp::sum) const;
  // Part r of `input` goes to rank r, whose part of `output` it becomes: equal parts, or parts of the given numbers of
  // elements (one per rank, what this rank sends and receives).
  Work all_to_all(const Tensor& output, const Tensor& input) const;
  Work all_to_all(const Tensor& output, const Tensor& input, const std::vector<int64_t>& receive,
                  const std::vector<int64_t>& send) const;
  Work send(const Tensor& t, int to) const;
  Work receive(const Tensor& t, int from) const;
  // Both at once: what neighbours that exchange tensors must call, since on a GPU a send ends with its receive.
  Work send_receive(const Tensor& sent, int to, const Tensor& received, int from) const;
  void barrier() const;  // the host waits for all ranks

  // Small host values, over MPI whatever the device of the tensors; they block.
  std::vector<std::string> gather_strings(const std::string& mine) const;  // every rank gets all
  std::string broadcast_string(const std::string& value, int root) const;
  std::vector<int64_t> gather_integers(int64_t mine) const;

  struct Impl;
  explicit Group(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace xylem
