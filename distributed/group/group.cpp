// SPDX-License-Identifier: Apache-2.0
// Group: checks the arguments, tells the flight recorder, and hands the collective to the backend of the device.
#include "distributed/group/group.h"

#include <algorithm>
#include <cstring>
#include <iostream>
#include <numeric>

#include "core/autograd/autograd.h"
#include "distributed/group/backend.h"
#include "distributed/record/recorder.h"
#include "distributed/world/world.h"

namespace xylem {

Work& Work::operator=(Work&& o) {  // NOLINT(performance-noexcept-move-constructor)
  if (this != &o) {
    if (auto old = std::move(state_)) old->wait();
    state_ = std::move(o.state_);
  }
  return *this;
}
Work::~Work() {
  if (!state_) return;
  try {
    state_->wait();
  } catch (const std::exception& e) {
    std::cerr << "xylem: a collective failed: " << e.what() << '\n';
  }
}
void Work::wait() {
  if (!state_) return;
  auto state = std::move(state_);
  state->wait();
}

void Record::started(int64_t when_ns) const {
  recorder::started(first, when_ns);
  recorder::started(second, when_ns);
}
void Record::finished(int64_t when_ns) const {
  recorder::finished(first, when_ns);
  recorder::finished(second, when_ns);
}

namespace {

using Impl = Group::Impl;

// The collectives of a group of one.
Work copy(const Tensor& to, const Tensor& from) {
  if (to.raw() != from.raw()) no_grad([&] { to.detach().view({-1}).copy_(from.detach().view({-1})); });
  return {};
}

void check_tensor(const Tensor& t, const char* what) {
  XY_CHECK(t.defined(), what, " is undefined");
  XY_CHECK(t.is_contiguous(), what, " of shape ", t.shape(), " must be contiguous; call .contiguous() first");
}
void check_pair(const Tensor& output, const Tensor& input) {
  check_tensor(output, "the output");
  check_tensor(input, "the input");
  XY_CHECK(output.dtype() == input.dtype(), "output (", output.dtype(), ") and input (", input.dtype(),
           ") must have one type");
  XY_CHECK(output.device() == input.device(), "the output is on ", output.device(), " and the input on ",
           input.device());
}
void check_reduction(const Tensor& t, ReduceOp op) {
  XY_CHECK(op != ReduceOp::avg || is_float(t.dtype()), "avg needs a floating point type, not ", t.dtype());
}
void check_root(const Group& group, int root) {
  XY_CHECK(root >= 0 && root < group.size(), "root ", root, " is not one of the ", group.size(), " ranks of the group ",
           group.name());
}
void check_peer(const Group& group, int peer) {
  XY_CHECK(peer >= 0 && peer < group.size() && peer != group.rank(), "rank ", group.rank(), " of the group ",
           group.name(), " (", group.size(), " ranks) has no peer ", peer);
}

uint64_t begin(const Impl& group, std::string op, DType dtype = u8, int64_t count = 0, std::string algorithm = {}) {
  return recorder::begin(
      {.group = group.name, .op = std::move(op), .dtype = dtype, .count = count, .algorithm = std::move(algorithm)});
}

Backend& backend_for(Impl& group, const Tensor& t) {
  if (!t.is_cuda()) return *group.cpu;
#ifdef XY_WITH_NCCL
  if (!group.cuda) {
    uint64_t record = begin(group, "start_nccl");
    recorder::started(record);
    group.cuda = detail::make_nccl(group, t.device());
    recorder::finished(record);
  }
  return *group.cuda;
#else
  XY_FAIL(
      "GPU tensors travel between processes over NCCL, and this build of Xylem has none; install NCCL (or set "
      "NCCL_ROOT) and configure again with -DXY_NCCL=ON");
#endif
}

const char* name_of(Call::Kind kind) {
  constexpr const char* names[] = {"all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"};
  return names[kind];
}

Record begin(const Impl& group, const Call& call, const std::string& algorithm) {
  if (call.kind < Call::send) {
    const Tensor& own = call.input.defined() ? call.input : call.output;
    return {begin(group, name_of(call.kind), own.dtype(), own.numel(), algorithm)};
  }
  Record record;
  if (call.to >= 0)
    record.first =
        begin(group, "send to " + std::to_string(call.to), call.input.dtype(), call.input.numel(), algorithm);
  if (call.from >= 0)
    record.second =
        begin(group, "receive from " + std::to_string(call.from), call.output.dtype(), call.output.numel(), algorithm);
  return record;
}

Work launch(Impl& group, Call call) {
  std::lock_guard lock(group.mutex);
  for (Tensor* t : {&call.output, &call.input})
    if (t->defined()) *t = t->detach();
  if (call.output.defined()) call.output.bump_version();
  Backend& backend = backend_for(group, call.output.defined() ? call.output : call.input);
  auto empty = [](const Tensor& t) { return !t.defined() || t.numel() == 0; };
  const bool nothing = empty(call.output) && empty(call.input);
  Record record = begin(group, call, nothing ? "" : backend.algorithm(call));
  if (!nothing) return backend.launch(std::move(call), record);
  record.finished();
  return {};
}

// A host call, which the recorder sees from start to end.
template <class F>
auto host_call(Impl& group, const char* name, F&& f) {
  uint64_t record = begin(group, name);
  recorder::started(record);
  struct End {
    uint64_t record;
    int exceptions = std::uncaught_exceptions();
    ~End() {
      if (std::uncaught_exceptions() == exceptions) recorder::finished(record);
    }
  } end{record};
  return f(*group.host);
}

}  // namespace

Group::Group() : impl_(std::make_shared<Impl>()) { impl_->world_ranks = {xylem::world().rank}; }

Group Group::world() {
  static const std::shared_ptr<Impl> impl = [] {
    auto group = std::make_shared<Impl>();
    const World& w = xylem::world();
    group->name = "world";
    group->rank = w.rank;
    group->world_ranks.resize(w.size);
    std::iota(group->world_ranks.begin(), group->world_ranks.end(), 0);
    recorder::group(group->name, group->world_ranks);
#ifdef XY_WITH_MPI
    if (w.size > 1) detail::connect_world(*group);
#endif
    return group;
  }();
  return Group(impl);
}

int Group::rank() const { return impl_->rank; }
int Group::size() const { return impl_->size(); }
const std::string& Group::name() const { return impl_->name; }
const std::vector<int>& Group::world_ranks() const { return impl_->world_ranks; }
int Group::world_rank() const { return impl_->world_ranks[impl_->rank]; }

Group Group::split(int color, int key, const std::string& name) const {
  std::vector<int64_t> colors = gather_integers(color), keys = gather_integers(key);
  int nth;
  {
    std::lock_guard lock(impl_->mutex);
    nth = ++impl_->children[name];
  }
  std::vector<int> members;
  bool several = false;  // colors
  int64_t seen = -1;
  for (int r = 0; r < size(); ++r) {
    if (colors[r] == color) members.push_back(r);
    if (colors[r] >= 0) several |= seen >= 0 && colors[r] != seen, seen = colors[r];
  }
  if (color < 0) members = {rank()};
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return keys[a] < keys[b]; });
  auto child = std::make_shared<Impl>();
  child->name = impl_->name + "/" + name;
  if (several) child->name += "." + std::to_string(color);
  if (nth > 1) child->name += "~" + std::to_string(nth);
  if (color < 0) child->name = "self";
  for (int r : members) {
    if (r == rank()) child->rank = child->size();
    child->world_ranks.push_back(world_ranks()[r]);
  }
  if (child->size() > 1) recorder::group(child->name, child->world_ranks);
