#include "server/coordinator/record/job_logs.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr double kAhead = 1000;  // of the members' clock

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

// Sent at `now` by the coordinator's clock; `logged` are times by it, and messages.
proto::NewLines Lines(double now, const std::vector<std::pair<double, std::string>>& logged) {
  proto::NewLines lines;
  lines.set_now(now + kAhead);
  for (const auto& [time, message] : logged) {
    proto::LogLine& line = *lines.add_lines();
    line.set_time(time + kAhead);
    line.set_level("info");
    line.set_message(message);
  }
  return lines;
}

std::vector<std::string> Messages(const proto::ReadLogReply& reply) {
  std::vector<std::string> messages;
  for (const proto::LogLine& line : reply.lines()) {
    messages.push_back(line.process() + ": " + line.message());
  }
  return messages;
}

TEST(JobLogs, ALateLineGoesToTheJobWhoseTurnItWas) {
  JobLogs logs;
  logs.Turn("a", At(10));
  logs.Turn("b", At(30));
  logs.Add("server-0", Lines(32, {{5, "before"}, {12, "in a"}, {31, "in b"}}), At(32));
  EXPECT_THAT(Messages(logs.Read("a", 0)), ElementsAre("server-0: in a"));
  EXPECT_THAT(Messages(logs.Read("b", 0)), ElementsAre("server-0: in b"));
  EXPECT_DOUBLE_EQ(logs.Read("b", 0).lines(0).time(), 31) << "by the coordinator's clock";
  EXPECT_THAT(Messages(logs.Read("never", 0)), ElementsAre());
}

TEST(JobLogs, AReaderGoesOnWhereItWas) {
  JobLogs logs;
  logs.Turn("a", At(0));
  logs.Turn("a", At(1));  // the same turn
  logs.Add("worker-1", Lines(2, {{1, "one"}, {2, "two"}}), At(2));
  const proto::ReadLogReply first = logs.Read("a", 0);
  EXPECT_EQ(first.last_line(), 2);
  EXPECT_THAT(Messages(logs.Read("a", first.last_line())), ElementsAre());
  logs.Add("worker-0", Lines(3, {{3, "three"}}), At(3));
  EXPECT_THAT(Messages(logs.Read("a", first.last_line())), ElementsAre("worker-0: three"));
  EXPECT_THAT(Messages(logs.Read("a", 99)), SizeIs(3)) << "99 was another life's";
  logs.Forget("a");
  logs.Add("worker-0", Lines(4, {{4, "four"}}), At(4));
  EXPECT_THAT(Messages(logs.Read("a", 0)), ElementsAre());
}

TEST(JobLogs, RemembersTheNewest) {
  JobLogs logs;
  logs.Turn("a", At(0));
  const std::string long_line(1000, 'x');
  constexpr int kLines = 2000;
  for (int i = 0; i < kLines; ++i) {
    logs.Add("server-0", Lines(1, {{1, long_line + std::to_string(i)}}), At(1));
  }
  const proto::ReadLogReply reply = logs.Read("a", 0);
  EXPECT_EQ(reply.last_line(), kLines);
  EXPECT_EQ(reply.forgotten() + reply.lines_size(), kLines);
  EXPECT_LE(reply.ByteSizeLong(), JobLogs::kMaxBytes + (64 << 10));
  EXPECT_GE(reply.lines_size(), 400);
  EXPECT_EQ(reply.lines().rbegin()->message(), long_line + std::to_string(kLines - 1));
}

}  // namespace
}  // namespace shoal::server
