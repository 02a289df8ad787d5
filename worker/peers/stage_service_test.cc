// The service's answers, call by call.
#include "worker/peers/stage_service.h"

#include <thread>

#include "absl/time/clock.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using ::testing::HasSubstr;

class StageServiceTest : public ::testing::Test {
 protected:
  StageServiceTest() {
    for (int i = 0; i < 3; ++i) {
      group_.workers.push_back(
          {.name = fmt::format("worker-{}", i), .incarnation = 100 + static_cast<uint64_t>(i)});
    }
  }

  // From stage 0 to this one.
  static proto::ConnectStageRequest Request(int64_t step, int64_t attempt) {
    proto::ConnectStageRequest request;
    request.set_job_id("job-1");
    request.set_incarnation(100);
    request.set_peer(101);
    request.set_stages(3);
    request.set_from(0);
    request.set_to(1);
    request.set_step(step);
    request.set_attempt(attempt);
    return request;
  }
  static proto::ConnectStageRequest Offering(int64_t step, int64_t attempt) {
    proto::ConnectStageRequest request = Request(step, attempt);
    request.add_offers()->set_transport("shm");
    return request;
  }
  static proto::ConnectStageRequest Confirming(int64_t step, int64_t attempt,
                                               const std::string& transport) {
    proto::ConnectStageRequest request = Request(step, attempt);
    request.set_confirmed(transport);
    return request;
  }
  std::string Refusal(const proto::ConnectStageRequest& request, absl::StatusCode code) {
    const absl::Status status = service_.ConnectStage(request).status();
    EXPECT_EQ(status.code(), code) << Describe(status);
    return std::string(Message(status));
  }
  void Expect(int64_t step, int64_t attempt) {
    const absl::Status expected = service_.Expect(
        {step, attempt},
        [this](const proto::ConnectStageRequest& request) -> absl::StatusOr<transport::TakenOffer> {
          ++accepted_;
          SHOAL_RETURN_IF_ERROR(refuse_);
          return transport::TakenOffer{request.offers(0).transport(), "answer", "reason"};
        });
    EXPECT_TRUE(expected.ok()) << expected;
  }

  StageGroup group_{.job_id = "job-1", .group = 4, .stage = 1};
  StageService service_{absl::Milliseconds(50)};
  int accepted_ = 0;
  absl::Status refuse_;
};

TEST_F(StageServiceTest, ACallForAnotherJobIsRefusedByName) {
  service_.Open(group_);
  Expect(1, 1);
  proto::ConnectStageRequest request = Offering(7, 1);
  request.set_job_id("job-2");
  EXPECT_EQ(Refusal(request, absl::StatusCode::kNotFound),
            "job-2 is not here; this worker works on job-1");
  EXPECT_EQ(accepted_, 0);
  EXPECT_TRUE(service_.CheckExpected().ok()) << "its attempt is not this job's";
  EXPECT_TRUE(service_.ConnectStage(Offering(1, 1)).ok());
}

TEST_F(StageServiceTest, AConnectionTakesThreeCalls) {
  service_.Open(group_);
  Expect(1, 1);
  ASSERT_TRUE(service_.ConnectStage(Request(1, 1)).ok());
  const auto reply = service_.ConnectStage(Offering(1, 1));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->transport(), "shm");
  EXPECT_EQ(reply->answer(), "answer");
  EXPECT_EQ(reply->reason(), "reason");
  // One that was accepted but not confirmed gives way to the next.
  ASSERT_TRUE(service_.ConnectStage(Offering(1, 1)).ok());
  EXPECT_EQ(accepted_, 2);
  EXPECT_THAT(Refusal(Confirming(1, 1, "tcp"), absl::StatusCode::kFailedPrecondition),
              HasSubstr("stage 0 (worker-0) confirms a connection over tcp"));
  ASSERT_TRUE(service_.ConnectStage(Confirming(1, 1, "shm")).ok());
  EXPECT_EQ(*service_.AwaitConfirmed(0, absl::Now()), "shm");
  service_.EndExpect();
  // The answer may have been lost.
  EXPECT_TRUE(service_.ConnectStage(Confirming(1, 1, "shm")).ok());
  EXPECT_THAT(Refusal(Offering(1, 1), absl::StatusCode::kFailedPrecondition),
              HasSubstr("cannot connect for step 1 attempt 1 any more"));
  EXPECT_EQ(accepted_, 2);
}

