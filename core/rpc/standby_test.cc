// A channel of several coordinators, of which one leads.
#include <atomic>

#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/rpc/channel.h"
#include "core/rpc/grpc_support.h"
#include "core/rpc/testing/any_services.h"
#include "gmock/gmock.h"
#include "grpcpp/support/status.h"
#include "gtest/gtest.h"

namespace shoal::rpc {
namespace {

using ::testing::_;
using ::testing::HasSubstr;
using ::testing::NiceMock;
using ::testing::Return;

class StandbyTest : public ::testing::Test {
 protected:
  struct One {
    NiceMock<AnyCoordinator> service;
    std::unique_ptr<Server> server;
    std::string address;
  };
  void SetUp() override {
    for (One& one : coordinators_) {
      std::vector<std::unique_ptr<Service>> services;
      services.push_back(MakeCoordinatorService(&one.service));
      one.server = *Server::Start({.security = token_}, std::move(services));
      one.address = fmt::format("127.0.0.1:{}", one.server->port());
    }
  }
  // That one does, and the others name `told`.
  void Leads(size_t leader, const std::string& told) {
    for (size_t one = 0; one < coordinators_.size(); ++one) {
      NiceMock<AnyCoordinator>& service = coordinators_[one].service;
      proto::ListJobsReply jobs;
      jobs.add_jobs()->set_job_id(fmt::format("of-{}", one));
      const absl::Status away = StandsBy(told);
      ON_CALL(service, ListJobs(_))
          .WillByDefault(Return(one == leader ? absl::StatusOr<proto::ListJobsReply>(jobs) : away));
      ON_CALL(service, SubmitJob(_))
          .WillByDefault(Return(one == leader
                                    ? absl::StatusOr<proto::SubmitJobReply>(proto::SubmitJobReply())
                                    : away));
      ON_CALL(service, WatchJob(_, _))
          .WillByDefault(Return(one == leader ? absl::OkStatus() : away));
    }
  }
  std::shared_ptr<Channel> ToAll() const {
    return Channel::Create(fmt::format("{},{},{}", coordinators_[0].address,
                                       coordinators_[1].address, coordinators_[2].address),
                           token_, Role::kCoordinator);
  }
  static std::string WhoAnswers(Channel& channel) {
    const auto reply = channel.Call(&CoordinatorService::ListJobs, {});
    return reply.ok() ? reply->jobs(0).job_id() : std::string(Message(reply.status()));
  }

  const Token token_ = Token::Generate();
  std::array<One, 3> coordinators_;
};

TEST_F(StandbyTest, CallsGoToWhoLeads) {
  const auto channel = ToAll();
  Leads(0, coordinators_[0].address);
  EXPECT_EQ(WhoAnswers(*channel), "of-0");
  Leads(2, coordinators_[2].address);
  EXPECT_CALL(coordinators_[1].service, ListJobs(_)).Times(0);
  EXPECT_EQ(WhoAnswers(*channel), "of-2") << "who was named is asked";
}

TEST_F(StandbyTest, ThatNoListNamesIsFoundByAskingAll) {
  Leads(2, "elsewhere:1");
  EXPECT_EQ(WhoAnswers(*ToAll()), "of-2");
  const auto channel = ToAll();
  EXPECT_TRUE(channel->Call(&CoordinatorService::SubmitJob, {}, {.wait_for_connection = true}).ok())
      << "who stands by has not taken it";
}

TEST_F(StandbyTest, WhoIsGoneIsPassedBy) {
  const auto channel = ToAll();
  Leads(0, coordinators_[0].address);
  EXPECT_EQ(WhoAnswers(*channel), "of-0");
  coordinators_[0].server->Shutdown(absl::Seconds(1));
  Leads(1, coordinators_[1].address);
  EXPECT_EQ(WhoAnswers(*channel), "of-1");
  EXPECT_TRUE(ToAll()->Call(&CoordinatorService::SubmitJob, {}).ok()) << "it cannot have heard";
}

TEST_F(StandbyTest, WhoseNameIsUnknownIsPassedBy) {
  Leads(0, "");
  const auto channel = Channel::Create("no-such-host.invalid:1," + coordinators_[0].address, token_,
                                       Role::kCoordinator);
  const auto reply = channel->Call(&CoordinatorService::SubmitJob, {});
  EXPECT_TRUE(reply.ok()) << reply.status();
}

TEST_F(StandbyTest, AJobWaitsUntilOneLeads) {
  Leads(coordinators_.size(), "");
  std::atomic<int> asked = 0;
  ON_CALL(coordinators_[1].service, SubmitJob(_))
      .WillByDefault([&asked](const auto&) -> absl::StatusOr<proto::SubmitJobReply> {
        return ++asked < 4 ? absl::StatusOr<proto::SubmitJobReply>(StandsBy(""))
                           : proto::SubmitJobReply();
      });
  coordinators_[2].server->Shutdown(absl::Seconds(1));
  EXPECT_FALSE(ToAll()->Call(&CoordinatorService::SubmitJob, {}).ok());
  const auto reply =
      ToAll()->Call(&CoordinatorService::SubmitJob, {}, {.wait_for_connection = true});
  EXPECT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(asked, 4);
  const absl::Status never = ToAll()
                                 ->Call(&CoordinatorService::ListJobs, {},
                                        {.deadline = absl::Seconds(1), .wait_for_connection = true})
                                 .status();
  EXPECT_FALSE(never.ok()) << "until its deadline";
}

// It may have been taken, and the answer lost.
TEST_F(StandbyTest, AJobIsNotSubmittedTwice) {
  Leads(1, "");
  ON_CALL(coordinators_[0].service, SubmitJob(_)).WillByDefault(Return(Unavailable("broken")));
  EXPECT_CALL(coordinators_[1].service, SubmitJob(_)).Times(0);
  EXPECT_TRUE(absl::IsUnavailable(ToAll()->Call(&CoordinatorService::SubmitJob, {}).status()));
}

TEST_F(StandbyTest, AStreamIsOpenedAtTheNext) {
  Leads(1, coordinators_[1].address);
  const auto channel = ToAll();
  const auto watch = [&channel] {
    return channel->Watch(&CoordinatorService::WatchJob, {},
                          [](const proto::JobEvent&) { return true; }, {});
  };
  EXPECT_TRUE(absl::IsUnavailable(watch()));
  EXPECT_TRUE(watch().ok());
}

TEST_F(StandbyTest, WhereNoneLeadsThatIsNoRefusal) {
  Leads(coordinators_.size(), "");
  const absl::Status status = ToAll()->Call(&CoordinatorService::ListJobs, {}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(Message(status)),
              HasSubstr("ListJobs: it stands by, and none leads at the moment"));
  EXPECT_EQ(LeaderIn(FromGrpc(ToGrpc(StandsBy("a:1")))), "a:1");
  EXPECT_EQ(LeaderIn(FromGrpc(ToGrpc(StandsBy("")))), "");
  EXPECT_EQ(LeaderIn(FromGrpc(ToGrpc(FailedPrecondition("other")))), std::nullopt);
}

}  // namespace
}  // namespace shoal::rpc
