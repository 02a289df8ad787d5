#include "core/rpc/member_session.h"

#include <atomic>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "core/base/clock.h"
#include "core/base/kept_lines.h"
#include "core/base/status.h"
#include "core/rpc/coordinator_service.h"
#include "gtest/gtest.h"

namespace shoal::rpc {
namespace {

// Grants short leases and records calls.
class Registrar final : public CoordinatorService {
 public:
  absl::StatusOr<proto::SubmitJobReply> SubmitJob(const proto::SubmitJobRequest&) override {
    return Unimplemented("not here");
  }
  absl::StatusOr<proto::StopJobReply> StopJob(const proto::StopJobRequest&) override {
    return Unimplemented("not here");
  }
  absl::StatusOr<proto::GetStatusReply> GetStatus(const proto::GetStatusRequest&) override {
    return Unimplemented("not here");
  }
  absl::StatusOr<proto::ListJobsReply> ListJobs(const proto::ListJobsRequest&) override {
    return Unimplemented("not here");
  }
  absl::StatusOr<proto::ScaleReply> Scale(const proto::ScaleRequest&) override {
    return proto::ScaleReply();
  }
  absl::StatusOr<proto::ReadLogReply> ReadLog(const proto::ReadLogRequest&) override {
    return Unimplemented("not here");
  }
  absl::StatusOr<proto::RegisterReply> Register(const proto::RegisterRequest& request) override {
    EXPECT_NE(request.nonce(), 0U);
    EXPECT_GT(request.pid(), 0);
    EXPECT_EQ(request.version(), ProgramVersion());
    EXPECT_GT(request.facts().cores(), 0);
    EXPECT_GT(request.facts().memory_bytes(), 0);
    EXPECT_TRUE(request.facts().kernel().starts_with("Linux "));
    EXPECT_NE(request.facts().build(), "");
    if (request.has_earlier() && !takes_back) {
      return NotFound("who?");
    }
    if (request.has_earlier()) {
      EXPECT_EQ(request.earlier().incarnation(), 77U);
      EXPECT_EQ(request.index(), 3);
      forgotten = false;
    }
    proto::RegisterReply reply;
    reply.set_index(3);
    reply.set_incarnation(77);
    reply.set_lease_seconds(0.6);
    return reply;
  }
  absl::StatusOr<proto::RenewLeaseReply> RenewLease(
      const proto::RenewLeaseRequest& request) override {
    EXPECT_EQ(request.incarnation(), 77U);
    for (const proto::LogLine& line : request.log().lines()) {
      lines += line.message() + "\n";
    }
    if (forgotten) {
      return NotFound("who?");
    }
    proto::RenewLeaseReply reply;
    reply.set_shut_down(++renewals >= 3 && over);
    reply.set_lease_seconds(0.6);
    return reply;
  }
  absl::StatusOr<proto::LeaveReply> Leave(const proto::LeaveRequest& request) override {
    if (request.when_free()) {
      proto::LeaveReply reply;
      reply.set_wait(needed);
      return reply;
    }
    reason = request.reason();
    ++leaves;
    return proto::LeaveReply();
  }
  absl::StatusOr<HeldCall<proto::HoldConnectionReply>> HoldConnection(
      const proto::HoldConnectionRequest& request) override {
    EXPECT_EQ(request.incarnation(), 77U);
    ++connections;
    return HeldCall<proto::HoldConnectionReply>{.on_end = [this] { --connections; }};
  }
  absl::StatusOr<proto::JoinJobReply> JoinJob(const proto::JoinJobRequest&) override {
    return Unimplemented("not here");
  }
  absl::StatusOr<proto::NextStepReply> NextStep(const proto::NextStepRequest&) override {
    return Unimplemented("not here");
  }
  absl::StatusOr<proto::DrawMicrobatchReply> DrawMicrobatch(
      const proto::DrawMicrobatchRequest&) override {
    return Unimplemented("not here");
  }
  absl::Status WatchJob(const proto::WatchJobRequest&, const JobEvents&) override {
    return Unimplemented("not here");
  }

