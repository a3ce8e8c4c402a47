// SPDX-License-Identifier: Apache-2.0
#include "core/util/text.h"

#include <gtest/gtest.h>

#include <cmath>

namespace xylem {
namespace {

TEST(Text, CountsAndTimesAreShort) {
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(12345), "12.3k");
  EXPECT_EQ(human_count(2.5e9), "2.5G");
  EXPECT_EQ(human_time(3725), "1:02:05");
  EXPECT_EQ(human_time(59.6), "1:00");
  EXPECT_EQ(human_time(NAN), "0:00");
}

TEST(Text, QuantitiesHaveThreeDigitsAndTheRightUnit) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "0.977 KiB");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(64 << 20), "64 MiB");
  EXPECT_EQ(human_bytes(1023.0 * (1 << 20)), "0.999 GiB");
  EXPECT_EQ(human_bytes(0x1p60), "1 EiB");
}

}  // namespace
}  // namespace xylem