#ifdef XY_WITH_MPI
  if (size() > 1) detail::connect_split(*child, *impl_, color, key);
#endif
  return Group(child);
}

Work Group::all_reduce(const Tensor& t, ReduceOp op) const {
  OpScope scope("all_reduce");
  check_tensor(t, "the tensor");
  check_reduction(t, op);
  if (size() == 1) return {};
  return launch(*impl_, {.kind = Call::all_reduce, .output = t, .op = op});
}

Work Group::reduce(const Tensor& t, int root, ReduceOp op) const {
  OpScope scope("reduce");
  check_tensor(t, "the tensor");
  check_reduction(t, op);
  check_root(*this, root);
  if (size() == 1) return {};
  return launch(*impl_, {.kind = Call::reduce, .output = t, .op = op, .from = root});
}

Work Group::broadcast(const Tensor& t, int root) const {
  OpScope scope("broadcast");
  check_tensor(t, "the tensor");
  check_root(*this, root);
  if (size() == 1) return {};
  return launch(*impl_, {.kind = Call::broadcast, .output = t, .from = root});
}

Work Group::all_gather(const Tensor& output, const Tensor& input) const {
  OpScope scope("all_gather");
  check_pair(output, input);
  XY_CHECK(output.numel() == size() * input.numel(), "output of shape ", output.shape(), " must have ", size(),
           " times the elements of the input of shape ", input.shape());
  if (size() == 1) return copy(output, input);
  return launch(*impl_, {.kind = Call::all_gather, .output = output, .input = input});
}

