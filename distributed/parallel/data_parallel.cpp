// SPDX-License-Identifier: Apache-2.0
#include "distributed/parallel/data_parallel.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <sstream>

#include "core/autograd/autograd.h"
#include "distributed/parallel/window.h"
#include "distributed/record/recorder.h"
#include "ops/ops.h"

namespace xylem {
namespace {

int64_t to_bytes(double mebibytes) { return int64_t(mebibytes * 1048576); }

// One line per parameter, in the order of the buffers.
std::vector<std::string> describe(const std::vector<FlatGroup>& groups) {
  std::vector<std::string> lines;
  for (const FlatGroup& g : groups)
    for (const FlatSlot& s : g.slots)
      lines.push_back("'" + s.name + "' " + name_of(g.dtype) + s.param.shape().str() +
                      (g.options == ParamOptions() ? "" : ", " + g.options.str()));
  return lines;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

void check_same_parameters(const std::vector<FlatGroup>& groups, const Group& group) {
  std::string mine;
  for (const std::string& line : describe(groups)) mine += line + "\n";
  auto hashes = group.gather_integers(int64_t(std::hash<std::string>{}(mine)));
  if (std::equal(hashes.begin() + 1, hashes.end(), hashes.begin())) return;
  auto texts = group.gather_strings(mine);
  auto first = split_lines(texts[0]);
  std::string difference;
  for (int r = 1; r < group.size(); ++r) {
    auto other = split_lines(texts[size_t(r)]);
    size_t i = 0;
    while (i < first.size() && i < other.size() && first[i] == other[i]) ++i;
    if (i == first.size() && i == other.size()) continue;
    auto name = [i](const std::vector<std::string>& lines) { return i < lines.size() ? lines[i] : "nothing"; };
    difference +=
        detail::concat("\n  parameter ", i, " (the last one first) is ", name(first), " on rank ",
                       group.world_ranks()[0], " but ", name(other), " on rank ", group.world_ranks()[size_t(r)]);
  }
  XY_FAIL("the ranks of group '", group.name(), "' do not have the same parameters:", difference);
}

}  // namespace

struct DataParallel::Impl {
  // A bucket on its way through a step.
  struct Journey {
    size_t group, bucket;
    int order;                       // of its last gradient
    std::vector<bool> arrived = {};  // by slot
    size_t complete = 0;             // slots from the first on that have arrived, or are frozen
    Tensor sent = {};                // what is being reduced
    Work work = {};
    std::string tag = {};
  };

  std::vector<FlatGroup> groups;
  Tensors state;
  ParallelOptions options;
  Group group;
  int zero, rank, world;
  std::vector<Journey> journeys;            // in the order that the parameters' own suggests
  std::vector<size_t> sequence, completed;  // the order in which they are launched; that of the first step
  bool observed = false;
  size_t launched = 0, settled = 0;  // in `sequence`
  bool sync = true;
  std::optional<ParameterWindow> window;
  std::vector<uint32_t> versions;  // of the groups' parameters when the masters were last like them

  FlatGroup& group_of(const Journey& j) { return groups[j.group]; }
  FlatBucket& bucket_of(const Journey& j) { return groups[j.group].buckets[j.bucket]; }
  FlatPart own(const FlatBucket& b) const { return part_of(b, rank, world); }

  Impl(std::vector<FlatGroup> g, Tensors s, const ParallelOptions& o)
      : groups(std::move(g)), state(std::move(s)), options(o), group(o.group), rank(group.rank()), world(group.size()) {
    XY_CHECK(o.zero >= 0 && o.zero <= 3, "ZeRO has the stages 0 (off), 1, 2 and 3, not ", o.zero);
    zero = world > 1 ? o.zero : 0;
  }

  // Brings the parameters into the buffers. One bucket at a time, so that with ZeRO 3 no more than the model and one
  // bucket are ever in memory.
  void fill(const BufferOptions& b) {
    for (FlatGroup& g : groups) {
      Device device = g.slots[0].param.device();
      DType grad_type = is_half(g.dtype) && b.f32_grads ? f32 : g.dtype;
      int64_t compact = g.numel / world;
      g.params = zeros({zero == 3 ? compact : g.numel}, g.dtype, device);
      g.grads = zeros({zero >= 2 ? compact : g.numel}, grad_type, device);
      if (is_half(g.dtype) && b.f32_masters) g.masters = zeros({zero >= 1 ? compact : g.numel}, f32, device);
      for (FlatBucket& bucket : g.buckets) {
        Tensor values =
            zero == 3 ? zeros({bucket.size()}, g.dtype, device) : g.params.narrow(0, bucket.begin, bucket.size());
        for_slots(g, bucket, [&](const FlatSlot& s) { view(values, bucket, s).copy_(s.param); });
        if (world > 1) {
          recorder::Tag tag("initial parameters");
          group.broadcast(values, 0).wait();
        }
        FlatPart mine = own(bucket);
        if (zero == 3) g.params.narrow(0, mine.compact, mine.size()).copy_(part(values, bucket, mine));
        bucket.params = zero == 3 ? window->add(bucket, g.params) : values;
        bucket.grads =
            zero >= 2 ? make_elastic_grads(bucket, grad_type, device) : g.grads.narrow(0, bucket.begin, bucket.size());
        for_slots(g, bucket, [&](const FlatSlot& s) {
          s.param.set_data(view(bucket.params, bucket, s));
          s.param.set_grad(view(bucket.grads, bucket, s));
          s.param.zero_grad();
        });
      }
    }
    take_masters(false);
  }

