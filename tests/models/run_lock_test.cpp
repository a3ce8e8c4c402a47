// SPDX-License-Identifier: Apache-2.0
// Two jobs and one run's folder.
#include "models/loop/run_lock.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class RunLockTest : public testing::Test {
 protected:
  std::string taking(const RunLockOptions& options = {}) const {
    return error_of([&] { RunLock lock(run_, options); });
  }
  // A process that takes the run and keeps it until it is killed.
  pid_t holder() const {
    int ready[2];
    if (pipe(ready) != 0) return -1;
    pid_t pid = fork();
    if (pid == 0) {
      RunLock lock(run_);
      if (write(ready[1], "x", 1) != 1) _exit(1);
      while (true) pause();
    }
    char x;
    EXPECT_EQ(read(ready[0], &x, 1), 1);
    close(ready[0]), close(ready[1]);
    return pid;
  }
  static void end(pid_t pid) { kill(pid, SIGKILL), waitpid(pid, nullptr, 0); }
  // As if another host had written it.
  void move_to_another_host() const {
    auto json = nlohmann::json::parse(read_file(file_));
    json["host"] = "node17", json["boot"] = "another";
    write_file(file_, json.dump());
  }
  Scratch scratch_;
  const std::string run_ = scratch_ / "runs/a", file_ = run_ + "/lock";
};

TEST_F(RunLockTest, IsThereWhileItIsHeldAndLeavesNothing) {
  {
    RunLock lock(run_);
    auto json = nlohmann::json::parse(read_file(file_));
    EXPECT_EQ(json["pid"], getpid());
    EXPECT_EQ(lock.note(), "");
    EXPECT_THAT(taking(), AllOf(HasSubstr("another job has the run '" + run_), HasSubstr(std::to_string(getpid()))));
    EXPECT_TRUE(fs::exists(file_)) << "who was refused has removed it";
  }
  EXPECT_TRUE(fs::is_empty(run_));
  EXPECT_EQ(taking(), "no error");
}

TEST_F(RunLockTest, AnotherProcessOfThisHostIsNamedAndAfterItsDeathReplaced) {
  pid_t other = holder();
  EXPECT_THAT(taking(), AllOf(HasSubstr("process " + std::to_string(other) + " on "), HasSubstr("remove '" + file_)));
  end(other);
  ASSERT_TRUE(fs::exists(file_));
  RunLock lock(run_);
  EXPECT_THAT(lock.note(), HasSubstr("took over the run from process " + std::to_string(other)));
  EXPECT_EQ(std::distance(fs::directory_iterator(run_), {}), 1);
}

// A process that has got the number of one that is gone.
TEST_F(RunLockTest, ANumberThatWasGivenAgainIsNotTheProcess) {
  end(holder());
  auto json = nlohmann::json::parse(read_file(file_));
  json["pid"] = getppid();
  write_file(file_, json.dump());
  EXPECT_EQ(taking(), "no error");
}

TEST_F(RunLockTest, AnotherHostIsBelievedWhileItTouchesTheFile) {
  end(holder());
  move_to_another_host();
  std::atomic<bool> done = false;
  std::thread heart([&] {
    for (timespec at{1000, 0}; !done; ++at.tv_sec) {
      const timespec both[2] = {at, at};
      utimensat(AT_FDCWD, file_.c_str(), both, 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  EXPECT_THAT(taking({.patience = 20}), AllOf(HasSubstr("on node17"), HasSubstr("remove '" + file_)));
  done = true;
  heart.join();
  RunLock lock(run_, {.patience = 0.2});
  EXPECT_THAT(lock.note(), HasSubstr("node17"));
}

TEST_F(RunLockTest, ItsHolderTouchesIt) {
  RunLock lock(run_, {.beat = 0.02});
  const auto old = fs::last_write_time(file_) - std::chrono::hours(1);
  fs::last_write_time(file_, old);
  for (int i = 0; i < 500 && fs::last_write_time(file_) == old; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GT(fs::last_write_time(file_), old);
}

TEST_F(RunLockTest, WhoWasThoughtDeadEndsWhenItSeesAnothersLock) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  auto go_on = [&] {
    RunLock lock(run_, {.beat = 0.02});
    move_to_another_host();
    sleep(20);
    std::_Exit(0);
  };
  EXPECT_EXIT(go_on(), testing::ExitedWithCode(1), "the run was taken over by process .* on node17");
}

TEST_F(RunLockTest, AForeignFileAndAFolderThatCannotBeAreErrors) {
  write_file(file_, "mine");
  EXPECT_THAT(taking(), HasSubstr("is not a lock that Xylem wrote"));
  write_file(scratch_ / "file", "");
  EXPECT_THAT(error_of([&] { RunLock lock(scratch_ / "file/run"); }),
              AllOf(HasSubstr("cannot make the run's folder"), HasSubstr("Not a directory")));
}

}  // namespace
}  // namespace xylem
