// The service's answers to peers, call by call.
#include "worker/peers/peer_service.h"

#include <thread>

#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using ::testing::HasSubstr;

class PeerServiceTest : public ::testing::Test {
 protected:
  PeerServiceTest() {
    for (int i = 0; i < 3; ++i) {
      peers_.workers.push_back(
          {.name = fmt::format("worker-{}", i), .incarnation = 100 + static_cast<uint64_t>(i)});
    }
  }

  void Open() {
    service_.Open(peers_, [this]() -> absl::StatusOr<std::string> {
      ++ids_;
      return fmt::format("id {}", ids_);
    });
  }
  static proto::JoinRendezvousRequest Request(int rank, StepAttempt attempt = {}) {
    proto::JoinRendezvousRequest request;
    request.set_job_id("job-1");
    request.set_incarnation(100 + static_cast<uint64_t>(rank));
    request.set_peer(100);
    request.set_rank(rank);
    request.set_peers(3);
    request.set_step(attempt.step);
    request.set_attempt(attempt.attempt);
    request.set_generation(7);
    request.set_gpu(fmt::format("gpu {}", rank));
    request.set_version(22809);
    return request;
  }
  // Calls from all three concurrently.
  std::vector<absl::StatusOr<proto::JoinRendezvousReply>> JoinAll(
      std::vector<proto::JoinRendezvousRequest> requests) {
    std::vector<absl::StatusOr<proto::JoinRendezvousReply>> replies(requests.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < requests.size(); ++i) {
      threads.emplace_back([&, i] {
        do {
          replies[i] = service_.JoinRendezvous(requests[i]);
        } while (absl::IsUnavailable(replies[i].status()));
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return replies;
  }
  std::string Refusal(const proto::JoinRendezvousRequest& request, absl::StatusCode code) {
    const absl::Status status = service_.JoinRendezvous(request).status();
    EXPECT_EQ(status.code(), code) << Describe(status);
    return std::string(Message(status));
  }

  WorkerGroup peers_{.job_id = "job-1"};
  PeerService service_{absl::Milliseconds(30)};
  int ids_ = 0;
};

TEST_F(PeerServiceTest, AfterAJobItTakesPartInTheNext) {
  Open();
  EXPECT_TRUE(JoinAll({Request(0, {5, 1}), Request(1, {5, 1}), Request(2, {5, 1})})[0].ok());
  service_.Close(absl::CancelledError("the run is over"));
  service_.Reset();
  EXPECT_THAT(Refusal(Request(1), absl::StatusCode::kUnavailable), HasSubstr("try again"));
  Open();
  const auto replies = JoinAll({Request(0), Request(1), Request(2)});
  ASSERT_TRUE(replies[0].ok()) << replies[0].status();
  EXPECT_EQ(replies[0]->id(), "id 2");
}

TEST_F(PeerServiceTest, ACallThatWaitsWhileTheJobEndsIsToBeMadeAgain) {
  PeerService patient(absl::Seconds(30));
  patient.Open(peers_, [] { return std::string("an id"); });
  std::thread leaves([&patient] {
    absl::SleepFor(absl::Milliseconds(20));
    patient.Reset();
  });
  EXPECT_EQ(patient.JoinRendezvous(Request(1)).status().code(), absl::StatusCode::kUnavailable);
  leaves.join();
}

TEST_F(PeerServiceTest, ACallForAnotherJobIsRefusedByName) {
  Open();
  proto::JoinRendezvousRequest request = Request(1);
  request.set_job_id("job-2");
  EXPECT_EQ(Refusal(request, absl::StatusCode::kNotFound),
            "job-2 is not here; this worker works on job-1");
}

TEST_F(PeerServiceTest, AllGetTheSameIdWhichIsAnotherForEachAttempt) {
  Open();
  for (const StepAttempt attempt : {StepAttempt{0, 0}, StepAttempt{1, 2}, StepAttempt{1, 3}}) {
    const auto replies = JoinAll({Request(0, attempt), Request(1, attempt), Request(2, attempt)});
    for (const auto& reply : replies) {
      ASSERT_TRUE(reply.ok()) << reply.status();
      EXPECT_EQ(reply->id(), fmt::format("id {}", ids_));
    }
    // A worker that lost the answer asks again.
    EXPECT_EQ(service_.JoinRendezvous(Request(1, attempt))->id(), fmt::format("id {}", ids_));
  }
  EXPECT_EQ(ids_, 3);
}

TEST_F(PeerServiceTest, WhoIsMissingIsNamed) {
  EXPECT_THAT(Refusal(Request(1), absl::StatusCode::kUnavailable), HasSubstr("no peers yet"));
  Open();
  EXPECT_THAT(Refusal(Request(1), absl::StatusCode::kUnavailable), HasSubstr("worker-0 has not"));
  EXPECT_THAT(Refusal(Request(0), absl::StatusCode::kUnavailable), HasSubstr("worker-2 has not"));
  EXPECT_EQ(ids_, 0);
}

TEST_F(PeerServiceTest, OneHindranceIsEverybodys) {
  Open();
  int64_t attempt = 0;
  const auto reason = [&](const std::function<void(proto::JoinRendezvousRequest&)>& change) {
    const StepAttempt next{1, ++attempt};
    std::vector<proto::JoinRendezvousRequest> requests = {Request(0, next), Request(1, next),
                                                          Request(2, next)};
    change(requests[2]);
    const auto replies = JoinAll(requests);
    for (const auto& reply : replies) {
      EXPECT_TRUE(reply.ok() && reply->id().empty());
      EXPECT_EQ(reply->reason(), replies[0]->reason());
    }
    return replies[0]->reason();
  };
  EXPECT_EQ(reason([](auto& request) { request.set_unavailable("it has no library"); }),
            "worker-2: it has no library");
  EXPECT_EQ(reason([](auto& request) { request.set_gpu("gpu 1"); }),
            "worker-1 and worker-2 share a GPU (gpu 1)");
  EXPECT_THAT(reason([](auto& request) { request.set_version(22705); }),
              HasSubstr("worker-0 and worker-2 have different versions"));
  EXPECT_EQ(ids_, 0);
}

TEST_F(PeerServiceTest, TellsWhetherAllAreOnGpus) {
  Open();
  int64_t attempt = 0;
  for (const bool last : {true, false}) {
    const StepAttempt next{1, ++attempt};
    std::vector<proto::JoinRendezvousRequest> requests = {Request(0, next), Request(1, next),
                                                          Request(2, next)};
    for (proto::JoinRendezvousRequest& request : requests) {
      request.set_unavailable("it has no library");
      request.set_on_gpu(true);
    }
    requests[2].set_on_gpu(last);
    for (const auto& reply : JoinAll(requests)) {
      EXPECT_EQ(reply->on_gpus(), last);
    }
  }
}

TEST_F(PeerServiceTest, ALaterAttemptEndsAnEarlierOne) {
  Open();
  const StepAttempt first{4, 1};
  std::thread waiting([&] {
    absl::StatusOr<proto::JoinRendezvousReply> reply;
    do {
      reply = service_.JoinRendezvous(Request(1, first));
    } while (absl::IsUnavailable(reply.status()));
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(Message(reply.status())),
                HasSubstr("step 4 attempt 1 is over: another peer is at step 4 attempt 2"));
  });
  EXPECT_THAT(Refusal(Request(2, {4, 2}), absl::StatusCode::kUnavailable), HasSubstr("worker-0"));
  waiting.join();
}

TEST_F(PeerServiceTest, StrangersAndNonsenseAreRefused) {
  Open();
  const auto refused = [&](const std::function<void(proto::JoinRendezvousRequest&)>& change,
                           absl::StatusCode code) {
    proto::JoinRendezvousRequest request = Request(1, {2, 2});
    change(request);
    Refusal(request, code);
  };
  using enum absl::StatusCode;
  refused([](auto& request) { request.set_incarnation(99); }, kPermissionDenied);
  refused([](auto& request) { request.set_peer(99); }, kPermissionDenied);
  refused([](auto& request) { request.set_rank(-1); }, kPermissionDenied);
  refused([](auto& request) { request.set_rank(3); }, kPermissionDenied);
  refused([](auto& request) { request.set_peers(2); }, kPermissionDenied);
  refused([](auto& request) { request.set_gpu(""); }, kInvalidArgument);
  refused([](auto& request) { request.set_gpu(std::string(5000, 'x')); }, kInvalidArgument);
  refused([](auto& request) { request.set_unavailable(std::string(5000, 'x')); }, kInvalidArgument);
  refused([](auto& request) { request.set_step(-3); }, kInvalidArgument);
  Refusal(Request(0, {2, 2}), kUnavailable);
  refused([](auto& request) { request.set_generation(8); }, kFailedPrecondition);
}

TEST_F(PeerServiceTest, ClosedItAnswersWithTheReason) {
  Open();
  service_.Close(absl::CancelledError("leaving"));
  EXPECT_THAT(Refusal(Request(1), absl::StatusCode::kCancelled), HasSubstr("leaving"));
}

}  // namespace
}  // namespace shoal::worker
