// The whole way of a call: typed client, token, server wrapper, service, and the errors a person
// would see.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/rpc/coordinator_client.h"
#include "core/rpc/coordinator_service.h"
#include "core/rpc/parameter_server_client.h"
#include "core/rpc/parameter_server_service.h"
#include "core/rpc/stage_client.h"
#include "core/rpc/stage_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::rpc {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class FakeCoordinator final : public CoordinatorService {
 public:
  absl::StatusOr<proto::SubmitJobReply> SubmitJob(const proto::SubmitJobRequest& request) override {
    if (request.job().model() == "throw") {
      throw std::runtime_error("boom");
    }
    return InvalidArgument("job.yaml:3: unknown key 'modle'; did you mean 'model'?");
  }
  absl::StatusOr<proto::StopJobReply> StopJob(const proto::StopJobRequest&) override {
    return proto::StopJobReply();
  }
  absl::StatusOr<proto::GetStatusReply> GetStatus(const proto::GetStatusRequest&) override {
    proto::GetStatusReply reply;
    reply.set_state(std::string(20 << 20, 's'));  // over gRPC's default limit of 4 MiB
    return reply;
  }
  absl::StatusOr<proto::RegisterReply> Register(const proto::RegisterRequest& request) override {
    proto::RegisterReply reply;
    reply.set_index(static_cast<int>(request.pid()) + 1);
    return reply;
  }
  absl::StatusOr<proto::RenewLeaseReply> RenewLease(const proto::RenewLeaseRequest&) override {
    return proto::RenewLeaseReply();
  }
  absl::StatusOr<proto::LeaveReply> Leave(const proto::LeaveRequest&) override {
    return proto::LeaveReply();
  }
  absl::StatusOr<proto::JoinJobReply> JoinJob(const proto::JoinJobRequest&) override {
    return proto::JoinJobReply();
  }
  absl::StatusOr<proto::NextStepReply> NextStep(const proto::NextStepRequest&) override {
    waiting.Notify();
    release.WaitForNotification();
    return proto::NextStepReply();
  }
  absl::StatusOr<proto::DrawMicrobatchReply> DrawMicrobatch(
      const proto::DrawMicrobatchRequest& request) override {
    proto::DrawMicrobatchReply reply;
    reply.mutable_microbatch()->add_samples(10 * request.number());
    return reply;
  }
  absl::Status WatchJob(const proto::WatchJobRequest& request, EventStream& events) override {
    for (int64_t number = request.after_event() + 1; number <= 5; ++number) {
      proto::JobEvent event;
      event.set_number(number);
      events.Write(event);
    }
    return absl::OkStatus();
  }

  absl::Notification waiting;
  absl::Notification release;
};

class RpcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::unique_ptr<Service>> services;
    services.push_back(MakeCoordinatorService(&service_));
    auto server = Server::Start({.listen = "127.0.0.1:0", .token = token_}, std::move(services));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
    target_ = fmt::format("127.0.0.1:{}", server_->port());
  }
  CoordinatorClient Client(const Token& token) {
    return CoordinatorClient(Channel::Create(target_, token, "coordinator"));
  }

  FakeCoordinator service_;
  const Token token_ = Token::Generate();
  std::unique_ptr<Server> server_;
  std::string target_;
};

TEST_F(RpcTest, CallsReachTheService) {
  CoordinatorClient client = Client(token_);
  proto::RegisterRequest request;
  request.set_pid(41);
  const auto reply = client.Register(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->index(), 42);
  proto::DrawMicrobatchRequest draw;
  draw.set_number(3);
  EXPECT_EQ(client.DrawMicrobatch(draw)->microbatch().samples(0), 30);
}

