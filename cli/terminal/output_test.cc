#include "cli/terminal/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <ostream>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

class OutputTest : public ::testing::Test {
 protected:
  OutputTest() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader_ = UniqueFd(ends[0]);
    writer_ = UniqueFd(ends[1]);
    EXPECT_GE(fcntl(writer_.get(), F_SETPIPE_SZ, 4096), 4096);
  }

  // What the pipe holds now, or the next of it.
  std::string Read() const {
    std::string text(1 << 16, '\0');
    const ssize_t size = read(reader_.get(), text.data(), text.size());
    return size > 0 ? text.substr(0, static_cast<size_t>(size)) : "";
  }
  static std::string LineOf(int number) { return std::to_string(number) + std::string(999, '.'); }

  UniqueFd reader_;
  UniqueFd writer_;
  std::atomic<bool> stopping_ = false;
};

TEST_F(OutputTest, PrintsAtAFlushAndAtItsEnd) {
  {
    Output output(writer_.get(), [] { return false; });
    std::ostream stream(&output);
    stream << "one\n" << 2 << std::flush;
    EXPECT_EQ(Read(), "one\n2");
    stream << "end";
  }
  EXPECT_EQ(Read(), "end");
  EXPECT_EQ(fcntl(writer_.get(), F_GETFL) & O_NONBLOCK, 0) << "the shell's too";
}

TEST_F(OutputTest, ASlowReaderGetsAll) {
  std::string taken;
  std::thread reader([&] {
    absl::SleepFor(absl::Milliseconds(200));
    for (std::string more = Read(); !more.empty(); more = Read()) {
      taken += more;
    }
  });
  std::string expected;
  {
    Output output(writer_.get(), [] { return false; });
    std::ostream stream(&output);
    for (int i = 0; i < 50; ++i) {
      stream << LineOf(i) << std::endl;
      expected += LineOf(i) + "\n";
    }
    EXPECT_TRUE(stream.good());
    EXPECT_EQ(output.dropped_lines(), 0);
  }
  writer_ = UniqueFd();
  reader.join();
  EXPECT_EQ(taken, expected);
}

TEST_F(OutputTest, AStopEndsTheWaitAndKeepsLinesWhole) {
  Output output(writer_.get(), [this] { return stopping_.load(); });
  std::ostream stream(&output);
  std::thread stop([this] {
    absl::SleepFor(absl::Milliseconds(100));
    stopping_ = true;
  });
  std::string lines;
  for (int i = 0; i < 50; ++i) {
    lines += LineOf(i) + "\n";
  }
  stream << lines << std::flush;
  stop.join();
  EXPECT_TRUE(stream.good());
  EXPECT_GT(output.dropped_lines(), 40);
  const int64_t dropped = output.dropped_lines();
  std::string taken = Read();
  stream << "last\n" << std::flush;
  taken += Read();
  EXPECT_TRUE(taken.ends_with("\nlast\n")) << taken;
  taken.resize(taken.size() - std::string("last\n").size());
  EXPECT_TRUE(lines.starts_with(taken));
  EXPECT_EQ(taken.size(), lines.find('\n', taken.size() - 1) + 1);
  EXPECT_EQ(std::count(taken.begin(), taken.end(), '\n') + dropped, 50);
  EXPECT_EQ(output.dropped_lines(), dropped);
}

TEST_F(OutputTest, ADroppedLineCostsNoWait) {
  stopping_ = true;
  Output output(writer_.get(), [this] { return stopping_.load(); });
  std::ostream stream(&output);
  const absl::Time begun = absl::Now();
  for (int i = 0; i < 1000; ++i) {
    stream << LineOf(i) << std::endl;
  }
  EXPECT_LT(absl::Now() - begun, absl::Seconds(20));
  EXPECT_GT(output.dropped_lines(), 990);
}

}  // namespace
}  // namespace shoal::cli
