// SPDX-License-Identifier: Apache-2.0
// The tuner plugin as NCCL sees it: a struct found by name in this library, asked with a table of estimates.
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "distributed/plan/tuner.h"
#include "distributed/plan/tuner_abi.h"

namespace xylem {
namespace {

constexpr int kAllReduce = 4, kAllGather = 2, kTree = 0, kRing = 1, kSimple = 2;

// As NCCL gets it. Naming the variable itself would put a copy of it into this program.
ncclTuner_v5_t& plugin() {
  static void* symbol = dlsym(RTLD_DEFAULT, "ncclTunerPlugin_v5");
  return *static_cast<ncclTuner_v5_t*>(symbol);
}

// NCCL's table of estimates, as for eight GPUs without NVLS: everything that is not listed is unavailable.
struct Estimates {
  float us[7][3];
  Estimates() {
    for (auto& row : us)
      for (float& cell : row) cell = -1;
    us[kTree][0] = 20, us[kTree][kSimple] = 60;
    us[kRing][0] = 19, us[kRing][kSimple] = 50;
  }
};

class Tuner : public testing::Test {
 protected:
  void SetUp() override { tuner::clear(); }
  void TearDown() override {
    if (context_) plugin().finalize(context_);
    tuner::clear();
  }
  void start(size_t ranks = 8, const std::string& group = "world") {
    tuner::Creation creation(group);
    ASSERT_EQ(plugin().init(&context_, 1, ranks, 1, nullptr, nullptr, nullptr), 0);
  }
  Estimates ask(int function = kAllReduce, size_t bytes = 1 << 20) {
    Estimates e;
    channels_ = 0;
    EXPECT_EQ(plugin().getCollInfo(context_, function, bytes, 1, reinterpret_cast<float**>(&e.us), 7, 3, 0, &channels_),
              0);
    return e;
  }
  static Plan plan_of(Algorithm a, std::optional<Protocol> p, Basis basis, int ranks = 8, int channels = 0) {
    Plan plan;
    plan.ranks = ranks;
    plan.entries.push_back(
        {.kind = CollectiveKind::all_reduce, .algorithm = a, .protocol = p, .channels = channels, .basis = basis});
    return plan;
  }
  void* context_ = nullptr;
  int channels_ = 0;
};

TEST_F(Tuner, NcclFindsThisLibraryAndThePluginInIt) {
  start();
  const char* path = std::getenv("NCCL_TUNER_PLUGIN");
  ASSERT_NE(path, nullptr);
  EXPECT_THAT(path, testing::HasSubstr("libxylem"));
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr) << dlerror();
  EXPECT_EQ(dlsym(handle, "ncclTunerPlugin_v5"), &plugin());  // the same instance
  dlclose(handle);
  EXPECT_STREQ(plugin().name, "xylem");
  EXPECT_TRUE(tuner::asked());
}

TEST_F(Tuner, WithoutAPlanNothingChanges) {
  start();
  Estimates e = ask(), untouched;
  EXPECT_EQ(std::memcmp(&e, &untouched, sizeof e), 0);
  EXPECT_EQ(channels_, 0);
  EXPECT_EQ(tuner::last_choice("world"), "ring ll");
}

TEST_F(Tuner, ImposesWhatIsPinnedAndNothingElse) {
  tuner::set_plan(plan_of(Algorithm::tree, Protocol::simple, Basis::pinned, 8, 12));
  start();
  Estimates e = ask(), expected;
  expected.us[kTree][kSimple] = 0;
  EXPECT_EQ(std::memcmp(&e, &expected, sizeof e), 0);
  EXPECT_EQ(channels_, 12);
  EXPECT_EQ(tuner::last_choice("world"), "tree simple");
  ask(kAllGather);  // the plan has nothing for it
  EXPECT_EQ(channels_, 0);
}

TEST_F(Tuner, NeverTouchesWhatIsUnavailable) {
  tuner::set_plan(plan_of(Algorithm::nvls, Protocol::simple, Basis::measured));
  start();
  Estimates e = ask(), untouched;
  EXPECT_EQ(std::memcmp(&e, &untouched, sizeof e), 0);
  // A pinned protocol that is not there gives way to another of the algorithm.
  tuner::set_plan(plan_of(Algorithm::ring, Protocol::ll128, Basis::pinned));
  e = ask();
  EXPECT_EQ(e.us[kRing][1], -1);
  EXPECT_EQ(e.us[kRing][0], 0);
  // A table of fewer algorithms than the plan knows.
  tuner::set_plan(plan_of(Algorithm::nvls_tree, {}, Basis::pinned));
  float small[2][3] = {{1, 2, 3}, {4, 5, 6}};
  EXPECT_EQ(plugin().getCollInfo(context_, kAllReduce, 64, 1, reinterpret_cast<float**>(small), 2, 3, 0, &channels_),
            0);
  EXPECT_EQ(small[0][0], 1);
  EXPECT_EQ(plugin().getCollInfo(nullptr, kAllReduce, 64, 1, nullptr, 7, 3, 0, &channels_), 0);
  EXPECT_EQ(plugin().getCollInfo(context_, 99, 64, 1, reinterpret_cast<float**>(small), 2, 3, 0, &channels_), 0);
}

TEST_F(Tuner, AMeasurementLeavesTheProtocolToNccl) {
  tuner::set_plan(plan_of(Algorithm::tree, {}, Basis::measured));
  start();
  Estimates e = ask();
  EXPECT_EQ(e.us[kTree][0], 0);  // its cheapest
  EXPECT_EQ(e.us[kTree][kSimple], 60);
}

TEST_F(Tuner, APredictionOnlyDecidesWhatIsOpen) {
  tuner::set_plan(plan_of(Algorithm::tree, Protocol::ll, Basis::predicted));
  start();
  EXPECT_EQ(ask().us[kTree][0], 0);  // 20 us against 19
  tuner::set_plan(plan_of(Algorithm::tree, Protocol::simple, Basis::predicted));
  EXPECT_EQ(ask().us[kTree][kSimple], 60);  // 60 us against 19
}

TEST_F(Tuner, APlanForOtherRanksCountsOnlyWherePinned) {
  tuner::set_plan(plan_of(Algorithm::tree, Protocol::simple, Basis::measured, 16));
  start();
  EXPECT_EQ(ask().us[kTree][kSimple], 60);
  tuner::set_plan(plan_of(Algorithm::tree, Protocol::simple, Basis::pinned, 16, 24));
  EXPECT_EQ(ask().us[kTree][kSimple], 0);
  EXPECT_EQ(channels_, 0);
}

TEST_F(Tuner, AGroupMayHaveItsOwnPlan) {
  tuner::set_plan(plan_of(Algorithm::ring, Protocol::simple, Basis::pinned));
  tuner::set_plan("world/tensor", plan_of(Algorithm::tree, Protocol::simple, Basis::pinned));
  start(8, "world/tensor");
  EXPECT_EQ(ask().us[kTree][kSimple], 0);
  tuner::clear();  // takes effect at once
  EXPECT_EQ(ask().us[kTree][kSimple], 60);
}

TEST_F(Tuner, AGroupMayBeForcedThroughTheEnvironment) {
  unsetenv("NCCL_ALGO");
  tuner::set_environment_override("world/data", Algorithm::nvls_tree);
  {
    tuner::Creation creation("world/data");
    EXPECT_STREQ(std::getenv("NCCL_ALGO"), "allreduce:nvlstree");
  }
  EXPECT_EQ(std::getenv("NCCL_ALGO"), nullptr);
  {
    tuner::Creation creation("world");
    EXPECT_EQ(std::getenv("NCCL_ALGO"), nullptr);
  }
  setenv("NCCL_ALGO", "allreduce:ring", 1);
  {
    tuner::Creation creation("world/data");
    EXPECT_STREQ(std::getenv("NCCL_ALGO"), "allreduce:ring");  // the user's word stands
  }
  EXPECT_STREQ(std::getenv("NCCL_ALGO"), "allreduce:ring");
  unsetenv("NCCL_ALGO");
}

// NCCL may ask on one thread while another swaps the plan.
TEST_F(Tuner, PlansAreSwappedWhole) {
  start();
  std::atomic<bool> stop = false;
  std::thread swapper([&] {
    for (int i = 0; !stop; ++i)
      tuner::set_plan(i % 2 ? plan_of(Algorithm::tree, Protocol::simple, Basis::pinned)
                            : plan_of(Algorithm::ring, Protocol::simple, Basis::pinned));
  });
  for (int i = 0; i < 2000; ++i) {
    Estimates e = ask();
    EXPECT_FALSE(e.us[kTree][kSimple] == 0 && e.us[kRing][kSimple] == 0);
  }
  stop = true;
  swapper.join();
}

// A process of its own: the environment is looked at once.
TEST(TunerConflictsDeathTest, VariablesThatBeatThePlanAreToldAndStay) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto start = [] {
    setenv("NCCL_ALGO", "allreduce:tree", 1);
    setenv("NCCL_TUNER_PLUGIN", "other.so", 1);
    tuner::Creation creation("world");
    for (const std::string& c : tuner::conflicts()) std::fprintf(stderr, "%s\n", c.c_str());
    std::exit(std::getenv("NCCL_TUNER_PLUGIN") == std::string("other.so") ? 0 : 1);
  };
  EXPECT_EXIT(start(), testing::ExitedWithCode(0),
              "NCCL_ALGO=allreduce:tree is set: what it excludes.*\nNCCL_TUNER_PLUGIN=other.so is set");
}

}  // namespace
}  // namespace xylem