TEST_F(RpcTest, ErrorsKeepCodeAndMessageAndNamePeerAndMethod) {
  CoordinatorClient client = Client(token_);
  const absl::Status status = client.SubmitJob({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      Message(status),
      fmt::format(
          "coordinator at {}: SubmitJob: job.yaml:3: unknown key 'modle'; did you mean 'model'?",
          target_));
}

TEST_F(RpcTest, ExceptionsEndTheCallAlone) {
  CoordinatorClient client = Client(token_);
  proto::SubmitJobRequest request;
  request.mutable_job()->set_model("throw");
  EXPECT_EQ(client.SubmitJob(request).status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(client.Leave({}).ok());
}

TEST_F(RpcTest, EveryMethodNeedsTheToken) {
  for (const Token& token : {Token(), Token::Generate()}) {
    CoordinatorClient client = Client(token);
    const std::vector<absl::Status> answers = {
        client.SubmitJob({}).status(),
        client.StopJob({}).status(),
        client.GetStatus({}).status(),
        client.Register({}).status(),
        client.RenewLease({}).status(),
        client.Leave({}).status(),
        client.JoinJob({}, {}).status(),
        client.NextStep({}, {}).status(),
        client.WatchJob({}, [](const proto::JobEvent&) { return true; }, {})};
    for (const absl::Status& status : answers) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
      if (!token.empty()) {
        EXPECT_THAT(std::string(Message(status)), Not(HasSubstr(token.secret())));
      }
    }
  }
}

TEST_F(RpcTest, LargeMessagesPass) {
  CoordinatorClient client = Client(token_);
  const auto reply = client.GetStatus({});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->state().size(), size_t{20} << 20);
}

TEST_F(RpcTest, EventsStreamFromANumberOn) {
  CoordinatorClient client = Client(token_);
  proto::WatchJobRequest request;
  request.set_after_event(2);
  std::vector<int64_t> numbers;
  EXPECT_TRUE(client
                  .WatchJob(request,
                            [&](const proto::JobEvent& event) {
                              numbers.push_back(event.number());
                              return true;
                            },
                            {})
                  .ok());
  EXPECT_EQ(numbers, (std::vector<int64_t>{3, 4, 5}));
  EXPECT_TRUE(client.WatchJob({}, [](const proto::JobEvent&) { return false; }, {}).ok());
}

TEST_F(RpcTest, CancelEndsACallThatWaits) {
  auto channel = Channel::Create(target_, token_, "coordinator");
  CoordinatorClient client(channel);
  absl::Status status;
  std::thread caller(
      [&] { status = client.NextStep({}, {.deadline = absl::Seconds(30)}).status(); });
  service_.waiting.WaitForNotification();
  channel->Cancel();
  caller.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(client.Leave({}).status().code(), absl::StatusCode::kCancelled);
  service_.release.Notify();
}

TEST_F(RpcTest, AnUnreachablePeerFailsFastAndIsNamed) {
  server_->Shutdown(absl::ZeroDuration());
  CoordinatorClient client = Client(token_);
  const absl::Status status = client.Leave({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("coordinator at " + target_ + ": Leave"));
}

TEST_F(RpcTest, APortInUseGivesOneClearLine) {
  const auto second = Server::Start({.listen = target_, .token = token_}, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Message(second.status())),
              HasSubstr("cannot listen on " + target_ + ": Address already in use"));
}

