#include "server/service/trace/span_log.h"

#include <map>
#include <thread>

#include "gtest/gtest.h"

namespace shoal::server {
namespace {

constexpr auto kSeal = proto::ServerSpan::KIND_SEAL;
constexpr auto kUpdate = proto::ServerSpan::KIND_UPDATE;

absl::Time At(int64_t microseconds) { return absl::FromUnixMicros(microseconds); }

proto::BeginAttemptRequest Begin(int64_t step, int64_t attempt, bool trace) {
  proto::BeginAttemptRequest request;
  request.set_step(step);
  request.set_attempt(attempt);
  request.set_trace(trace);
  return request;
}

proto::CommitReply Told(const SpanLog& log, int64_t step, int64_t attempt) {
  proto::CommitReply reply;
  log.Fill(step, attempt, reply);
  return reply;
}

TEST(SpanLog, HasTheAttemptThatIsTracedAlone) {
  SpanLog log;
  log.Begin(Begin(1, 1, true));
  log.AddPush(1, 1, "worker-0", 3, At(10), At(20));
  log.Begin(Begin(1, 2, true));
  log.AddPush(1, 1, "worker-0", 3, At(20), At(30));  // late
  log.AddPush(1, 2, "worker-1", 4, At(30), At(45));
  log.AddCommand(1, 2, kSeal, At(50), At(60));
  log.AddCommand(1, 2, kUpdate, At(60), At(80));
  EXPECT_EQ(Told(log, 1, 1).spans_size(), 0);
  for (int repeated = 0; repeated < 2; ++repeated) {
    const proto::CommitReply reply = Told(log, 1, 2);
    ASSERT_EQ(reply.spans_size(), 3);
    const proto::ServerSpan& push = reply.spans(0);
    EXPECT_EQ(push.kind(), proto::ServerSpan::KIND_ACCUMULATE);
    EXPECT_EQ(push.client(), "worker-1");
    EXPECT_EQ(push.partition(), 4);
    EXPECT_EQ(push.start_nanoseconds(), 30'000);
    EXPECT_EQ(push.nanoseconds(), 15'000);
    EXPECT_EQ(reply.spans(1).kind(), kSeal);
    EXPECT_EQ(reply.spans(2).kind(), kUpdate);
    EXPECT_EQ(reply.dropped_spans(), 0);
  }
  log.Begin(Begin(2, 1, false));
  log.AddPush(2, 1, "worker-1", 4, At(90), At(95));
  EXPECT_EQ(Told(log, 2, 1).spans_size(), 0);
}

TEST(SpanLog, NumbersThreadsAndCountsWhatFindsNoRoom) {
  SpanLog log;
  log.Begin(Begin(1, 1, true));
  const auto push = [&] {
    for (int i = 0; i < SpanLog::kMostSpans / 2 + 5; ++i) {
      log.AddPush(1, 1, "worker-0", i, At(i), At(i + 1));
    }
  };
  push();
  std::thread other(push);
  other.join();
  const proto::CommitReply reply = Told(log, 1, 1);
  EXPECT_EQ(reply.spans_size(), SpanLog::kMostSpans);
  EXPECT_EQ(reply.dropped_spans(), 10);
  std::map<int, int> threads;
  for (const proto::ServerSpan& span : reply.spans()) {
    ++threads[span.thread()];
  }
  EXPECT_EQ(threads, (std::map<int, int>{{0, SpanLog::kMostSpans / 2 + 5},
                                         {1, SpanLog::kMostSpans / 2 - 5}}));
}

}  // namespace
}  // namespace shoal::server