Work Group::reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op) const {
  OpScope scope("reduce_scatter");
  check_pair(output, input);
  check_reduction(input, op);
  XY_CHECK(input.numel() == size() * output.numel(), "input of shape ", input.shape(), " must have ", size(),
           " times the elements of the output of shape ", output.shape());
  if (size() == 1) return copy(output, input);
  return launch(*impl_, {.kind = Call::reduce_scatter, .output = output, .input = input, .op = op});
}

Work Group::all_to_all(const Tensor& output, const Tensor& input) const {
  OpScope scope("all_to_all");
  check_pair(output, input);
  XY_CHECK(input.numel() % size() == 0 && output.numel() == input.numel(), "input of shape ", input.shape(),
           " and output of shape ", output.shape(), " must hold ", size(), " equal parts each");
  std::vector<int64_t> parts(size(), input.numel() / size());
  return all_to_all(output, input, parts, parts);
}

Work Group::all_to_all(const Tensor& output, const Tensor& input, const std::vector<int64_t>& receive,
                       const std::vector<int64_t>& send) const {
  OpScope scope("all_to_all");
  check_pair(output, input);
  auto check_parts = [&](const std::vector<int64_t>& parts, const Tensor& t, const char* what) {
    XY_CHECK(int(parts.size()) == size(), what, ": ", parts.size(), " parts for ", size(), " ranks");
    XY_CHECK(std::all_of(parts.begin(), parts.end(), [](int64_t n) { return n >= 0; }), what, ": a part is negative");
    int64_t sum = std::accumulate(parts.begin(), parts.end(), int64_t(0));
    XY_CHECK(sum == t.numel(), what, ": the parts have ", sum, " elements, the tensor of shape ", t.shape(), " has ",
             t.numel());
  };
  check_parts(receive, output, "receive");
  check_parts(send, input, "send");
  XY_CHECK(receive[rank()] == send[rank()], "rank ", rank(), " sends ", send[rank()],
           " elements to itself, but receives ", receive[rank()]);
  if (size() == 1) return copy(output, input);
  return launch(*impl_,
                {.kind = Call::all_to_all, .output = output, .input = input, .received = receive, .sent = send});
}

Work Group::send(const Tensor& t, int to) const {
  OpScope scope("send");
  check_tensor(t, "the tensor");
  check_peer(*this, to);
  return launch(*impl_, {.kind = Call::send, .input = t, .to = to});
}

Work Group::receive(const Tensor& t, int from) const {
  OpScope scope("receive");
  check_tensor(t, "the tensor");
  check_peer(*this, from);
  return launch(*impl_, {.kind = Call::receive, .output = t, .from = from});
}

Work Group::send_receive(const Tensor& sent, int to, const Tensor& received, int from) const {
  OpScope scope("send_receive");
  check_tensor(sent, "the tensor sent");
  check_tensor(received, "the tensor received");
  XY_CHECK(sent.device() == received.device(), "one tensor is on ", sent.device(), ", the other on ",
           received.device());
  check_peer(*this, to);
  check_peer(*this, from);
  return launch(*impl_, {.kind = Call::send_receive, .output = received, .input = sent, .to = to, .from = from});
}

void Group::barrier() const {
  if (size() > 1) host_call(*impl_, "barrier", [](HostChannel& host) { host.barrier(); });
}

std::vector<std::string> Group::gather_strings(const std::string& mine) const {
  if (size() == 1) return {mine};
  return host_call(*impl_, "gather_strings", [&](HostChannel& host) { return host.gather(mine); });
}

std::string Group::broadcast_string(const std::string& value, int root) const {
  OpScope scope("broadcast_string");
  check_root(*this, root);
  if (size() == 1) return value;
  return host_call(*impl_, "broadcast_string", [&](HostChannel& host) { return host.broadcast(value, root); });
}

std::vector<int64_t> Group::gather_integers(int64_t mine) const {
  if (size() == 1) return {mine};
  return host_call(*impl_, "gather_integers", [&](HostChannel& host) {
    std::vector<int64_t> all;
    for (const std::string& bytes : host.gather(std::string(reinterpret_cast<const char*>(&mine), sizeof mine)))
      std::memcpy(&all.emplace_back(), bytes.data(), sizeof mine);
    return all;
  });
}

}  // namespace xylem
