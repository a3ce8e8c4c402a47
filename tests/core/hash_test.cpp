// SPDX-License-Identifier: Apache-2.0
#include "core/util/hash.h"

#include <gtest/gtest.h>

namespace xylem {
namespace {

TEST(Hash, KnownAnswers) {
  EXPECT_EQ(hex(fnv1a("")), "cbf29ce484222325");
  EXPECT_EQ(hex(fnv1a("foobar")), "85944171f73967e8");
  EXPECT_EQ(fnv1a("bar", fnv1a("foo")), fnv1a("foobar"));
  EXPECT_EQ(hex(5), "0000000000000005");
  EXPECT_NE(mix(mix(1, 2), 3), mix(mix(1, 3), 2));
}

}  // namespace
}  // namespace xylem