  void note_versions() {
    versions.clear();
    for (const FlatGroup& g : groups) versions.push_back(g.params.version());
  }

  // Zeroed when it comes, for the gaps between parameters.
  static Tensor make_elastic_grads(const FlatBucket& bucket, DType dtype, Device device) {
    auto home = std::make_shared<std::weak_ptr<Storage>>();
    Tensor t = elastic_tensor({bucket.size()}, dtype, device, [home, n = bucket.size(), dtype, device] {
      home->lock()->attach(zeros({n}, dtype, device).storage());
    });
    *home = t.storage();
    return t;
  }

  // With `changed_alone`, masters that the parameter still is the rounding of stay as they are.
  void take_masters(bool changed_alone) {
    constexpr int64_t kPiece = 1 << 22;  // elements, so that what the comparison takes stays small
    for (const FlatRange& r : owned_ranges(groups, rank, world, zero, any_slot)) {
      const FlatGroup& g = groups[r.group];
      if (!g.masters.defined() || (changed_alone && versions[r.group] == g.params.version())) continue;
      for (int64_t at = 0; at < r.size; at += kPiece) {
        int64_t n = std::min(kPiece, r.size - at);
        Tensor master = g.masters.narrow(0, r.state + at, n), param = g.params.narrow(0, r.params + at, n);
        if (changed_alone)
          master.copy_(where(eq(master.to(g.dtype), param), master, param.to(master.dtype())));
        else
          master.copy_(param);
      }
    }
    note_versions();
  }

  // Whether the parameter and its gradient are still the views that fill() has made of them.
  static bool lies_in(const Tensor& t, const Tensor& buffer, const FlatBucket& b, const FlatSlot& s) {
    return t.storage() == buffer.storage() && t.offset() == buffer.offset() + s.offset - b.begin;
  }
  // A gradient that was set from outside, or made by a backward pass with create_graph, is taken into the buffer.
  static void take_gradient(const FlatBucket& b, const FlatSlot& s) {
    Tensor stray = s.param.grad();
    if (!stray.defined() || lies_in(stray, b.grads, b, s)) return;
    NoGrad guard;
    Tensor home = view(b.grads, b, s);
    home.copy_(stray);
    s.param.set_grad(home);
  }

  template <class F>
  static void for_slots(const FlatGroup& g, const FlatBucket& b, F&& f) {
    for (size_t i = b.first_slot; i < b.end_slot; ++i) f(g.slots[i]);
  }
  static Tensor view(const Tensor& values, const FlatBucket& b, const FlatSlot& s) {
    return values.narrow(0, s.offset - b.begin, s.param.numel()).view(s.param.shape());
  }
  static Tensor part(const Tensor& values, const FlatBucket& b, const FlatPart& p) {
    return values.narrow(0, p.begin - b.begin, p.size());
  }
  // Where this rank's gradients of a bucket end up.
  Tensor own_grads(const FlatGroup& g, const FlatBucket& b) const {
    FlatPart p = own(b);
    return g.grads.narrow(0, zero >= 2 ? p.compact : p.begin, p.size());
  }

  void plan() {
    for (size_t g = 0; g < groups.size(); ++g)
      for (size_t b = 0; b < groups[g].buckets.size(); ++b) {
        Journey j{.group = g, .bucket = b, .order = 0};
        for_slots(groups[g], groups[g].buckets[b], [&](const FlatSlot& s) { j.order = std::max(j.order, s.order); });
        journeys.push_back(std::move(j));
      }
    std::sort(journeys.begin(), journeys.end(), [](const Journey& a, const Journey& b) { return a.order < b.order; });
    for (size_t i = 0; i < journeys.size(); ++i) {
      journeys[i].tag = "bucket " + std::to_string(i);
      sequence.push_back(i);
    }
    restart();
  }

  void restart() {
    for (Journey& j : journeys) {
      j.work.wait();
      j.work = {};
      j.sent = {};
      const FlatBucket& b = bucket_of(j);
      j.arrived.assign(b.end_slot - b.first_slot, false);
      j.complete = 0;
    }
    launched = settled = 0;
    completed.clear();
  }

