#include "core/base/threads/signal_thread.h"

#include <unistd.h>

#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class Seen {
 public:
  void Add(const std::string& name, bool first) {
    absl::MutexLock lock(&mutex_);
    signals_.emplace_back(name, first);
  }
  // Waits until there are that many.
  std::vector<std::pair<std::string, bool>> Await(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return signals_.size() >= count;
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(30)));
    return signals_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::pair<std::string, bool>> signals_ ABSL_GUARDED_BY(mutex_);
};

TEST(SignalThread, TellsOfEachAndWhichWasTheFirst) {
  SignalThread::Block();
  kill(getpid(), SIGTERM);  // waits until somebody can be told
  Seen seen;
  const SignalThread thread([&](const std::string& name, bool first) { seen.Add(name, first); });
  EXPECT_THAT(seen.Await(1), ElementsAre(Pair("SIGTERM", true)));
  kill(getpid(), SIGUSR1);  // reported to nobody
  kill(getpid(), SIGINT);
  EXPECT_THAT(seen.Await(2), ElementsAre(Pair("SIGTERM", true), Pair("SIGINT", false)));
}

}  // namespace
}  // namespace shoal
