#include "cli/run/stop_signals.h"

#include <fcntl.h>
#include <unistd.h>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

TEST(StopSignals, AreCountedAndNamedThenGivenBack) {
  struct sigaction before {};
  sigaction(SIGTERM, nullptr, &before);
  {
    StopSignals signals;
    EXPECT_EQ(signals.count(), 0);
    raise(SIGTERM);
    EXPECT_EQ(signals.count(), 1);
    EXPECT_STREQ(signals.reason(), "SIGTERM");
  }
  struct sigaction after {};
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
}

TEST(StopSignals, OnlyALaterInterruptCountsTwice) {
  StopSignals signals;
  raise(SIGINT);
  raise(SIGINT);  // from a wrapper that signals the process and its group
  raise(SIGTERM);
  EXPECT_EQ(signals.count(), 1);
  absl::SleepFor(absl::Milliseconds(2100));
  for (const int signal : {SIGTERM, SIGHUP, SIGPIPE}) {
    raise(signal);
    EXPECT_EQ(signals.count(), 1);
  }
  EXPECT_STREQ(signals.reason(), "Ctrl-C");
  raise(SIGINT);
  EXPECT_EQ(signals.count(), 2);
}

TEST(StopSignals, AnOutputThatNobodyReadsIsOne) {
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  close(pipe_ends[0]);
  const StopSignals signals;
  EXPECT_EQ(write(pipe_ends[1], "x", 1), -1);
  close(pipe_ends[1]);
  EXPECT_EQ(signals.count(), 1);
  EXPECT_STREQ(signals.reason(), "closed output");
}

}  // namespace
}  // namespace shoal::cli
