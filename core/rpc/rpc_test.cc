// A call from end to end: channel, token, service, and errors as users see them.
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/rpc/channel.h"
#include "core/rpc/coordinator_service.h"
#include "core/rpc/health.h"
#include "core/rpc/parameter_server_service.h"
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
  absl::StatusOr<HeldCall<proto::HoldConnectionReply>> HoldConnection(
      const proto::HoldConnectionRequest&) override {
    return Unimplemented("not here");
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
  absl::Status WatchJob(const proto::WatchJobRequest& request, const JobEvents& events) override {
    for (int64_t number = request.after_event() + 1; number <= 5; ++number) {
      proto::JobEvent event;
      event.set_number(number);
      events.write(event);
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
    auto server = Server::Start({.listen = "127.0.0.1:0", .security = token_}, std::move(services));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
    target_ = fmt::format("127.0.0.1:{}", server_->port());
  }
  std::shared_ptr<Channel> Connect(const Token& token) {
    return Channel::Create(target_, token, Role::kCoordinator);
  }

  FakeCoordinator service_;
  const Token token_ = Token::Generate();
  std::unique_ptr<Server> server_;
  std::string target_;
};

TEST_F(RpcTest, CallsReachTheService) {
  const std::shared_ptr<Channel> coordinator = Connect(token_);
  proto::RegisterRequest request;
  request.set_pid(41);
  const auto reply = coordinator->Call(&CoordinatorService::Register, request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->index(), 42);
  proto::DrawMicrobatchRequest draw;
  draw.set_number(3);
  EXPECT_EQ(coordinator->Call(&CoordinatorService::DrawMicrobatch, draw)->microbatch().samples(0),
            30);
}

TEST_F(RpcTest, ErrorsKeepCodeAndMessageAndNamePeerAndMethod) {
  const std::shared_ptr<Channel> coordinator = Connect(token_);
  const absl::Status status = coordinator->Call(&CoordinatorService::SubmitJob, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      Message(status),
      fmt::format(
          "coordinator at {}: SubmitJob: job.yaml:3: unknown key 'modle'; did you mean 'model'?",
          target_));
}

TEST_F(RpcTest, ExceptionsEndTheCallAlone) {
  const std::shared_ptr<Channel> coordinator = Connect(token_);
  proto::SubmitJobRequest request;
  request.mutable_job()->set_model("throw");
  EXPECT_EQ(coordinator->Call(&CoordinatorService::SubmitJob, request).status().code(),
            absl::StatusCode::kInternal);
  EXPECT_TRUE(coordinator->Call(&CoordinatorService::Leave, {}).ok());
}

TEST_F(RpcTest, EveryMethodNeedsTheToken) {
  for (const Token& token : {Token(), Token::Generate()}) {
    const std::shared_ptr<Channel> coordinator = Connect(token);
    const std::vector<absl::Status> answers = {
        coordinator->Call(&CoordinatorService::SubmitJob, {}).status(),
        coordinator->Call(&CoordinatorService::StopJob, {}).status(),
        coordinator->Call(&CoordinatorService::GetStatus, {}).status(),
        coordinator->Call(&CoordinatorService::Register, {}).status(),
        coordinator->Call(&CoordinatorService::RenewLease, {}).status(),
        coordinator->Call(&CoordinatorService::Leave, {}).status(),
        coordinator->Call(&CoordinatorService::JoinJob, {}, {}).status(),
        coordinator->Call(&CoordinatorService::NextStep, {}, {}).status(),
        coordinator->Watch(&CoordinatorService::WatchJob, {},
                           [](const proto::JobEvent&) { return true; }, {})};
    for (const absl::Status& status : answers) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
      if (!token.empty()) {
        EXPECT_THAT(std::string(Message(status)), Not(HasSubstr(token.secret())));
      }
    }
  }
}

TEST_F(RpcTest, LargeMessagesPass) {
  const std::shared_ptr<Channel> coordinator = Connect(token_);
  const auto reply =
      coordinator->Call(&CoordinatorService::GetStatus, {}, {.deadline = absl::Minutes(1)});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->state().size(), size_t{20} << 20);
}

TEST_F(RpcTest, EventsStreamFromANumberOn) {
  const std::shared_ptr<Channel> coordinator = Connect(token_);
  proto::WatchJobRequest request;
  request.set_after_event(2);
  std::vector<int64_t> numbers;
  EXPECT_TRUE(coordinator
                  ->Watch(&CoordinatorService::WatchJob, request,
                          [&](const proto::JobEvent& event) {
                            numbers.push_back(event.number());
                            return true;
                          },
                          {})
                  .ok());
  EXPECT_EQ(numbers, (std::vector<int64_t>{3, 4, 5}));
  EXPECT_TRUE(coordinator
                  ->Watch(&CoordinatorService::WatchJob, {},
                          [](const proto::JobEvent&) { return false; }, {})
                  .ok());
}