TEST_F(StageServiceTest, AConnectionThatGaveWayIsNotConfirmed) {
  service_.Open(group_);
  Expect(1, 1);
  ASSERT_TRUE(service_.ConnectStage(Offering(1, 1)).ok());
  refuse_ = absl::ResourceExhaustedError("no memory for another");
  EXPECT_EQ(Refusal(Offering(1, 1), absl::StatusCode::kResourceExhausted), "no memory for another");
  EXPECT_THAT(Refusal(Confirming(1, 1, "shm"), absl::StatusCode::kFailedPrecondition),
              HasSubstr("which was not accepted"));
}

TEST_F(StageServiceTest, CallersWaitForTheAttemptForAWhile) {
  EXPECT_THAT(Refusal(Request(1, 1), absl::StatusCode::kUnavailable),
              HasSubstr("has not come to step 1 attempt 1 yet; try again"));
  service_.Open(group_);
  EXPECT_THAT(Refusal(Offering(3, 2), absl::StatusCode::kUnavailable),
              HasSubstr("has not come to step 3 attempt 2"));
  Expect(3, 2);
  EXPECT_TRUE(service_.ConnectStage(Offering(3, 2)).ok());
  EXPECT_THAT(Refusal(Offering(3, 1), absl::StatusCode::kFailedPrecondition),
              HasSubstr("step 3 attempt 1 is over, this worker is at step 3 attempt 2"));
}

TEST_F(StageServiceTest, AfterAJobItTakesPartInTheNext) {
  service_.Open(group_);
  Expect(3, 2);
  EXPECT_TRUE(service_.ConnectStage(Offering(3, 2)).ok());
  service_.Close(absl::CancelledError("the run is over"));
  service_.Reset();
  EXPECT_THAT(Refusal(Offering(1, 1), absl::StatusCode::kUnavailable), HasSubstr("try again"));
  service_.Open(group_);
  Expect(1, 1);
  EXPECT_TRUE(service_.ConnectStage(Offering(1, 1)).ok()) << "an earlier step than the last job's";
}

TEST_F(StageServiceTest, OthersAreRefused) {
  service_.Open(group_);
  Expect(1, 1);
  const auto refused = [&](auto change) {
    proto::ConnectStageRequest request = Offering(1, 1);
    change(request);
    EXPECT_THAT(Refusal(request, absl::StatusCode::kPermissionDenied),
                HasSubstr("this is stage 1 of 3 in group 4"));
  };
  refused([](auto& request) { request.set_incarnation(102); });
  refused([](auto& request) { request.set_peer(100); });
  refused([](auto& request) { request.set_stages(2); });
  refused([](auto& request) { request.set_to(2); });
  refused([](auto& request) { request.set_from(1); });
  refused([](auto& request) { request.set_from(2); });
  refused([](auto& request) { request.set_from(-1); });
  EXPECT_EQ(accepted_, 0);
}

TEST_F(StageServiceTest, WaitingEndsWithTheTimeWithALaterAttemptAndWithTheWorker) {
  service_.Open(group_);
  Expect(2, 1);
  EXPECT_THAT(std::string(Message(service_.AwaitConfirmed(0, absl::Now()).status())),
              HasSubstr("stage 0 (worker-0) did not connect for step 2 attempt 1 in time"));
  std::thread later([&] { EXPECT_FALSE(service_.ConnectStage(Request(2, 2)).ok()); });
  const absl::Status over = service_.AwaitConfirmed(0, absl::Now() + absl::Seconds(20)).status();
  EXPECT_TRUE(absl::IsAborted(over)) << Describe(over);
  EXPECT_THAT(std::string(Message(over)), HasSubstr("another stage is at step 2 attempt 2"));
  later.join();
  service_.EndExpect();
  EXPECT_TRUE(absl::IsFailedPrecondition(service_.Expect({2, 1}, nullptr)))
      << "an attempt repeated";
  Expect(2, 2);
  EXPECT_TRUE(service_.CheckExpected().ok());
  std::thread close([&] { service_.Close(absl::CancelledError("leaving")); });
  EXPECT_TRUE(absl::IsCancelled(service_.AwaitConfirmed(0, absl::InfiniteFuture()).status()));
  close.join();
  EXPECT_EQ(Refusal(Request(2, 2), absl::StatusCode::kCancelled), "leaving");
}

}  // namespace
}  // namespace shoal::worker