  bool complete(Journey& j) {
    const FlatBucket& b = bucket_of(j);
    auto frozen = [&](size_t i) { return !trained_now(group_of(j).slots[b.first_slot + i]); };
    while (j.complete < j.arrived.size() && (j.arrived[j.complete] || frozen(j.complete))) ++j.complete;
    return j.complete == j.arrived.size();
  }

  void arrived(size_t journey, size_t slot_index) {
    Journey& j = journeys[journey];
    const FlatSlot& slot = group_of(j).slots[slot_index];
    const FlatBucket& b = bucket_of(j);
    if (!sync || slot.param.grad_stale() || !trained_now(slot)) return;
    if (!lies_in(slot.param, b.params, b, slot)) return;  // another optimizer has it; check_current() will say so
    size_t i = slot_index - b.first_slot;
    XY_CHECK(!j.arrived[i] && j.complete < j.arrived.size(), "the gradient of '", slot.name,
             "' has arrived twice in one step; let only the last of several backward passes communicate "
             "(sync_when(last)), call zero_grad() before a new step, and do not share a parameter between recomputed "
             "blocks");
    take_gradient(b, slot);
    j.arrived[i] = true;
    if (!complete(j)) return;
    completed.push_back(journey);
    while (launched < sequence.size() && complete(journeys[sequence[launched]])) launch_next();
  }

  void launch_next() {
    NoGrad guard;
    Journey& j = journeys[sequence[launched++]];
    FlatGroup& g = group_of(j);
    FlatBucket& b = bucket_of(j);
    if (b.size() == 0) return;
    recorder::Tag tag(j.tag);
    bool rounds = b.grads.dtype() == f32 && is_half(options.reduce_dtype);
    j.sent = rounds ? b.grads.to(options.reduce_dtype) : b.grads;
    if (zero == 0)
      j.work = group.all_reduce(j.sent, ReduceOp::avg);
    else if (zero == 1 || rounds)
      j.work = group.reduce_scatter(part(j.sent, b, own(b)), j.sent, ReduceOp::avg);
    else
      j.work = group.reduce_scatter(own_grads(g, b), j.sent, ReduceOp::avg);
    // With ZeRO 2 no more than two buckets' gradients wait for the network.
    if (zero >= 2 && launched > 2) settle_until(launched - 2);
  }

  // After the first step: buckets are launched in the order in which they became ready on rank 0.
  void observe() {
    if (std::exchange(observed, true)) return;
    std::string order;
    for (size_t i : completed) order += std::to_string(i) + " ";
    std::istringstream in(group.broadcast_string(order, 0));
    std::vector<size_t> next;
    for (size_t i; in >> i;) next.push_back(i);
    for (size_t i : sequence)
      if (std::find(next.begin(), next.end(), i) == next.end()) next.push_back(i);
    sequence = std::move(next);
  }