TEST_F(RpcTest, CancelEndsACallThatWaits) {
  const std::shared_ptr<Channel> coordinator = Connect(token_);
  absl::Status status;
  std::thread caller([&] {
    status = coordinator->Call(&CoordinatorService::NextStep, {}, {.deadline = absl::Seconds(30)})
                 .status();
  });
  service_.waiting.WaitForNotification();
  coordinator->Cancel();
  caller.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(coordinator->Call(&CoordinatorService::Leave, {}).status().code(),
            absl::StatusCode::kCancelled);
  service_.release.Notify();
}

TEST_F(RpcTest, AnUnreachablePeerFailsFastAndIsNamed) {
  server_->Shutdown(absl::ZeroDuration());
  const std::shared_ptr<Channel> coordinator = Connect(token_);
  const absl::Status status = coordinator->Call(&CoordinatorService::Leave, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Message(status), "coordinator at " + target_ +
                                 ": Leave: Connection refused: nothing listens there; is it "
                                 "started, on this port?");
}

TEST_F(RpcTest, AnUnknownHostIsNamed) {
  const auto coordinator = Channel::Create("no-such-host.invalid:4000", token_, Role::kCoordinator);
  const absl::Status status = coordinator->Call(&CoordinatorService::Leave, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Message(status)),
              HasSubstr("cannot find host no-such-host.invalid; look at its name"));
}

TEST_F(RpcTest, APortInUseGivesOneClearLine) {
  const auto second = Server::Start({.listen = target_, .security = token_}, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Message(second.status())),
              HasSubstr("cannot listen on " + target_ + ": Address already in use"));
}

