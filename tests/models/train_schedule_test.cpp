// SPDX-License-Identifier: Apache-2.0
#include "models/optim/schedule.h"

#include <gtest/gtest.h>

#include "tests/support.h"

namespace xylem {
namespace {

using Kind = Schedule::Kind;

TEST(Schedule, WarmsUpLinearly) {
  for (Kind kind : {Kind::constant, Kind::linear, Kind::cosine, Kind::wsd, Kind::step}) {
    Schedule s{.kind = kind, .lr = 2, .total = 100, .warmup = 10, .step_size = 1000};
    EXPECT_DOUBLE_EQ(s(0), 0.2);
    EXPECT_DOUBLE_EQ(s(4), 1.0);
    EXPECT_DOUBLE_EQ(s(10), 2);
  }
}

TEST(Schedule, Constant) { EXPECT_EQ((Schedule{.kind = Kind::constant, .lr = 3}(12345)), 3); }

TEST(Schedule, LinearEndsAtItsFloor) {
  Schedule s{.kind = Kind::linear, .lr = 1, .total = 100, .floor = 0.1};
  EXPECT_DOUBLE_EQ(s(0), 1);
  EXPECT_DOUBLE_EQ(s(50), 0.55);
  EXPECT_DOUBLE_EQ(s(99), 0.109);
  EXPECT_DOUBLE_EQ(s(100), 0.1);  // what comes after the last step
  EXPECT_DOUBLE_EQ(s(5000), 0.1);
}

TEST(Schedule, CosineIsHalfwayInTheMiddle) {
  Schedule s{.kind = Kind::cosine, .lr = 4, .total = 120, .warmup = 20, .floor = 0.5};
  EXPECT_DOUBLE_EQ(s(20), 4);
  EXPECT_NEAR(s(70), 3, 1e-12);
  EXPECT_NEAR(s(45), 2 + 2 * 0.8535533905932737, 1e-9);  // (1 + cos(pi/4)) / 2
  EXPECT_NEAR(s(120), 2, 1e-12);
}

TEST(Schedule, WsdDecaysOnlyAtTheEnd) {
  Schedule s{.kind = Kind::wsd, .lr = 1, .total = 100, .warmup = 5, .floor = 0, .decay_fraction = 0.5};
  EXPECT_DOUBLE_EQ(s(5), 1);
  EXPECT_DOUBLE_EQ(s(49), 1);
  EXPECT_DOUBLE_EQ(s(50), 1);
  EXPECT_DOUBLE_EQ(s(75), 0.5);
  EXPECT_NEAR(s(100), 0, 1e-12);
}

TEST(Schedule, TheLastStepTrainsWithAFloorOfZeroToo) {
  for (Kind kind : {Kind::linear, Kind::cosine, Kind::wsd})
    for (int64_t total : {1, 2, 10}) {
      Schedule s{.kind = kind, .lr = 1, .total = total};
      EXPECT_GT(s(total - 1), 0) << total;
      EXPECT_NEAR(s(total), 0, 1e-12) << total;
    }
}

TEST(Schedule, StepsDown) {
  Schedule s{.kind = Kind::step, .lr = 1, .step_size = 30, .gamma = 0.1};
  EXPECT_DOUBLE_EQ(s(29), 1);
  EXPECT_DOUBLE_EQ(s(30), 0.1);
  EXPECT_NEAR(s(60), 0.01, 1e-15);
}

TEST(Schedule, NamesTheKnownKinds) {
  EXPECT_EQ(parse_schedule("wsd"), Kind::wsd);
  for (const std::string& name : schedule_names()) EXPECT_NO_THROW(parse_schedule(name)) << name;
  EXPECT_NE(error_of([] { parse_schedule("cosinus"); }).find("choose one of constant, linear, cosine, wsd, step"),
            std::string::npos);
}

}  // namespace
}  // namespace xylem
