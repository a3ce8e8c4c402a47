// SPDX-License-Identifier: Apache-2.0
#include "core/device/allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/autograd/autograd.h"
#include "core/device/graph.h"
#include "core/tensor/tensor.h"

namespace xylem {
namespace {

class AllocatorTest : public testing::TestWithParam<bool> {
 protected:
  Device device() const { return GetParam() ? Device::cuda() : Device::cpu(); }
  void SetUp() override {
    if (GetParam() && !cuda_available()) GTEST_SKIP() << "no GPU";
    allocator(device()).release_cached();
  }
  void TearDown() override {
    if (!IsSkipped()) allocator(device()).set_limit(0);
  }
};

TEST_P(AllocatorTest, ReusesFreedBlocksWithoutSystemCalls) {
  Allocator& a = allocator(device());
  { Tensor warm = empty({1 << 20}, f32, device()); }
  int64_t calls = a.stats().system_calls, live = a.stats().allocated;
  for (int i = 0; i < 100; ++i) Tensor t = empty({(1 << 20) - i}, f32, device());
  EXPECT_EQ(a.stats().system_calls, calls);
  EXPECT_EQ(a.stats().allocated, live);
}

TEST_P(AllocatorTest, NeighboursMergeSoThatALargeBlockFitsAgain) {
  Allocator& a = allocator(device());
  void* first;
  {
    Tensor big = empty({32 << 20}, u8, device());
    first = big.raw();
  }
  int64_t calls = a.stats().system_calls;
  {
    Tensors parts;
    for (int i = 0; i < 4; ++i) parts.push_back(empty({8 << 20}, u8, device()));
  }
  Tensor again = empty({32 << 20}, u8, device());
  EXPECT_EQ(again.raw(), first);
  EXPECT_EQ(a.stats().system_calls, calls);
}

TEST_P(AllocatorTest, CountsAndPeaks) {
  Allocator& a = allocator(device());
  a.reset_peak();
  int64_t before = a.stats().allocated;
  { Tensor t = empty({3 << 20}, u8, device()); }
  EXPECT_EQ(a.stats().allocated, before);
  EXPECT_GE(a.stats().peak_allocated, before + (3 << 20));
  EXPECT_GE(a.stats().reserved, a.stats().allocated);
}

TEST_P(AllocatorTest, BlocksAreAlignedAndDistinct) {
  Tensors all;
  for (int i = 1; i < 200; i += 7) all.push_back(full({i}, i, u8, device()));
  for (const Tensor& t : all) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.raw()) % 64, 0u);
    EXPECT_EQ(t.to_vector<int>(), std::vector<int>(t.numel(), int(t.numel())));
  }
}

TEST_P(AllocatorTest, OutOfMemoryNamesTheLargestTensorsAndRecovers) {
  Allocator& a = allocator(device());
  Tensor big;
  {
    OpScope scope("hungry_op");
    big = empty({40 << 20}, u8, device());
  }
  a.set_limit(a.stats().reserved + (1 << 20));
  try {
    empty({64 << 20}, u8, device());
    FAIL() << "should be out of memory";
  } catch (const OutOfMemory& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("64 MiB wanted"));
    EXPECT_THAT(e.what(), testing::HasSubstr("40 MiB made by hungry_op"));
  }
  big = {};
  Tensor fits = empty({39 << 20}, u8, device());
  EXPECT_TRUE(fits.defined());
}

TEST_P(AllocatorTest, NothingGoesBackToTheSystemWhileAPoolIsFilled) {
  Allocator& a = allocator(device());
  { Tensor cached = empty({32 << 20}, u8, device()); }
  const int64_t reserved = a.stats().reserved;
  a.set_limit(reserved + (4 << 20));
  a.begin_pool(~uint64_t(0));
  EXPECT_THROW(empty({32 << 20}, u8, device()), OutOfMemory);
  a.release_cached();
  EXPECT_EQ(a.stats().reserved, reserved);
  a.end_pool();
  EXPECT_TRUE(empty({33 << 20}, u8, device()).defined());
  a.release_pool(~uint64_t(0));
}

TEST_P(AllocatorTest, APoolIsOfTheThreadThatFillsIt) {
  Allocator& a = allocator(device());
  void* cached = empty({32 << 20}, u8, device()).raw();
  a.begin_pool(~uint64_t(0));
  void *here = empty({32 << 20}, u8, device()).raw(), *elsewhere = nullptr;
  std::thread([&] { elsewhere = empty({32 << 20}, u8, device()).raw(); }).join();
  a.end_pool();
  a.release_pool(~uint64_t(0));
  EXPECT_NE(here, cached);
  EXPECT_EQ(elsewhere, cached);
}

INSTANTIATE_TEST_SUITE_P(Devices, AllocatorTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Cuda" : "Cpu"; });

TEST(CudaGraph, ReplaysWithFreshInputs) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  Device gpu = Device::cuda();
  Tensor in = full({1000}, 1, f32, gpu), out;
  CudaGraph graph;
  graph.capture(gpu, [&] {
    Tensor twice = in.clone();
    twice.add_(in);
    out = twice.clone();
  });
  EXPECT_GE(graph.node_count(), 3u);
  in.fill_(5);
  graph.replay();
  EXPECT_EQ(out.to_vector<float>(), std::vector<float>(1000, 10));
}

TEST(CudaGraph, RunningOutOfMemoryDuringCaptureEndsItCleanly) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  Device gpu = Device::cuda();
  Allocator& a = allocator(gpu);
  { Tensor cached = empty({64 << 20}, u8, gpu); }
  a.set_limit(a.stats().reserved + (1 << 20));
  CudaGraph graph;
  EXPECT_THROW(graph.capture(gpu, [&] { empty({64 << 20}, u8, gpu); }), OutOfMemory);
  a.set_limit(0);
  EXPECT_EQ(full({3}, 2, f32, gpu).to_vector<float>(), std::vector<float>(3, 2));
}

TEST(CudaGraph, PinnedMemoryThatItReadsIsItsOwn) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  Device gpu = Device::cuda();
  Tensor a = zeros({1 << 20}, u8, gpu), b = zeros({1 << 20}, u8, gpu);
  CudaGraph graph;
  graph.capture(gpu, [&] {
    a.copy_(empty_pinned(a.shape(), u8).fill_(1), true);
    b.copy_(empty_pinned(b.shape(), u8).fill_(2), true);
  });
  Tensor other = empty_pinned(a.shape(), u8).fill_(9);
  graph.replay();
  EXPECT_EQ(a[0].item<int>(), 1);
  EXPECT_EQ(b[0].item<int>(), 2);
}

TEST(GraphCaptureOnCpu, IsRefused) {
  EXPECT_THROW(CudaGraph().capture(Device::cpu(), [] {}), Error);
}

TEST(CudaStream, EventsOrderStreams) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  Device gpu = Device::cuda();
  Stream side = Stream::create(gpu);
  Tensor x = full({1 << 22}, 1, f32, gpu), y;
  Event ready;
  ready.record(current_stream(gpu));
  {
    StreamScope scope(side);
    ready.wait(side);
    y = x.clone();
  }
  Event done;
  done.record(side);
  done.wait(current_stream(gpu));
  x.fill_(2);
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1 << 22, 1));
}

}  // namespace
}  // namespace xylem
