#include "client/cli/event_watch.h"

#include <atomic>

#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/rpc/coordinator_service.h"

namespace shoal::cli {
namespace {

// Has `total` events, and breaks every stream after three of them.
class ForgetfulCoordinator : public rpc::CoordinatorHandler {
 public:
  explicit ForgetfulCoordinator(int64_t total) : total_(total) {}
  absl::Status WatchJob(const proto::WatchJobRequest& request, rpc::EventStream& events) override {
    ++streams_;
    for (int64_t number = request.after_event() + 1; number <= total_; ++number) {
      if (number > request.after_event() + 3) {
        return Unavailable("broken on purpose");
      }
      proto::JobEvent event;
      event.set_number(number);
      if (number == total_) {
        event.mutable_done()->set_step(number);
      } else {
        event.mutable_step()->set_step(number);
      }
      events.Write(event);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<proto::SubmitJobReply> SubmitJob(const proto::SubmitJobRequest&) override {
    return None();
  }
  absl::StatusOr<proto::StopJobReply> StopJob(const proto::StopJobRequest&) override {
    return None();
  }
  absl::StatusOr<proto::GetStatusReply> GetStatus(const proto::GetStatusRequest&) override {
    return None();
  }
  absl::StatusOr<proto::RegisterReply> Register(const proto::RegisterRequest&) override {
    return None();
  }
  absl::StatusOr<proto::RenewLeaseReply> RenewLease(const proto::RenewLeaseRequest&) override {
    return None();
  }
  absl::StatusOr<proto::LeaveReply> Leave(const proto::LeaveRequest&) override { return None(); }
  absl::StatusOr<proto::JoinJobReply> JoinJob(const proto::JoinJobRequest&) override {
    return None();
  }
  absl::StatusOr<proto::NextStepReply> NextStep(const proto::NextStepRequest&) override {
    return None();
  }

  int streams() const { return streams_; }

 private:
  static absl::Status None() { return absl::UnimplementedError("not in this test"); }
  const int64_t total_;
  std::atomic<int> streams_{0};
};

class EventWatchTest : public testing::Test {
 protected:
  void Serve(rpc::CoordinatorHandler& handler) {
    std::vector<std::unique_ptr<rpc::Service>> services;
    services.push_back(rpc::MakeCoordinatorService(&handler));
    auto server = rpc::Server::Start({.token = token_}, std::move(services));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::shared_ptr<rpc::Channel> Connect(const rpc::Token& token) {
    return rpc::Channel::Create("127.0.0.1:" + std::to_string(server_->port()), token,
                                "coordinator");
  }

  const rpc::Token token_ = rpc::Token::Generate();
  std::unique_ptr<rpc::Server> server_;
};

TEST_F(EventWatchTest, EveryEventComesOnceAcrossBrokenStreams) {
  ForgetfulCoordinator coordinator(10);
  Serve(coordinator);
  EventWatch watch(Connect(token_), absl::Seconds(10));
  for (int64_t number = 1; number <= 10; ++number) {
    const auto event = watch.Next(absl::Seconds(10));
    ASSERT_TRUE(event.has_value()) << number;
    EXPECT_EQ(event->number(), number);
  }
  EXPECT_FALSE(watch.Next(absl::Milliseconds(10)).has_value());
  EXPECT_TRUE(watch.status().ok());
  EXPECT_EQ(coordinator.streams(), 4);
}

TEST_F(EventWatchTest, AWrongTokenIsGivenUpAtOnce) {
  ForgetfulCoordinator coordinator(10);
  Serve(coordinator);
  EventWatch watch(Connect(rpc::Token::Generate()), absl::Seconds(60));
  EXPECT_FALSE(watch.Next(absl::Seconds(10)).has_value());
  EXPECT_EQ(watch.status().code(), absl::StatusCode::kUnauthenticated) << watch.status();
}

TEST_F(EventWatchTest, AVanishedCoordinatorIsGivenUpAfterThePatience) {
  ForgetfulCoordinator coordinator(10);
  Serve(coordinator);
  auto channel = Connect(token_);
  server_.reset();
  EventWatch watch(std::move(channel), absl::Milliseconds(300));
  EXPECT_FALSE(watch.Next(absl::Seconds(30)).has_value());
  EXPECT_FALSE(watch.status().ok());
}

}  // namespace
}  // namespace shoal::cli
