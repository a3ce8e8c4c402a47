// SPDX-License-Identifier: Apache-2.0
// Every collective against values computed on this rank alone, and against plain MPI. The same suite runs on CPU
// tensors over MPI and on GPU tensors over NCCL; several ranks on one GPU need XY_SHARE_GPU=1.
#define OMPI_SKIP_MPICXX
#include "distributed/group/group.h"

#include <gtest/gtest.h>
#include <mpi.h>

#include <cmath>
#include <thread>

#include "core/device/graph.h"
#include "core/util/check.h"
#include "distributed/group/control.h"
#include "distributed/launch/world.h"
#include "distributed/watchdog/recorder.h"

namespace xylem {
namespace {

const DType kTypes[] = {f64, f32, f16, bf16, i64, i32, i8, u8, boolean};
const int64_t kSizes[] = {0, 1, 7, 4097, 30011};

// What rank r starts with: exact in the integer types, with sums that round in the floating ones.
Tensor fill(int rank, int64_t n, DType t, Device device, int64_t from = 0) {
  std::vector<double> v(n);
  for (int64_t i = 0; i < n; ++i) {
    uint64_t h = (uint64_t(rank) * 1000003 + uint64_t(from + i) + 1) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 29;
    v[i] = t == boolean   ? double(h & 1)
           : t == u8      ? double(h % 50)
           : t == i8      ? double(h % 50) - 25
           : !is_float(t) ? double(h % 100000) - 50000
                          : double(h % 2001) / 1000 - 1;
  }
  return from_vector(v, {n}).to(t).to(device);
}

// What a reduction over n ranks gives, in rank order, rounded once at the end.
std::vector<double> reduced(int ranks, int64_t n, DType t, ReduceOp op, int64_t from = 0) {
  std::vector<std::vector<double>> x;
  for (int r = 0; r < ranks; ++r) x.push_back(fill(r, n, t, Device::cpu(), from).to_vector<double>());
  std::vector<double> y = x[0];
  for (int r = 1; r < ranks; ++r)
    for (int64_t i = 0; i < n; ++i) {
      double v = x[r][i];
      if (op == ReduceOp::min)
        y[i] = std::min(y[i], v);
      else if (op == ReduceOp::max)
        y[i] = std::max(y[i], v);
      else if (t == boolean)
        y[i] = std::max(y[i], v);
      else if (t == f32 || is_half(t))
        y[i] = float(y[i]) + float(v);
      else
        y[i] += v;
    }
  for (double& v : y) {
    if (op == ReduceOp::avg) v = t == f64 ? v / ranks : double(float(v) / float(ranks));
    if (t == i8) v = double(int8_t(int(v)));
    if (t == u8) v = double(uint8_t(int(v)));
  }
  return is_half(t) ? from_vector(y, {n}).to(t).to_vector<double>() : y;
}

// Over MPI to the last bit; NCCL adds in an order of its own.
void expect_values(const Tensor& got, const std::vector<double>& want, const std::string& what) {
  std::vector<double> values = got.to_vector<double>();
  ASSERT_EQ(values.size(), want.size()) << what;
  double tolerance = !got.is_cuda() || !is_float(got.dtype()) ? 0
                     : got.dtype() == f64                     ? 1e-12
                     : got.dtype() == f32                     ? 1e-5
                     : got.dtype() == f16                     ? 1e-2
                                                              : 5e-2;
  for (size_t i = 0; i < want.size(); ++i)
    if (std::abs(values[i] - want[i]) > tolerance * (1 + std::abs(want[i]))) {
      ADD_FAILURE() << what << ": element " << i << " is " << values[i] << ", should be " << want[i];
      return;
    }
}

std::vector<ReduceOp> ops_for(DType t) {
  if (is_float(t)) return {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max};
  return {ReduceOp::sum, ReduceOp::min, ReduceOp::max};
}

std::string label(const char* op, DType t, int64_t n, ReduceOp reduce = ReduceOp::sum) {
  const char* names[] = {"sum", "avg", "min", "max"};
  return std::string(op) + " " + names[int(reduce)] + " " + name_of(t) + " x " + std::to_string(n);
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

INSTANTIATE_TEST_SUITE_P(Cpu, GroupTest, testing::Values(Device::Type::cpu), [](auto&) { return "Mpi"; });
INSTANTIATE_TEST_SUITE_P(Cuda, GroupTest, testing::Values(Device::Type::cuda), [](auto&) { return "Nccl"; });

}  // namespace
}  // namespace xylem
