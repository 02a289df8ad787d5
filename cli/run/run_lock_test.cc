#include "cli/run/run_lock.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

using ::testing::HasSubstr;

class RunLockTest : public testing::Test {
 protected:
  ~RunLockTest() override { std::filesystem::remove_all(folder_); }
  const std::string folder_ = testing::TempDir() + "/run_lock_" + std::to_string(getpid());
};

TEST_F(RunLockTest, IsForOneAtATime) {
  auto first = RunLock::Take(folder_ + "/checkpoints");
  ASSERT_TRUE(first.ok()) << first.status();
  std::optional<RunLock> held(*std::move(first));
  const auto second = RunLock::Take(folder_ + "/checkpoints");
  ASSERT_TRUE(absl::IsFailedPrecondition(second.status()));
  EXPECT_THAT(second.status().ToString(), HasSubstr("process " + std::to_string(getpid())));
  EXPECT_THAT(second.status().ToString(), HasSubstr("checkpoint.directory"));
  held.reset();
  EXPECT_TRUE(RunLock::Take(folder_ + "/checkpoints").ok());
}

TEST_F(RunLockTest, LeavesNothingWhereNothingWasDone) {
  for (const bool there : {false, true}) {
    for (const bool used : {false, true}) {
      std::filesystem::remove_all(folder_);
      if (there) {
        std::filesystem::create_directories(folder_);
      }
      auto lock = RunLock::Take(folder_);
      ASSERT_TRUE(lock.ok()) << lock.status();
      if (used) {
        std::filesystem::create_directories(folder_ + "/data");
      }
      lock->RemoveIfUnused();
      EXPECT_EQ(std::filesystem::exists(folder_), there || used);
      EXPECT_EQ(std::filesystem::exists(folder_ + "/lock"), there || used);
    }
  }
}

TEST_F(RunLockTest, EndsWithTheProcessThatWasKilled) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = RunLock::Take(folder_);
    const char taken = lock.ok() ? 'y' : 'n';
    [[maybe_unused]] const ssize_t written = write(ready[1], &taken, 1);
    pause();
    _exit(0);
  }
  char taken = 0;
  ASSERT_EQ(read(ready[0], &taken, 1), 1);
  ASSERT_EQ(taken, 'y');
  EXPECT_THAT(RunLock::Take(folder_).status().ToString(),
              HasSubstr("process " + std::to_string(child)));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(RunLock::Take(folder_).ok());
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace shoal::cli
