// SPDX-License-Identifier: Apache-2.0
// Every collective against values computed on this rank alone. The same suite runs on CPU
// tensors over MPI and on GPU tensors over NCCL; several ranks on one GPU need XY_SHARE_GPU=1.
#include "distributed/group/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <thread>

#include "core/util/check.h"
#include "distributed/group/control.h"
#include "distributed/record/recorder.h"
#include "distributed/world/world.h"
#include "tests/dist/values.h"
#include "tests/support.h"

namespace xylem {
namespace {

const DType kTypes[] = {f64, f32, f16, bf16, i64, i32, i8, u8, boolean};
const int64_t kSizes[] = {0, 1, 7, 4097, 30011};

using namespace test;

std::vector<ReduceOp> ops_for(DType t) {
  if (is_float(t)) return {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max};
  return {ReduceOp::sum, ReduceOp::min, ReduceOp::max};
}

class GroupTest : public testing::TestWithParam<Device::Type> {
 protected:
  void SetUp() override {
    if (GetParam() == Device::Type::cpu) return;
    if (!cuda_available()) GTEST_SKIP() << "no GPU";
    device = Device::cuda(world().local_rank % cuda_device_count());
  }
  void TearDown() override {
    for (auto kind : {CollectiveKind::broadcast, CollectiveKind::reduce, CollectiveKind::all_gather,
                      CollectiveKind::reduce_scatter, CollectiveKind::all_reduce})
      collectives::set_algorithm(kind, nullptr);
    collectives::message_limit = int64_t(1) << 30;
  }
  // Runs f with the default algorithms, with rings only and with trees only.
  template <class F>
  void with_each_algorithm(F&& f) {
    for (const char* name : {"default", "ring", "tree"}) {
      SCOPED_TRACE(name);
      if (name != std::string("default"))
        for (auto kind : {CollectiveKind::broadcast, CollectiveKind::reduce, CollectiveKind::all_gather,
                          CollectiveKind::reduce_scatter, CollectiveKind::all_reduce})
          collectives::set_algorithm(kind, [tree = name == std::string("tree")](int64_t, int) {
            return tree ? Algorithm::tree : Algorithm::ring;
          });
      f();
      if (GetParam() == Device::Type::cuda) break;  // NCCL chooses by itself
    }
  }
  Device device;
  Group group = Group::world();
  const int rank = group.rank(), size = group.size();
};

TEST_P(GroupTest, AllReduce) {
  with_each_algorithm([&] {
    for (DType t : kTypes)
      for (int64_t n : kSizes)
        for (ReduceOp op : ops_for(t)) {
          Tensor x = fill(rank, n, t, device);
          group.all_reduce(x, op).wait();
          expect_values(x, reduced(size, n, t, op), label("all_reduce", t, n, op));
        }
  });
}

TEST_P(GroupTest, AllReduceOfManyElements) {
  const int64_t n = 1000003;
  for (DType t : {f32, bf16}) {
    Tensor x = fill(rank, n, t, device);
    group.all_reduce(x, ReduceOp::avg).wait();
    expect_values(x, reduced(size, n, t, ReduceOp::avg), label("all_reduce", t, n, ReduceOp::avg));
  }
}

TEST_P(GroupTest, Reduce) {
  with_each_algorithm([&] {
    for (DType t : kTypes)
      for (int64_t n : kSizes)
        for (int root = 0; root < size; ++root) {
          Tensor x = fill(rank, n, t, device);
          group.reduce(x, root).wait();
          if (rank == root) expect_values(x, reduced(size, n, t, ReduceOp::sum), label("reduce", t, n));
        }
  });
}

TEST_P(GroupTest, Broadcast) {
  with_each_algorithm([&] {
    for (DType t : kTypes)
      for (int64_t n : kSizes)
        for (int root = 0; root < size; ++root) {
          Tensor x = fill(rank, n, t, device);
          group.broadcast(x, root).wait();
          expect_values(x, fill(root, n, t, {}).to_vector<double>(), label("broadcast", t, n));
        }
  });
}

TEST_P(GroupTest, AllGather) {
  with_each_algorithm([&] {
    for (DType t : kTypes)
      for (int64_t n : kSizes)
        for (bool in_place : {false, true}) {
          Tensor y = zeros({size * n}, t, device), x = in_place ? y.narrow(0, rank * n, n) : empty({n}, t, device);
          x.copy_(fill(rank, n, t, device));
          group.all_gather(y, x).wait();
          std::vector<double> want;
          for (int r = 0; r < size; ++r)
            for (double v : fill(r, n, t, {}).to_vector<double>()) want.push_back(v);
          expect_values(y, want, label("all_gather", t, n));
        }
  });
}

TEST_P(GroupTest, ReduceScatter) {
  with_each_algorithm([&] {
    for (DType t : kTypes)
      for (int64_t n : kSizes)
        for (bool in_place : {false, true}) {
          ReduceOp op = is_float(t) && in_place ? ReduceOp::avg : ReduceOp::sum;
          Tensor x = fill(rank, size * n, t, device);
          Tensor y = in_place ? x.narrow(0, rank * n, n) : empty({n}, t, device);
          group.reduce_scatter(y, x, op).wait();
          expect_values(y, reduced(size, n, t, op, rank * n), label("reduce_scatter", t, n, op));
        }
  });
}

TEST_P(GroupTest, AllToAll) {
  for (DType t : kTypes)
    for (int64_t n : {0, 1, 7, 30011}) {
      Tensor x = fill(rank, size * n, t, device), y = zeros({size * n}, t, device);
      group.all_to_all(y, x).wait();
      std::vector<double> want;
      for (int r = 0; r < size; ++r)
        for (double v : fill(r, n, t, {}, rank * n).to_vector<double>()) want.push_back(v);
      expect_values(y, want, label("all_to_all", t, n));
    }
}

// Rank r sends (r + 1) * (s + 2) % 5 * 1000 elements to rank s: some parts are empty.
TEST_P(GroupTest, AllToAllOfUnevenParts) {
  auto part = [](int from, int to) { return int64_t((from + 1) * (to + 2) % 5) * 1000; };
  std::vector<int64_t> sent, received;
  int64_t in = 0, out = 0;
  for (int r = 0; r < size; ++r) {
    sent.push_back(part(rank, r)), in += sent.back();
    received.push_back(part(r, rank)), out += received.back();
  }
  Tensor x = fill(rank, in, bf16, device), y = zeros({out}, bf16, device);
  group.all_to_all(y, x, received, sent).wait();
  std::vector<double> want;
  for (int r = 0; r < size; ++r) {
    int64_t begin = 0;
    for (int s = 0; s < rank; ++s) begin += part(r, s);
    for (double v : fill(r, part(r, rank), bf16, {}, begin).to_vector<double>()) want.push_back(v);
  }
  expect_values(y, want, "all_to_all of uneven parts");
}

TEST_P(GroupTest, SendAndReceive) {
  if (size == 1) GTEST_SKIP() << "needs two ranks";
  for (int64_t n : kSizes) {
    Tensor x = fill(rank, n, f32, device), y = zeros({n}, f32, device);
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    group.send_receive(x, next, y, before).wait();
    expect_values(y, fill(before, n, f32, {}).to_vector<double>(), label("send_receive", f32, n));
    y.zero_();
    if (rank == 0) {  // a chain, one message after the other
      group.send(x, next).wait();
    } else {
      group.receive(y, before).wait();
      expect_values(y, fill(before, n, f32, {}).to_vector<double>(), label("receive", f32, n));
      if (next != 0) group.send(x, next).wait();
    }
  }
}

// Neither side of a crossing has to think about the order: sends leave the queue at once.
TEST_P(GroupTest, SendsMayCross) {
  if (size == 1 || device.is_cuda()) GTEST_SKIP() << "needs two ranks, on the CPU";
  const int peer = size - 1 - rank;  // the middle one of an odd number has none
  const int64_t n = 300000;          // too long to be sent before it is asked for
  std::vector<Work> works;
  Tensors received;
  for (int i = 0; i < 5 && peer != rank; ++i) {
    works.push_back(group.send(fill(rank * 10 + i, n, f32, device), peer));
    received.push_back(zeros({n}, f32, device));
    works.push_back(group.receive(received.back(), peer));
  }
  Tensor sum = ones({3}, f32, device);
  group.all_reduce(sum).wait();  // overtakes them
  for (Work& w : works) w.wait();
  for (size_t i = 0; i < received.size(); ++i)
    expect_values(received[i], fill(peer * 10 + int(i), n, f32, {}).to_vector<double>(), "crossing");
  expect_values(sum, {double(size), double(size), double(size)}, "sum");
}

// Sums do not depend on how the elements are divided among the ranks, nor on the algorithm.
TEST_P(GroupTest, ReduceScatterAndGatherEqualsAllReduce) {
  if (device.is_cuda()) GTEST_SKIP() << "NCCL's order is its own";
  for (DType t : {f32, bf16})
    for (int64_t part : {1, 777, 20011}) {
      Tensor x = fill(rank, part * size, t, device), y = x.clone(), mine = y.narrow(0, rank * part, part);
      with_each_algorithm([&] {
        Tensor all = x.clone();
        group.all_reduce(all, ReduceOp::avg).wait();
        y.copy_(x);
        group.reduce_scatter(mine, y, ReduceOp::avg).wait();
        group.all_gather(y, mine).wait();
        EXPECT_EQ(y.to_vector<float>(), all.to_vector<float>());
      });
    }
}

// MPI counts in int: long messages travel in parts.
TEST_P(GroupTest, MessagesBeyondTheLimitOfMpi) {
  collectives::message_limit = 1000;
  const int64_t n = 5001;
  with_each_algorithm([&] {
    Tensor x = fill(rank, n, f32, device), parts = fill(rank, n * size, f32, device),
           all = zeros({n * size}, f32, device), part = zeros({n}, f32, device);
    group.all_reduce(x).wait();
    expect_values(x, reduced(size, n, f32, ReduceOp::sum), "all_reduce");
    group.reduce_scatter(part, parts).wait();
    expect_values(part, reduced(size, n, f32, ReduceOp::sum, rank * n), "reduce_scatter");
    group.all_gather(all, fill(rank, n, f32, device)).wait();
    std::vector<double> want;
    for (int r = 0; r < size; ++r)
      for (double v : fill(r, n, f32, {}).to_vector<double>()) want.push_back(v);
    expect_values(all, want, "all_gather");
    group.all_to_all(all, parts).wait();
    want.clear();
    for (int r = 0; r < size; ++r)
      for (double v : fill(r, n, f32, {}, rank * n).to_vector<double>()) want.push_back(v);
    expect_values(all, want, "all_to_all");
    group.broadcast(part, size - 1).wait();
    expect_values(part, reduced(size, n, f32, ReduceOp::sum, (size - 1) * n), "broadcast");
    if (size == 1) return;
    group.send_receive(x, (rank + 1) % size, part, (rank + size - 1) % size).wait();
    expect_values(part, reduced(size, n, f32, ReduceOp::sum), "send_receive");
  });
}

// XYLEM_TEST_BIG=1: seven gigabytes a rank, and minutes on a CPU.
TEST_P(GroupTest, MoreThanTwoToThe31Elements) {
  if (!std::getenv("XYLEM_TEST_BIG")) GTEST_SKIP() << "XYLEM_TEST_BIG=1 runs it";
  const int64_t border = int64_t(1) << 31, n = border + 4099;
  const std::vector<int64_t> marks = {0, border / 2, border - 1, border, border + 1, n - 1};
  auto mark = [&](int r, size_t i) { return double(7 * r + int(i) + 2); };
  auto begin = [&](Tensor& x, int r) {
    x.fill_(1);
    for (size_t i = 0; i < marks.size(); ++i) x.narrow(0, marks[i], 1).fill_(mark(r, i));
  };
  // `rest` everywhere but at the marks.
  auto expect = [&](const Tensor& x, double rest, auto&& want, const char* what) {
    Tensor host = x.to(Device::cpu());
    const auto* values = static_cast<const uint8_t*>(host.raw());
    for (size_t i = 0; i < marks.size(); ++i) EXPECT_EQ(values[marks[i]], want(i)) << what << i;
    int64_t others = std::count(values, values + n, uint8_t(rest));
    EXPECT_EQ(others, n - int64_t(marks.size())) << what;
  };
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  auto sum = [&](size_t i) {
    double total = 0;
    for (int r = 0; r < size; ++r) total += mark(r, i);
    return total;
  };
  Tensor x = empty({n}, u8, device);
  begin(x, rank);
  group.broadcast(x, size - 1).wait();
  expect(
      x, 1, [&](size_t i) { return mark(size - 1, i); }, "broadcast ");
  begin(x, rank);
  group.all_reduce(x).wait();
  expect(x, size, sum, "all_reduce ");
  if (size == 1) return;
  begin(x, rank);
  Tensor y = empty({n}, u8, device);
  group.send_receive(x, next, y, before).wait();
  expect(
      y, 1, [&](size_t i) { return mark(before, i); }, "send_receive ");
  y = {};
  Tensor all = empty({size * n}, u8, device);
  group.all_gather(all, x).wait();
  for (int r = 0; r < size; ++r)
    expect(
        all.narrow(0, r * n, n), 1, [&](size_t i) { return mark(r, i); }, "all_gather ");
  group.reduce_scatter(x, all).wait();
  expect(
      x, size, [&](size_t i) { return size * mark(rank, i); }, "reduce_scatter ");
}

TEST_P(GroupTest, Split) {
  Group half = group.split(rank % 2, -rank, "half");  // even and odd ranks, in reverse order
  std::vector<int> members;
  for (int r = size - 1; r >= 0; --r)
    if (r % 2 == rank % 2) members.push_back(r);
  EXPECT_EQ(half.world_ranks(), members);
  EXPECT_EQ(half.world_rank(), world().rank);
  EXPECT_EQ(half.name(), size == 1 ? "world/half" : "world/half." + std::to_string(rank % 2));
  Tensor x = full({9}, rank, f32, device);
  half.all_reduce(x).wait();
  double sum = 0;
  for (int r : members) sum += r;
  expect_values(x, std::vector<double>(9, sum), "all_reduce of half");
  Tensor all = zeros({half.size()}, f32, device);
  half.all_gather(all, full({1}, rank, f32, device)).wait();
  expect_values(all, {members.begin(), members.end()}, "all_gather of half");

  Group some = group.split(rank == 0 ? -1 : 7, rank, "some");  // rank 0 stays away
  EXPECT_EQ(some.size(), rank == 0 ? 1 : size - 1);
  EXPECT_EQ(some.rank(), rank == 0 ? 0 : rank - 1);
  EXPECT_EQ(some.gather_integers(rank).size(), size_t(some.size()));
  Group whole = half.split(0, half.rank(), "again");
  EXPECT_EQ(whole.world_ranks(), members);
  EXPECT_EQ(whole.name(), half.name() + "/again");
  EXPECT_EQ(half.split(0, 0, "again").name(), half.name() + "/again~2");
}

TEST_P(GroupTest, ManyCollectivesAtOnce) {
  Group other = group.split(0, size - rank, "other");
  std::vector<Work> works;
  Tensors sums, gathered;
  for (int i = 0; i < 40; ++i) {
    sums.push_back(fill(rank, 1 + i * 500, f32, device, i));
    works.push_back(group.all_reduce(sums.back()));
    gathered.push_back(zeros({size * (i + 1)}, i32, device));
    works.push_back(other.all_gather(gathered.back(), full({i + 1}, rank * 100 + i, i32, device)));
  }
  while (!works.empty()) works.pop_back();  // the last first
  for (int i = 0; i < 40; ++i) {
    expect_values(sums[i], reduced(size, 1 + i * 500, f32, ReduceOp::sum, i), "sum " + std::to_string(i));
    std::vector<double> want;
    for (int r = size - 1; r >= 0; --r) want.insert(want.end(), i + 1, r * 100 + i);
    expect_values(gathered[i], want, "gathered " + std::to_string(i));
  }
}

// The caller goes on while the other ranks are not even there.
TEST_P(GroupTest, CallsDoNotWait) {
  Group fresh = group.split(0, rank, "fresh");  // with XY_SHARE_GPU every 32nd call of a group waits
  Tensor x = fill(rank, 50000, f32, device);
  fresh.all_reduce(x.clone()).wait();  // connects
  synchronize(device);
  group.barrier();
  auto begin = std::chrono::steady_clock::now();
  if (rank == size - 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  auto called = std::chrono::steady_clock::now();
  Work work = fresh.all_reduce(x);
  if (rank != size - 1) {
    EXPECT_FALSE(work.done());
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(200));
  } else {
    EXPECT_GE(called - begin, std::chrono::milliseconds(300));
  }
  work.wait();
  expect_values(x, reduced(size, 50000, f32, ReduceOp::sum), "all_reduce");
}

TEST_P(GroupTest, WorkIsJoinedByItsDestructorAndByAssignment) {
  Tensor x = fill(rank, 20000, f32, device), y = x.clone(), z = x.clone();
  { Work work = group.all_reduce(x); }
  Work work = group.all_reduce(y);
  work = group.all_reduce(z);
  Work moved = std::move(work);
  EXPECT_TRUE(work.done());
  work.wait();
  moved.wait();
  moved.wait();
  for (const Tensor& t : {x, y, z}) expect_values(t, reduced(size, 20000, f32, ReduceOp::sum), "all_reduce");
}

// The tensors of a collective under way live on without their owner.
TEST_P(GroupTest, WorkKeepsItsTensors) {
  Tensor y = zeros({size * 50000}, f32, device);
  {
    Work work = group.all_gather(y, fill(rank, 50000, f32, device));
    for (int i = 0; i < 4; ++i) full({50000}, -1, f32, device);  // would reuse the memory
  }
  for (int r = 0; r < size; ++r)
    expect_values(y.narrow(0, r * 50000, 50000), fill(r, 50000, f32, {}).to_vector<double>(), "all_gather");
}

TEST_P(GroupTest, RecorderSeesCollectives) {
  if (size == 1) GTEST_SKIP() << "a group of one sends nothing";
  Group mine = group.split(0, rank, "recorded");
  {
    recorder::Tag tag("bucket 3");
    mine.all_reduce(ones({100000}, f32, device)).wait();
  }
  mine.broadcast(ones({5}, i32, device), 0).wait();
  mine.broadcast(zeros({0}, i32, device), 0).wait();
  synchronize(device);
  mine.barrier();
  std::vector<recorder::Collective> seen;
  for (int i = 0; i < 200 && seen.size() < 5; ++i) {  // a GPU's times arrive a little later
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    seen.clear();
    for (const recorder::Collective& c : recorder::recent())
      if (c.group == mine.name() && c.finished_ns && c.op != "start_nccl") seen.push_back(c);
  }
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_EQ(seen[0].op, "all_reduce");
  EXPECT_EQ(seen[0].tag, "bucket 3");
  EXPECT_EQ(seen[0].count, 100000);
  if (device.is_cuda())  // NCCL's choice, where the tuner sees it
    EXPECT_THAT(seen[0].algorithm, testing::AnyOf("nccl", testing::StartsWith("ring"), testing::StartsWith("tree")));
  else
    EXPECT_EQ(seen[0].algorithm, "ring");
  EXPECT_EQ(seen[1].op, "broadcast");
  EXPECT_EQ(seen[1].dtype, i32);
  EXPECT_EQ(seen[3].op, "barrier");
  for (const recorder::Collective& c : seen) {
    EXPECT_LE(c.enqueued_ns, c.started_ns);
    EXPECT_LE(c.started_ns, c.finished_ns);
  }
  EXPECT_LE(seen[0].finished_ns, seen[1].started_ns);  // one after the other
}

TEST_P(GroupTest, SeesWhenASavedTensorIsOverwritten) {
  if (size == 1) GTEST_SKIP() << "a group of one writes nothing";
  Tensor x = ones({4}, f32, device), before = x.detach();
  auto version = x.version();
  group.all_reduce(x).wait();
  EXPECT_GT(before.version(), version);
}

TEST_P(GroupTest, Errors) {
  using testing::HasSubstr;
  Tensor x = zeros({4, 6}, f32, device), many = zeros({size * 24 + 1}, f32, device);
  EXPECT_THAT(error_of([&] { group.all_reduce(Tensor()).wait(); }), HasSubstr("undefined"));
  EXPECT_THAT(error_of([&] { group.all_reduce(x.transpose(0, 1)).wait(); }),
              HasSubstr("all_reduce: the tensor of shape [6, 4] must be contiguous"));
  EXPECT_THAT(error_of([&] { group.all_reduce(zeros({2}, i32, device), ReduceOp::avg).wait(); }),
              HasSubstr("avg needs a floating point type, not i32"));
  EXPECT_THAT(error_of([&] { group.broadcast(x, size).wait(); }), HasSubstr("root " + std::to_string(size)));
  EXPECT_THAT(error_of([&] { group.reduce(x, -1).wait(); }), HasSubstr("root -1"));
  EXPECT_THAT(error_of([&] { group.all_gather(many, x).wait(); }),
              HasSubstr("times the elements of the input of shape [4, 6]"));
  EXPECT_THAT(error_of([&] { group.reduce_scatter(x, many).wait(); }),
              HasSubstr("times the elements of the output of shape [4, 6]"));
  EXPECT_THAT(error_of([&] { group.all_gather(zeros({size * 24}, f64, device), x).wait(); }),
              HasSubstr("output (f64) and input (f32)"));
  EXPECT_THAT(error_of([&] {
                group.all_to_all(x, x, std::vector<int64_t>(size, 1), std::vector<int64_t>(size, 24 / size)).wait();
              }),
              HasSubstr("receive: the parts have"));
  EXPECT_THAT(error_of([&] { group.send(x, rank).wait(); }), HasSubstr("has no peer " + std::to_string(rank)));
  EXPECT_THAT(error_of([&] { group.receive(x, size).wait(); }), HasSubstr("has no peer"));
  group.barrier();
}

INSTANTIATE_TEST_SUITE_P(Cpu, GroupTest, testing::Values(Device::Type::cpu), [](auto&) { return "Mpi"; });
INSTANTIATE_TEST_SUITE_P(Cuda, GroupTest, testing::Values(Device::Type::cuda), [](auto&) { return "Nccl"; });

}  // namespace
}  // namespace xylem
