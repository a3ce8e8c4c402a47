// SPDX-License-Identifier: Apache-2.0
// Collectives as operations: values, and gradients against differences of the loss summed over all ranks.
#include "distributed/group/collectives.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/autograd/autograd.h"
#include "distributed/world/world.h"
#include "ops/ops.h"

namespace xylem {
namespace {

using Operation = std::function<Tensor(const Tensor&, const Group&)>;

struct Case {
  const char* name;
  Operation run;
};
const Case kCases[] = {
    {"all_reduce", [](const Tensor& x, const Group& g) { return all_reduce(x, g); }},
    {"all_gather 0", [](const Tensor& x, const Group& g) { return all_gather(x, g); }},
    {"all_gather 1", [](const Tensor& x, const Group& g) { return all_gather(x, g, 1); }},
    {"all_gather -1", [](const Tensor& x, const Group& g) { return all_gather(x, g, -1); }},
    {"reduce_scatter 0", [](const Tensor& x, const Group& g) { return reduce_scatter(x, g); }},
    {"reduce_scatter 1", [](const Tensor& x, const Group& g) { return reduce_scatter(x, g, 1); }},
    {"all_to_all 0", [](const Tensor& x, const Group& g) { return all_to_all(x, g); }},
    {"all_to_all 2", [](const Tensor& x, const Group& g) { return all_to_all(x, g, 2); }},
    {"broadcast", [](const Tensor& x, const Group& g) { return broadcast(x, g, g.size() - 1); }},
};

class CollectivesTest : public testing::TestWithParam<Device::Type> {
 protected:
  void SetUp() override {
    if (GetParam() == Device::Type::cpu) return;
    if (!cuda_available()) GTEST_SKIP() << "no GPU";
    device = Device::cuda(world().local_rank % cuda_device_count());
  }
  // Of this rank, in every dimension divisible by the ranks, and not contiguous.
  Tensor input() const {
    return sample_normal({2 * size, 3 * size, size}, 1, 10 + rank).to(device).permute({0, 2, 1}).transpose(1, 2);
  }
  Device device;
  Group group = Group::world();
  const int rank = group.rank(), size = group.size();
};

TEST_P(CollectivesTest, Values) {
  auto of = [&](int r) { return sample_normal({2 * size, 3 * size, size}, 1, 10 + r); };
  Tensor total = of(0);
  Tensors all{of(0)};
  for (int r = 1; r < size; ++r) total = total + of(r), all.push_back(of(r));
  auto near = [&](const Tensor& got, const Tensor& want, const char* what) {
    ASSERT_EQ(got.shape(), want.shape()) << what;
    auto a = got.to_vector<double>(), b = want.contiguous().to_vector<double>();
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-12) << what << " element " << i;
  };
  Tensor x = input();
  near(all_reduce(x, group), total, "all_reduce");
  near(leave_parallel(x, group), total, "leave_parallel");
  near(enter_parallel(x, group), all[rank], "enter_parallel");
  near(broadcast(x, group, size - 1), all[size - 1], "broadcast");
  for (int dim = 0; dim < 3; ++dim) {
    int64_t part = x.size(dim) / size;
    near(all_gather(x, group, dim), cat(all, dim), "all_gather");
    near(reduce_scatter(x, group, dim), total.narrow(dim, rank * part, part), "reduce_scatter");
    Tensors parts;
    for (const Tensor& t : all) parts.push_back(t.narrow(dim, rank * part, part));
    near(all_to_all(x, group, dim), cat(parts, dim), "all_to_all");
  }
}

TEST_P(CollectivesTest, GradientsMatchDifferences) {
  for (const Case& c : kCases) {
    auto weight = [&](const Tensor& y) { return sample_normal(y.shape(), 1, 50 + rank).to(device); };
    // The loss of all ranks; nonlinear, so that second terms show.
    auto loss = [&](const Tensor& x) {
      NoGrad guard;
      Tensor y = c.run(x, group);
      Tensor mine = sum(y * y * weight(y));
      group.all_reduce(mine).wait();
      return mine.item();
    };
    Tensor x = input().clone().set_requires_grad();
    Tensor y = c.run(x, group);
    sum(y * y * weight(y)).backward();
    Tensor grad = x.grad();
    ASSERT_TRUE(grad.defined()) << c.name;
    for (int mover = 0; mover < size; ++mover) {
      Tensor v = sample_normal(x.shape(), 1, 90 + mover).to(device);
      const double h = 1e-5, on = mover == rank ? 1 : 0;
      double numeric = (loss(x.detach() + v * (h * on)) - loss(x.detach() - v * (h * on))) / (2 * h);
      Tensor analytic = sum(grad * v) * on;
      group.all_reduce(analytic).wait();
      EXPECT_NEAR(analytic.item(), numeric, 1e-6 * (1 + std::abs(numeric))) << c.name << ", rank " << mover << " moves";
    }
  }
}

// A two-layer network whose hidden units are spread over the ranks equals the one on a single rank.
TEST_P(CollectivesTest, ParallelRegionEqualsItsSerialForm) {
  const int64_t hidden = 4 * size;
  auto make = [&](const Shape& s, uint64_t seed) { return sample_normal(s, 1, seed).to(device); };
  Tensor x = make({5, 3}, 1).set_requires_grad(), a = make({hidden, 3}, 2), b = make({2, hidden}, 3);
  Tensor y = linear(tanh(linear(x, a)), b);
  Tensor want = grad({sum(y * y)}, {x})[0];
  Tensor a_part = a.narrow(0, rank * 4, 4).contiguous(), b_part = b.narrow(1, rank * 4, 4).contiguous();
  Tensor z = leave_parallel(linear(tanh(linear(enter_parallel(x, group), a_part)), b_part), group);
  Tensor got = grad({sum(z * z)}, {x})[0];
  auto p = got.to_vector<double>(), q = want.to_vector<double>();
  for (size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(p[i], q[i], 1e-10 * (1 + std::abs(q[i])));
}

TEST_P(CollectivesTest, RefusesShapesThatDoNotDivide) {
  if (size == 1) GTEST_SKIP() << "needs two ranks";
  try {
    reduce_scatter(zeros({size + 1, 2}, f32, device), group);
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("does not divide among"), std::string::npos) << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, CollectivesTest, testing::Values(Device::Type::cpu), [](auto&) { return "Mpi"; });
INSTANTIATE_TEST_SUITE_P(Cuda, CollectivesTest, testing::Values(Device::Type::cuda), [](auto&) { return "Nccl"; });

}  // namespace
}  // namespace xylem
