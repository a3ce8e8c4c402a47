// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "core/device/device.h"
#include "core/tensor/tensor.h"

#ifdef XY_WITH_CUDA
#include "core/device/cuda.h"
#endif

namespace xylem {
namespace {

#ifdef XY_WITH_CUDA
TEST(EventCuda, AreUsedAgainOnceNobodyHoldsThem) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  const Stream stream = current_stream(Device::cuda(0));
  auto collective = [&] {
    Event ready, start(true), end(true);
    ready.record(stream);
    start.record(stream);
    end.record(stream);
    end.synchronize();
    EXPECT_TRUE(ready.done());
    EXPECT_GE(end.elapsed_ms(start), 0);
  };
  collective();
  const int64_t made = cuda::events_made();
  for (int i = 0; i < 100; ++i) collective();
  EXPECT_EQ(cuda::events_made(), made);
  Event held;
  held.record(stream);
  Event copy = held;
  held = Event();
  for (int i = 0; i < 10; ++i) collective();
  EXPECT_TRUE((copy.synchronize(), copy.done())) << "somebody holds it";
}

// A wait keeps the mark that it was given, though the event is recorded anew elsewhere.
TEST(EventCuda, WaitsOutliveTheirEvent) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  const Device gpu = Device::cuda(0);
  const Stream writer = Stream::create(gpu), reader = Stream::create(gpu), other = Stream::create(gpu);
  Tensor from = empty({64 << 20}, u8, gpu), to = empty({64 << 20}, u8, gpu);
  for (int round = 0; round < 20; ++round) {
    const auto value = double(round % 2 + 1);
    {
      StreamScope scope(writer);
      for (int i = 0; i < 20; ++i) from.fill_(i < 19 ? 0 : value);
      Event written;
      written.record(writer);
      written.wait(reader);
    }
    Event reused;
    reused.record(other);
    {
      StreamScope scope(reader);
      to.copy_(from);
    }
    reader.synchronize();
    EXPECT_EQ(to.to(Device::cpu()).data<uint8_t>()[(64 << 20) - 1], value) << round;
    synchronize(gpu);
  }
}
#endif

}  // namespace
}  // namespace xylem
