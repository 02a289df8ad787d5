#include "cli/terminal/progress_bar.h"

#include <algorithm>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StepProgress At(int64_t step, int64_t total) {
  return {.step = step,
          .total_steps = total,
          .loss = 2.5,
          .grad_norm = 1.25,
          .learning_rate = 1e-3,
          .tokens_per_second = 12345.6,
          .step_seconds = 2.0};
}

TEST(ProgressBar, PlainLinesAreFewAndIncludeFirstAndLast) {
  std::ostringstream stream;
  ManualClock clock;
  {
    ProgressBar bar(stream, Terminal{}, clock);
    for (int step = 1; step <= 1000; ++step) {
      clock.Advance(absl::Milliseconds(10));
      bar.Step(At(step, 1000));
    }
  }
  const std::string text = stream.str();
  EXPECT_THAT(text, HasSubstr("step 1/1000, loss 2.5000, 12,345 tokens/s, norm 1.25, "
                              "learning rate 0.001\n"));
  EXPECT_THAT(text, HasSubstr("step 1000/1000"));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 7) << "ten seconds, a line every two";
  EXPECT_THAT(text, Not(HasSubstr("\033"))) << "no escapes where nobody is at a terminal";
  EXPECT_THAT(text, Not(HasSubstr("\r")));
}

TEST(ProgressBar, ShowsUtilizationWhereItIsKnown) {
  std::ostringstream stream;
  ManualClock clock;
  ProgressBar bar(stream, Terminal{}, clock);
  bar.Step(At(1, 2));
  EXPECT_THAT(stream.str(), Not(HasSubstr("mfu")));
  StepProgress known = At(2, 2);
  known.mfu = 0.412;
  bar.Step(known);
  EXPECT_THAT(stream.str(), HasSubstr("learning rate 0.001, mfu 41%\n"));
}

TEST(ProgressBar, RedrawsAreBoundedByTime) {
  std::ostringstream stream;
  ManualClock clock;
  ProgressBar bar(stream, Terminal{.interactive = true, .colour = false, .width = 100}, clock);
  for (int step = 1; step <= 900; ++step) {
    clock.Advance(absl::Milliseconds(1));
    bar.Step(At(step, 100000));
  }
  const std::string text = stream.str();
  EXPECT_LE(std::count(text.begin(), text.end(), '['), 2 * 11)
      << "nine tenths of a second, ten a second";
  EXPECT_THAT(text, HasSubstr("left"));
}

TEST(ProgressBar, FitsTheWidthAndLeavesTheLineClean) {
  std::ostringstream stream;
  ManualClock clock;
  {
    ProgressBar bar(stream, Terminal{.interactive = true, .colour = false, .width = 40}, clock);
    clock.Advance(absl::Seconds(1));
    bar.Items("tokenising", 5, 1000);
  }
  const std::string text = stream.str();
  const size_t start = text.find("\033[K") + 3;
  EXPECT_LT(text.find("\r", start) - start, 40u);
  EXPECT_TRUE(text.ends_with("\r\033[K"));
}

TEST(ProgressBar, TimeLeftComesFromStepTimes) {
  std::ostringstream stream;
  ManualClock clock;
  ProgressBar bar(stream, Terminal{.interactive = true, .colour = false, .width = 120}, clock);
  clock.Advance(absl::Seconds(1));
  bar.Step(At(10, 40));
  EXPECT_THAT(stream.str(), HasSubstr("1m00s left"));
}

}  // namespace
}  // namespace shoal::cli
