// SPDX-License-Identifier: Apache-2.0
// Beside the library's own MPI: equal results, equal ideas of who is who; host values; and, on a GPU, graph capture.
#include <gtest/gtest.h>
#define OMPI_SKIP_MPICXX
#include <mpi.h>

#include <cmath>

#include "core/device/graph.h"
#include "distributed/world/world.h"
#include "tests/dist/values.h"

namespace xylem {
namespace {

using namespace test;

TEST(HostValues, AreGatheredAndBroadcast) {
  Group group = Group::world();
  const int rank = group.rank(), size = group.size();
  Tensor big = full({300000}, rank, f32);
  Work work = group.all_reduce(big);  // under way meanwhile
  auto text = [](int r) { return r == 1 ? std::string() : std::string(size_t(r) * 70000 + 3, char('a' + r)) + '\0'; };
  auto all = group.gather_strings(text(rank));
  ASSERT_EQ(all.size(), size_t(size));
  for (int r = 0; r < size; ++r) EXPECT_EQ(all[r], text(r)) << r;
  for (int root = 0; root < size; ++root) EXPECT_EQ(group.broadcast_string(text(rank), root), text(root));
  auto numbers = group.gather_integers(int64_t(rank) << 40);
  for (int r = 0; r < size; ++r) EXPECT_EQ(numbers[r], int64_t(r) << 40);
  work.wait();
  EXPECT_EQ(big[5].item(), size * (size - 1) / 2);
}

// The library's own implementation, on the same values.
TEST(PlainMpi, Agrees) {
  Group group = Group::world();
  if (!world().mpi) GTEST_SKIP() << "no launcher";
  const int size = group.size(), rank = group.rank(), n = 5003;
  auto same = [](const Tensor& got, const Tensor& want, const std::string& what) {
    auto a = got.to_vector<double>(), b = want.to_vector<double>();
    for (size_t i = 0; i < a.size(); ++i)
      ASSERT_NEAR(a[i], b[i], got.dtype() == f32 ? 1e-5 : 1e-12) << what << ", element " << i;
  };
  for (auto [t, type] : {std::pair{f64, MPI_DOUBLE},
                         {f32, MPI_FLOAT},
                         {i64, MPI_INT64_T},
                         {i32, MPI_INT32_T},
                         {i8, MPI_INT8_T},
                         {u8, MPI_UINT8_T}}) {
    for (auto [op, mpi_op] : {std::pair{ReduceOp::sum, MPI_SUM}, {ReduceOp::min, MPI_MIN}, {ReduceOp::max, MPI_MAX}}) {
      Tensor x = fill(rank, n, t, {}), want = empty_like(x);
      MPI_Allreduce(x.raw(), want.raw(), n, type, mpi_op, MPI_COMM_WORLD);
      group.all_reduce(x, op).wait();
      same(x, want, label("all_reduce", t, n, op));
      Tensor parts = fill(rank, n * size, t, {}), part = empty({n}, t), want_part = empty({n}, t);
      MPI_Reduce_scatter_block(parts.raw(), want_part.raw(), n, type, mpi_op, MPI_COMM_WORLD);
      group.reduce_scatter(part, parts, op).wait();
      same(part, want_part, label("reduce_scatter", t, n, op));
      Tensor y = fill(rank, n, t, {}), want_y = empty_like(y);
      MPI_Reduce(y.raw(), want_y.raw(), n, type, mpi_op, size - 1, MPI_COMM_WORLD);
      group.reduce(y, size - 1, op).wait();
      if (rank == size - 1) same(y, want_y, label("reduce", t, n, op));
    }
    Tensor x = fill(rank, n, t, {}), all = empty({n * size}, t), want = empty_like(all),
           parts = fill(rank, n * size, t, {});
    MPI_Allgather(x.raw(), n, type, want.raw(), n, type, MPI_COMM_WORLD);
    group.all_gather(all, x).wait();
    same(all, want, label("all_gather", t, n));
    MPI_Alltoall(parts.raw(), n, type, want.raw(), n, type, MPI_COMM_WORLD);
    group.all_to_all(all, parts).wait();
    same(all, want, label("all_to_all", t, n));
    Tensor y = x.clone();
    MPI_Bcast(y.raw(), n, type, size - 1, MPI_COMM_WORLD);
    group.broadcast(x, size - 1).wait();
    same(x, y, label("broadcast", t, n));
    if (size == 1) continue;
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    Tensor mine = fill(rank, n, t, {}), got = empty_like(mine), sent = empty_like(mine);
    MPI_Sendrecv(mine.raw(), n, type, next, 5, sent.raw(), n, type, before, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    group.send_receive(mine, next, got, before).wait();
    same(got, sent, label("send_receive", t, n));
  }
  // What MPI does not know, in f32 and rounded.
  for (DType t : {f16, bf16}) {
    Tensor x = fill(rank, n, t, {}), wide = x.to(f32), want = empty_like(wide);
    MPI_Allreduce(wide.raw(), want.raw(), n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    group.all_reduce(x).wait();
    auto a = x.to_vector<double>(), b = want.to_vector<double>();
    for (size_t i = 0; i < a.size(); ++i)
      ASSERT_NEAR(a[i], b[i], (t == f16 ? 1.0 / 2048 : 1.0 / 256) * (std::abs(b[i]) + 1e-3)) << t << i;
  }
}

TEST(World, AgreesWithMpi) {
  const World& w = world();
  if (!w.mpi) GTEST_SKIP() << "no launcher";
  int rank = -1, size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  EXPECT_EQ(w.rank, rank);
  EXPECT_EQ(w.size, size);
  EXPECT_EQ(w.launcher, "mpirun");
  EXPECT_GE(w.local_rank, 0);
  EXPECT_LT(w.local_rank, w.local_size);
  EXPECT_LT(w.node, w.nodes);
  EXPECT_FALSE(w.host.empty());
}

// A step with a collective in it is captured once and replayed.
TEST(CudaGroup, IsCapturedInAGraph) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  Group group = Group::world();
  const Device device = Device::cuda(world().local_rank % cuda_device_count());
  Tensor x = full({1000}, group.rank() + 1, f32, device), y = zeros({1000}, f32, device);
  auto step = [&] {
    y.copy_(x);
    Work work = group.all_reduce(y);
    work.wait();
    x.add_(y, 0.5);
  };
  step();  // makes the communicator
  synchronize(device);
  double mine = group.rank() + 1, all = group.size() * (group.size() + 1) / 2.0;
  auto advance = [&] { mine += all / 2, all += group.size() * all / 2; };
  advance();
  CudaGraph graph;
  graph.capture(device, step);
  for (int i = 0; i < 3; ++i) graph.replay(), advance();
  EXPECT_NEAR(x[0].item(), mine, 1e-5 * mine);
  EXPECT_NEAR(x[999].item(), mine, 1e-5 * mine);
  group.barrier();
}

}  // namespace
}  // namespace xylem