  std::atomic<bool> over = false;
  std::atomic<bool> forgotten = false;
  std::atomic<bool> takes_back = false;
  std::atomic<bool> needed = false;  // by a job, whoever asks to leave
  std::atomic<int> connections = 0;  // that are held
  std::atomic<int> renewals = 0;
  std::atomic<int> leaves = 0;
  std::string reason;
  std::string lines;  // as members logged them
};

class MemberSessionTest : public ::testing::Test {
 protected:
  void SetUp() override { Serve(0); }
  // In the place of the one before.
  void Serve(int port) {
    server_.reset();
    std::vector<std::unique_ptr<Service>> services;
    services.push_back(MakeCoordinatorService(&registrar_));
    auto server = Server::Start({.listen = fmt::format("127.0.0.1:{}", port), .security = token_},
                                std::move(services));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
  }
  std::unique_ptr<MemberSession> Join() {
    auto session = MemberSession::Join(
        Channel::Create(fmt::format("127.0.0.1:{}", server_->port()), token_, Role::kCoordinator),
        {.role = proto::ROLE_WORKER}, [this](const absl::Status& status) {
          end_ = status;
          ended_.Notify();
        });
    EXPECT_TRUE(session.ok()) << session.status();
    return *std::move(session);
  }

  Registrar registrar_;
  const Token token_ = Token::Generate();
  std::unique_ptr<Server> server_;
  absl::Status end_;
  absl::Notification ended_;
};

TEST_F(MemberSessionTest, RenewsUntilTheJobIsOver) {
  registrar_.over = true;
  ProcessLines().Add({.time = RealClock().Now(), .level = "info", .message = "loaded"});
  const auto session = Join();
  EXPECT_EQ(session->index(), 3);
  EXPECT_EQ(session->incarnation(), 77U);
  ASSERT_TRUE(ended_.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_TRUE(end_.ok()) << end_;
  EXPECT_GE(registrar_.renewals, 3);
  EXPECT_EQ(registrar_.lines, "loaded\n") << "once";
  session->Leave("done");
  session->Leave("again");
  EXPECT_EQ(registrar_.leaves, 1);
  EXPECT_EQ(registrar_.reason, "done");
}

TEST_F(MemberSessionTest, WhoAsksToLeaveStaysAMemberMeanwhile) {
  registrar_.needed = true;
  const auto session = Join();
  EXPECT_FALSE(*session->AskToLeave("SIGTERM"));
  const int renewals = registrar_.renewals;
  const absl::Time patience = absl::Now() + absl::Seconds(30);
  while (registrar_.renewals < renewals + 2 && absl::Now() < patience) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_GE(registrar_.renewals, renewals + 2);
  EXPECT_EQ(registrar_.leaves, 0);
  registrar_.needed = false;
  EXPECT_TRUE(*session->AskToLeave("SIGTERM"));
}

TEST_F(MemberSessionTest, HoldsOneConnectionUntilItLeaves) {
  const auto await = [this](int connections) {
    const absl::Time patience = absl::Now() + absl::Seconds(30);
    while (registrar_.connections != connections && absl::Now() < patience) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    EXPECT_EQ(registrar_.connections, connections);
  };
  const auto session = Join();
  await(1);
  Serve(server_->port());  // what was held breaks
  await(1);
  session->Leave("done");
  await(0);
}

TEST(MemberSession, ACoordinatorThatIsNotThereIsNamedAtOnce) {
  ::testing::internal::CaptureStdout();      // programs that did not set up logging log here
  const auto session = MemberSession::Join(  // nobody listens on port 1
      Channel::Create("127.0.0.1:1", Token::Generate(), Role::kCoordinator),
      {.role = proto::ROLE_WORKER, .patience = absl::Seconds(2)}, [](const absl::Status&) {});
  const std::string log = ::testing::internal::GetCapturedStdout();
  EXPECT_TRUE(absl::IsUnavailable(session.status())) << session.status();
  EXPECT_THAT(log, ::testing::ContainsRegex("coordinator at 127.0.0.1:1: .*; trying for 2 s more"));
}

TEST_F(MemberSessionTest, ALostLeaseIsAnError) {
  registrar_.forgotten = true;
  const auto session = Join();
  ASSERT_TRUE(ended_.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(end_.code(), absl::StatusCode::kNotFound);
}

TEST_F(MemberSessionTest, WhoIsForgottenRegistersAsItWas) {
  registrar_.forgotten = true;
  registrar_.takes_back = true;
  registrar_.over = true;
  const auto session = Join();
  ASSERT_TRUE(ended_.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_TRUE(end_.ok()) << end_;
  EXPECT_FALSE(registrar_.forgotten);
}

TEST_F(MemberSessionTest, AVanishedCoordinatorIsAnError) {
  const auto session = Join();
  server_->Shutdown(absl::ZeroDuration());
  ASSERT_TRUE(ended_.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_FALSE(end_.ok());
}

}  // namespace
}  // namespace shoal::rpc