TEST(ServerTest, RefusesBadAddressesAndAnEmptyToken) {
  EXPECT_EQ(Server::Start({.listen = "nonsense", .token = Token::Generate()}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      Server::Start({.listen = "127.0.0.1:http", .token = Token::Generate()}, {}).status().code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Server::Start({.listen = "127.0.0.1:0"}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

class FakeServer final : public ParameterServerService {
 public:
  absl::StatusOr<proto::ConfigureReply> Configure(const proto::ConfigureRequest&) override {
    return proto::ConfigureReply();
  }
  absl::StatusOr<proto::BeginAttemptReply> BeginAttempt(
      const proto::BeginAttemptRequest&) override {
    return proto::BeginAttemptReply();
  }
  absl::StatusOr<proto::PrepareReply> Prepare(const proto::PrepareRequest& request) override {
    proto::PrepareReply reply;
    reply.add_partitions()->set_non_finite(request.step());
    return reply;
  }
  absl::StatusOr<proto::CommitReply> Commit(const proto::CommitRequest&) override {
    if (++commits < 3) {
      return Unavailable("just a moment");
    }
    return Aborted("step 3 was never prepared");
  }
  absl::StatusOr<proto::WriteCheckpointReply> WriteCheckpoint(
      const proto::WriteCheckpointRequest&) override {
    return proto::WriteCheckpointReply();
  }
  absl::StatusOr<proto::GetChecksumsReply> GetChecksums(
      const proto::GetChecksumsRequest&) override {
    return proto::GetChecksumsReply();
  }
  absl::StatusOr<proto::FenceClientReply> FenceClient(const proto::FenceClientRequest&) override {
    return proto::FenceClientReply();
  }
  absl::StatusOr<proto::ConnectReply> Connect(const proto::ConnectRequest&) override {
    return proto::ConnectReply();
  }

  std::atomic<int> commits = 0;
};

TEST(ParameterServerRpcTest, AsyncCallsAnswerExactlyOnce) {
  FakeServer service;
  const Token token = Token::Generate();
  std::vector<std::unique_ptr<Service>> services;
  services.push_back(MakeParameterServerService(&service));
  auto server = Server::Start({.token = token}, std::move(services));
  ASSERT_TRUE(server.ok()) << server.status();
  auto channel = Channel::Create(fmt::format("127.0.0.1:{}", (*server)->port()), token, "server-0");
  ParameterServerClient client(channel);
  absl::Notification prepared;
  absl::Notification committed;
  proto::PrepareRequest request;
  request.set_step(7);
  client.PrepareAsync(request, {}, [&](absl::StatusOr<proto::PrepareReply> reply) {
    EXPECT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->partitions(0).non_finite(), 7);
    prepared.Notify();
  });
  client.CommitAsync({}, {}, [&](absl::StatusOr<proto::CommitReply> reply) {
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(Message(reply.status())), HasSubstr("server-0 at 127.0.0.1"));
    EXPECT_THAT(std::string(Message(reply.status())),
                HasSubstr("Commit: step 3 was never prepared"));
    committed.Notify();
  });
  ASSERT_TRUE(prepared.WaitForNotificationWithTimeout(absl::Seconds(10)));
  ASSERT_TRUE(committed.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_EQ(service.commits, 3);  // Unavailable is tried again, what the server refuses is not
  channel->Cancel();
  absl::Notification cancelled;
  client.FenceClientAsync({}, {}, [&](absl::StatusOr<proto::FenceClientReply> reply) {
    EXPECT_FALSE(reply.ok());
    cancelled.Notify();
  });
  ASSERT_TRUE(cancelled.WaitForNotificationWithTimeout(absl::Seconds(10)));
}

class EchoStage final : public StageService {
 public:
  absl::StatusOr<proto::ConnectStageReply> ConnectStage(
      const proto::ConnectStageRequest& request) override {
    if (request.to() != 1) {
      return FailedPrecondition("this is stage 1");
    }
    proto::ConnectStageReply reply;
    reply.set_answer(request.offers(0).offer());
    return reply;
  }
  absl::StatusOr<proto::JoinRendezvousReply> JoinRendezvous(
      const proto::JoinRendezvousRequest& request) override {
    proto::JoinRendezvousReply reply;
    reply.set_id(request.gpu());
    return reply;
  }
};

TEST(StageRpcTest, CallsReachTheServiceWithTheTokenAlone) {
  EchoStage service;
  const Token token = Token::Generate();
  std::vector<std::unique_ptr<Service>> services;
  services.push_back(MakeStageService(&service));
  auto server = Server::Start({.token = token}, std::move(services));
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string target = fmt::format("127.0.0.1:{}", (*server)->port());
  StageClient client(Channel::Create(target, token, "worker-1"));
  proto::ConnectStageRequest request;
  request.set_to(1);
  request.add_offers()->set_offer("take this");
  const auto reply = client.ConnectStage(request, {});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->answer(), "take this");
  proto::JoinRendezvousRequest join;
  join.set_gpu("this one");
  const auto met = client.JoinRendezvous(join, {});
  ASSERT_TRUE(met.ok()) << met.status();
  EXPECT_EQ(met->id(), "this one");
  request.set_to(2);
  EXPECT_THAT(std::string(Message(client.ConnectStage(request, {}).status())),
              HasSubstr("worker-1 at " + target + ": ConnectStage: this is stage 1"));
  StageClient stranger(Channel::Create(target, Token::Generate(), "worker-1"));
  EXPECT_TRUE(absl::IsUnauthenticated(stranger.ConnectStage(request, {}).status()));
}

}  // namespace
}  // namespace shoal::rpc