TEST(ServerTest, RefusesBadAddressesAndAnEmptyToken) {
  EXPECT_EQ(
      Server::Start({.listen = "nonsense", .security = Token::Generate()}, {}).status().code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Server::Start({.listen = "127.0.0.1:http", .security = Token::Generate()}, {})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Server::Start({.listen = "127.0.0.1:0"}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

class FakeServer final : public ParameterServerService {
 public:
  absl::StatusOr<proto::TakeOverReply> TakeOver(const proto::TakeOverRequest&) override {
    return proto::TakeOverReply();
  }
  absl::StatusOr<proto::ConfigureReply> Configure(const proto::ConfigureRequest&) override {
    return proto::ConfigureReply();
  }
  absl::StatusOr<proto::BeginAttemptReply> BeginAttempt(
      const proto::BeginAttemptRequest&) override {
    return proto::BeginAttemptReply();
  }
  absl::StatusOr<proto::PrepareReply> Prepare(const proto::PrepareRequest& request) override {
    proto::PrepareReply reply;
    reply.add_non_finite(request.step());
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
  absl::StatusOr<proto::AdmitClientsReply> AdmitClients(
      const proto::AdmitClientsRequest&) override {
    return proto::AdmitClientsReply();
  }
  absl::StatusOr<proto::FenceClientReply> FenceClient(const proto::FenceClientRequest&) override {
    return proto::FenceClientReply();
  }
  absl::StatusOr<proto::ReleaseJobReply> ReleaseJob(const proto::ReleaseJobRequest&) override {
    return proto::ReleaseJobReply();
  }
  absl::StatusOr<proto::ReserveReply> Reserve(const proto::ReserveRequest&) override {
    return proto::ReserveReply();
  }
  absl::StatusOr<proto::FetchReply> Fetch(const proto::FetchRequest&) override {
    return proto::FetchReply();
  }
  absl::StatusOr<proto::ReplicateReply> Replicate(const proto::ReplicateRequest&) override {
    return proto::ReplicateReply();
  }
  absl::StatusOr<proto::TakeGradientReply> TakeGradient(
      const proto::TakeGradientRequest&) override {
    return proto::TakeGradientReply();
  }
  absl::StatusOr<proto::ReadStateReply> ReadState(const proto::ReadStateRequest&) override {
    return proto::ReadStateReply();
  }
  absl::StatusOr<proto::ConnectStateReply> ConnectState(
      const proto::ConnectStateRequest&) override {
    return proto::ConnectStateReply();
  }
  absl::StatusOr<proto::ConnectReply> Connect(const proto::ConnectRequest&) override {
    return proto::ConnectReply();
  }

  std::atomic<int> commits = 0;
};

class ParameterServerRpcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::unique_ptr<Service>> services;
    services.push_back(MakeParameterServerService(&service_));
    auto server = Server::Start({.security = token_}, std::move(services));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::shared_ptr<Channel> Connect() const {
    return Channel::Create(fmt::format("127.0.0.1:{}", server_->port()), token_, Role::kServer,
                           "server-0");
  }

  FakeServer service_;
  const Token token_ = Token::Generate();
  std::unique_ptr<Server> server_;
};

TEST_F(ParameterServerRpcTest, AsyncCallsAnswerExactlyOnce) {
  const std::shared_ptr<Channel> channel = Connect();
  absl::Notification prepared;
  absl::Notification committed;
  proto::PrepareRequest request;
  request.set_step(7);
  channel->CallAsync(&ParameterServerService::Prepare, request, {},
                     [&](absl::StatusOr<proto::PrepareReply> reply) {
                       EXPECT_TRUE(reply.ok()) << reply.status();
                       EXPECT_EQ(reply->non_finite(0), 7);
                       prepared.Notify();
                     });
  channel->CallAsync(
      &ParameterServerService::Commit, {}, {}, [&](absl::StatusOr<proto::CommitReply> reply) {
        EXPECT_EQ(reply.status().code(), absl::StatusCode::kAborted);
        EXPECT_THAT(std::string(Message(reply.status())), HasSubstr("server-0 at 127.0.0.1"));
        EXPECT_THAT(std::string(Message(reply.status())),
                    HasSubstr("Commit: step 3 was never prepared"));
        committed.Notify();
      });
  ASSERT_TRUE(prepared.WaitForNotificationWithTimeout(absl::Seconds(10)));
  ASSERT_TRUE(committed.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_EQ(service_.commits, 3);  // retries Unavailable, not the server's refusals
  channel->Cancel();
  absl::Notification cancelled;
  channel->CallAsync(&ParameterServerService::FenceClient, {}, {},
                     [&](absl::StatusOr<proto::FenceClientReply> reply) {
                       EXPECT_FALSE(reply.ok());
                       cancelled.Notify();
                     });
  ASSERT_TRUE(cancelled.WaitForNotificationWithTimeout(absl::Seconds(10)));
}

TEST_F(ParameterServerRpcTest, TheLastChannelMayGoWithItsLastCall) {
  for (int i = 0; i < 20; ++i) {
    std::shared_ptr<Channel> channel = Connect();
    absl::Notification ended;
    Channel& last = *channel;
    last.CallAsync(&ParameterServerService::FenceClient, {}, {},
                   [&](const absl::StatusOr<proto::FenceClientReply>& /*reply*/) {
                     channel.reset();
                     ended.Notify();
                   });
    ASSERT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(10)));
  }
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
  auto server = Server::Start({.security = token}, std::move(services));
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string target = fmt::format("127.0.0.1:{}", (*server)->port());
  const auto worker = Channel::Create(target, token, Role::kWorker, "worker-1");
  proto::ConnectStageRequest request;
  request.set_to(1);
  request.add_offers()->set_offer("take this");
  const auto reply = worker->Call(&StageService::ConnectStage, request, {});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->answer(), "take this");
  proto::JoinRendezvousRequest join;
  join.set_gpu("this one");
  const auto met = worker->Call(&StageService::JoinRendezvous, join, {});
  ASSERT_TRUE(met.ok()) << met.status();
  EXPECT_EQ(met->id(), "this one");
  request.set_to(2);
  EXPECT_THAT(std::string(Message(worker->Call(&StageService::ConnectStage, request, {}).status())),
              HasSubstr("worker-1 at " + target + ": ConnectStage: this is stage 1"));
  const auto stranger = Channel::Create(target, Token::Generate(), Role::kWorker, "worker-1");
  EXPECT_TRUE(
      absl::IsUnauthenticated(stranger->Call(&StageService::ConnectStage, request, {}).status()));
}

TEST(HealthTest, ProbesAskForLiveAndReady) {
  const auto health = Health::Serve(0, "127.0.0.1:9").value();
  const auto channel = grpc::CreateChannel(fmt::format("127.0.0.1:{}", health->port()),
                                           grpc::InsecureChannelCredentials());
  // The request is a message with the name as field 1, the answer one with a status as field 1.
  const auto serving = [&channel](const std::string& name) {
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const grpc::Slice slice(fmt::format("\x0A{}{}", static_cast<char>(name.size()), name));
    const grpc::ByteBuffer request(&slice, 1);
    const auto call =
        stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
    call->StartCall();
    grpc::ByteBuffer reply;
    grpc::Status status;
    call->Finish(&reply, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    EXPECT_TRUE(status.ok()) << status.error_message();
    grpc::Slice answer;
    reply.DumpToSingleSlice(&answer).ok();
    return std::string(answer.begin(), answer.end()) == "\x08\x01";
  };
  EXPECT_TRUE(serving("live"));
  EXPECT_FALSE(serving("ready"));
  health->SetReady(true);
  EXPECT_TRUE(serving("ready"));
  EXPECT_EQ(Health::Serve(-1, "127.0.0.1:9").value()->port(), -1);
}

}  // namespace
}  // namespace shoal::rpc