  void settle_until(size_t end) {
    NoGrad guard;
    for (; settled < end; ++settled) {
      Journey& j = journeys[sequence[settled]];
      FlatBucket& b = bucket_of(j);
      j.work.wait();
      if (b.size() == 0) continue;
      bool rounded = !j.sent.same_as(b.grads);
      if (rounded && zero == 0) b.grads.copy_(j.sent);
      if (rounded && zero > 0) own_grads(group_of(j), b).copy_(part(j.sent, b, own(b)));
      j.sent = {};
      if (zero >= 2) b.grads.storage()->let_go();
    }
  }
};

DataParallel::DataParallel(std::vector<FlatGroup> groups, Tensors state, const ParallelOptions& options,
                           const BufferOptions& buffers)
    : impl_(std::make_shared<Impl>(std::move(groups), std::move(state), options)) {
  NoGrad guard;
  Impl& m = *impl_;
  if (m.world > 1) check_same_parameters(m.groups, m.group);
  bool cuts = m.world > 1;
  cut_buckets(m.groups, m.world, cuts ? to_bytes(options.first_bucket_mb) : INT64_MAX,
              cuts ? to_bytes(options.bucket_mb) : INT64_MAX);
  if (m.zero == 3) m.window.emplace(m.group);
  m.fill(buffers);
  if (m.world == 1) return;
  broadcast_state();
  m.plan();
  for (size_t i = 0; i < m.journeys.size(); ++i) {
    const FlatBucket& b = m.bucket_of(m.journeys[i]);
    for (size_t slot = b.first_slot; slot < b.end_slot; ++slot)
      m.group_of(m.journeys[i])
          .slots[slot]
          .param.register_grad_ready([weak = std::weak_ptr<Impl>(impl_), i, slot](const Tensor&) {
            if (auto self = weak.lock()) self->arrived(i, slot);
          });
  }
}

DataParallel::~DataParallel() = default;

const std::vector<FlatGroup>& DataParallel::groups() const { return impl_->groups; }
const Group& DataParallel::group() const { return impl_->group; }
int DataParallel::zero() const { return impl_->zero; }
DataParallel::Sync DataParallel::sync_when(bool last) { return Sync(impl_->sync, last); }

ParallelMemory DataParallel::memory() const {
  ParallelMemory m;
  for (const FlatGroup& g : impl_->groups) {
    m.params += int64_t(g.params.nbytes());
    m.grads += int64_t(g.grads.nbytes());
    if (g.masters.defined()) m.masters += int64_t(g.masters.nbytes());
  }
  return m;
}

void DataParallel::zero_grad() {
  for (const FlatGroup& g : impl_->groups)
    for (const FlatSlot& s : g.slots) s.param.zero_grad();
  impl_->restart();
}

std::vector<std::string> DataParallel::finish() {
  NoGrad guard;
  Impl& m = *impl_;
  std::vector<std::string> unused;
  for (const FlatGroup& g : m.groups)
    for (const FlatBucket& b : g.buckets)
      Impl::for_slots(g, b, [&](const FlatSlot& s) {
        if (!trained_now(s)) return;
        Impl::take_gradient(b, s);
        if (!s.param.grad_stale()) return;
        unused.push_back(s.name);
        if (m.world > 1 && !m.options.find_unused) return;
        Tensor grad = Impl::view(b.grads, b, s);
        grad.zero_();
        s.param.set_grad(grad);
      });
  if (m.world == 1) return unused;
  if (!unused.empty() && !m.options.find_unused) {
    std::string names;
    for (size_t i = 0; i < std::min<size_t>(unused.size(), 10); ++i) names += (i ? ", '" : "'") + unused[i] + "'";
    XY_FAIL("rank ", m.group.world_rank(), " computed no gradient for ", names,
            unused.size() > 10 ? " and " + std::to_string(unused.size() - 10) + " more" : "",
            " in this step; where a step may leave parameters unused, say find_unused = true");
  }
  while (m.launched < m.journeys.size()) m.launch_next();
  m.settle_until(m.journeys.size());
  m.observe();
  return unused;
}

Tensors DataParallel::owned_grads() const {
  Tensors parts;
  for (const FlatGroup& g : impl_->groups)
    for (const FlatBucket& b : g.buckets)
      for (const FlatPart& p : stretches(g, b, impl_->own(b), trained_now))
        parts.push_back(g.grads.narrow(0, impl_->zero >= 2 ? p.compact : p.begin, p.size()));
  return parts;
}

std::vector<FlatRange> DataParallel::ranges(const SlotFilter& wanted) const {
  return owned_ranges(impl_->groups, impl_->rank, impl_->world, impl_->zero, wanted);
}

void DataParallel::publish() {
  NoGrad guard;
  Impl& m = *impl_;
  if (m.zero == 0) return;
  if (m.zero == 3) return m.window->drop();
  recorder::Tag tag("updated parameters");
  std::vector<Work> works;
  for (const Impl::Journey& j : m.journeys) {
    FlatBucket& b = m.bucket_of(j);
    if (b.size() > 0) works.push_back(m.group.all_gather(b.params, Impl::part(b.params, b, m.own(b))));
  }
  for (Work& w : works) w.wait();
}

void DataParallel::forget() {
  if (impl_->zero == 3) impl_->window->drop();
}

void DataParallel::check_current() const {
  for (const FlatGroup& g : impl_->groups)
    for (const FlatBucket& b : g.buckets)
      Impl::for_slots(g, b, [&](const FlatSlot& s) {
        if (Impl::lies_in(s.param, b.params, b, s)) return;
        bool same = s.param.dtype() == g.dtype && s.param.device() == g.params.device();
        XY_FAIL(
            "this optimizer no longer trains '", s.name, "', which ",
            same ? "another optimizer has taken over; a parameter has one optimizer: drop this one, or make both over "
                   "modules that share nothing"
                 : detail::concat("was ", name_of(g.dtype), " on ", g.params.device(), " and is ",
                                  name_of(s.param.dtype()), " on ", s.param.device(),
                                  " now; make the optimizer after module.to(...)"));
      });
}

void DataParallel::take_values() {
  NoGrad guard;
  if (impl_->zero == 3) impl_->window->keep();
  impl_->take_masters(true);
}

void DataParallel::values_taken() { impl_->note_versions(); }

void DataParallel::broadcast_state() {
  NoGrad guard;
  if (impl_->world == 1) return;
  recorder::Tag tag("model state");
  for (const Tensor& t : impl_->state) impl_->group.broadcast(t, 0).wait();
}

}  // namespace xylem
