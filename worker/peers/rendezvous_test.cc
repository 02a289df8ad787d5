// A worker hears if others do not come, and waits no longer than it lives.
#include "worker/peers/rendezvous.h"

#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using ::testing::HasSubstr;

// Long enough for any machine, in tests that must not reach it.
constexpr absl::Duration kLong = absl::Seconds(60);

// The client of a peer that never answers.
class SilentClient final : public StageClient {
 public:
  absl::StatusOr<proto::ConnectStageReply> ConnectStage(int, const proto::ConnectStageRequest&,
                                                        absl::Duration) override {
    return absl::UnimplementedError("nobody connects");
  }
  absl::StatusOr<proto::JoinRendezvousReply> JoinRendezvous(int,
                                                            const proto::JoinRendezvousRequest&,
                                                            absl::Duration timeout) override {
    return cancelled_.WaitForNotificationWithTimeout(timeout)
               ? absl::CancelledError("the channel was cancelled")
               : absl::DeadlineExceededError("no answer");
  }
  void Cancel() override {
    if (!cancelled_.HasBeenNotified()) {
      cancelled_.Notify();
    }
  }

 private:
  absl::Notification cancelled_;
};

// The client of a peer that answers so one after the other, and then with an id.
class LateClient final : public StageClient {
 public:
  explicit LateClient(std::vector<absl::Status> answers) : answers_(std::move(answers)) {}
  absl::StatusOr<proto::ConnectStageReply> ConnectStage(int, const proto::ConnectStageRequest&,
                                                        absl::Duration) override {
    return absl::UnimplementedError("nobody connects");
  }
  absl::StatusOr<proto::JoinRendezvousReply> JoinRendezvous(int,
                                                            const proto::JoinRendezvousRequest&,
                                                            absl::Duration) override {
    if (calls_ < answers_.size()) {
      return answers_[calls_++];
    }
    proto::JoinRendezvousReply reply;
    reply.set_id("an id");
    return reply;
  }
  void Cancel() override {}

 private:
  const std::vector<absl::Status> answers_;
  size_t calls_ = 0;
};

// One of two workers, whose peer does not come.
struct Worker {
  explicit Worker(int rank, absl::Duration patience) : service(patience) {
    peers.rank = rank;
    for (uint64_t i = 0; i < 2; ++i) {
      peers.workers.push_back({.name = fmt::format("worker-{}", i), .incarnation = 100 + i});
    }
    if (rank == 0) {
      service.Open(peers, [] { return std::string("an id"); });
    }
  }
  absl::Status Join(absl::Duration timeout, StageClient* to = nullptr) {
    Rendezvous rendezvous({.peers = peers,
                           .client = to == nullptr ? &client : to,
                           .service = &service,
                           .unavailable = "it computes on the CPU",
                           .cancellation = &cancellation,
                           .timeout = timeout,
                           .call_timeout = timeout});
    return rendezvous.Join({}, /*generation=*/0, [] { return absl::OkStatus(); }).status();
  }

  WorkerGroup peers;
  SilentClient client;
  PeerService service;
  Cancellation cancellation;
};

TEST(Rendezvous, SaysWhoDoesNotCome) {
  Worker worker(0, absl::Milliseconds(10));
  const absl::Status status = worker.Join(absl::Milliseconds(20));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(Message(status)),
              HasSubstr("not all 2 workers met within 20ms: worker-1 has not come"));
}

TEST(Rendezvous, EndsAtOnceWhereItsWorkerDoes) {
  const absl::Status leaving = absl::CancelledError("the worker is leaving");
  for (const int rank : {0, 1}) {  // at its own service, then in a call to the other's
    Worker worker(rank, kLong);
    const absl::Time begun = absl::Now();
    std::thread ending([&] {
      absl::SleepFor(absl::Milliseconds(30));
      worker.cancellation.Cancel(leaving);
    });
    EXPECT_EQ(worker.Join(kLong), leaving);
    EXPECT_EQ(worker.Join(kLong), leaving) << "once it has been told";
    EXPECT_LT(absl::Now() - begun, kLong / 2);
    ending.join();
  }
}

// Workers that go on without a lost one come one after the other out of what they had.
TEST(Rendezvous, WaitsForOneThatHasWhatCameBefore) {
  Worker worker(1, kLong);
  LateClient late({absl::CancelledError("this worker is leaving"),
                   absl::PermissionDeniedError("peer 1 of 2 calls the first of 3"),
                   absl::NotFoundError("this worker has another job"),
                   absl::UnavailableError("this worker has no peers yet")});
  EXPECT_EQ(worker.Join(kLong, &late), absl::OkStatus());
  LateClient other({absl::FailedPreconditionError("another generation")});
  EXPECT_TRUE(absl::IsFailedPrecondition(worker.Join(kLong, &other)));
}

}  // namespace
}  // namespace shoal::worker
