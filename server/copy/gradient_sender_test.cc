#include "server/copy/gradient_sender.h"

#include <atomic>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/synchronization/notification.h"
#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "xxhash.h"

namespace shoal::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kRest = 7;
const plan::PartitionSpec kPartition = {.id = 3, .count = kMostStateElements + kRest};

absl::StatusOr<proto::ReadStateReply> Read(const proto::ReadStateRequest& wanted) {
  EXPECT_EQ(wanted.array(), proto::ReadStateRequest::ARRAY_GRADIENT);
  EXPECT_EQ(wanted.partition(), kPartition.id);
  EXPECT_EQ(wanted.version(), 4);
  const std::vector<float> elements(static_cast<size_t>(wanted.count()),
                                    static_cast<float>(wanted.offset()));
  proto::ReadStateReply reply;
  reply.set_elements(elements.data(), elements.size() * sizeof(float));
  reply.set_hash(XXH3_64bits(reply.elements().data(), reply.elements().size()));
  return reply;
}

// What has come to servers, by address.
class Taken {
 public:
  using Part = std::tuple<int64_t, size_t>;  // offset and elements

  std::atomic<int> cancels = 0;

  GradientTaker Connect(const std::string& address) {
    return {.take = [this, address](const auto& piece) { return Take(address, piece); },
            .cancel = [this] { ++cancels; }};
  }
  void Hold(bool hold) {
    absl::MutexLock lock(&mutex_);
    held_ = hold;
  }
  void AwaitCalls(int64_t calls) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return calls_ >= calls; };
    mutex_.Await(absl::Condition(&there));
  }
  void Forget() {
    absl::MutexLock lock(&mutex_);
    calls_ = 0;
  }
  std::vector<Part> At(const std::string& address) {
    absl::MutexLock lock(&mutex_);
    return parts_[address];
  }

 private:
  absl::StatusOr<proto::TakeGradientReply> Take(const std::string& address,
                                                const proto::TakeGradientRequest& piece) {
    SHOAL_ASSIGN_OR_RETURN(const std::vector<float> elements, ElementsOf(piece));
    absl::MutexLock lock(&mutex_);
    ++calls_;
    if (held_) {
      mutex_.Await(absl::Condition(
          +[](bool* held) { return !*held; }, &held_));
    }
    parts_[address].emplace_back(piece.offset(), elements.size());
    return proto::TakeGradientReply();
  }

  absl::Mutex mutex_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::vector<Part>> parts_ ABSL_GUARDED_BY(mutex_);
};

proto::BeginAttemptRequest Attempt(int64_t attempt,
                                   const std::vector<std::string>& backups = {"a", "b"}) {
  proto::BeginAttemptRequest request;
  request.set_step(5);
  request.set_attempt(attempt);
  for (const std::string& address : backups) {
    proto::BackupPlace& place = *request.add_backups();
    place.set_address(address);
    place.add_partitions(kPartition.id);
  }
  return request;
}

TEST(GradientSender, SendsAPartitionInPartsToEachOfItsBackups) {
  Taken taken;
  {
    GradientSender sender({.job_id = "job", .run = 2}, Read,
                          [&taken](const std::string& address) { return taken.Connect(address); });
    sender.Begin(Attempt(1));
    sender.Add(kPartition, 5, 1);
    taken.AwaitCalls(4);
  }
  for (const char* address : {"a", "b"}) {
    EXPECT_THAT(taken.At(address),
                ElementsAre(Taken::Part(0, static_cast<size_t>(kMostStateElements)),
                            Taken::Part(kMostStateElements, static_cast<size_t>(kRest))));
  }
}

TEST(GradientSender, OneServerThatHangsHoldsUpOneThread) {
  Taken taken;
  absl::Notification called;
  absl::Notification hangs;
  std::atomic<int> calls = 0;
  {
    GradientSender sender({.threads = 2}, Read, [&](const std::string& address) -> GradientTaker {
      if (address == "b") {
        return taken.Connect(address);
      }
      const auto take =
          [&](const proto::TakeGradientRequest&) -> absl::StatusOr<proto::TakeGradientReply> {
        if (++calls == 1) {
          called.Notify();
        }
        hangs.WaitForNotification();
        return DeadlineExceeded("no answer");
      };
      return {.take = take, .cancel = [] {}};
    });
    sender.Begin(Attempt(1));
    sender.Add(kPartition, 5, 1);
    sender.Add(kPartition, 5, 1);
    taken.AwaitCalls(4);  // all that goes to b
    called.WaitForNotification();
    EXPECT_EQ(calls, 1);
    hangs.Notify();
  }
  EXPECT_EQ(calls, 1);
}

// A server that answers only once it is cancelled.
struct Silent {
  absl::Notification called;
  absl::Notification cancelled;

  GradientTaker Connect() {
    const auto take =
        [this](const proto::TakeGradientRequest&) -> absl::StatusOr<proto::TakeGradientReply> {
      called.Notify();
      EXPECT_TRUE(cancelled.WaitForNotificationWithTimeout(absl::Seconds(30)));
      return Cancelled("told to stop");
    };
    return {.take = take, .cancel = [this] { cancelled.Notify(); }};
  }
};

TEST(GradientSender, ItsEndCancelsWhatIsBeingSent) {
  Silent silent;
  {
    GradientSender sender({}, Read, [&](const std::string&) { return silent.Connect(); });
    sender.Begin(Attempt(1, {"a"}));
    sender.Add(kPartition, 5, 1);
    silent.called.WaitForNotification();
    EXPECT_FALSE(silent.cancelled.HasBeenNotified());
  }
  EXPECT_TRUE(silent.cancelled.HasBeenNotified());
}

TEST(GradientSender, ABackupThatIsDroppedHoldsUpNoThread) {
  Taken taken;
  Silent silent;
  {
    GradientSender sender({.threads = 1}, Read, [&](const std::string& address) {
      return address == "b" ? taken.Connect(address) : silent.Connect();
    });
    sender.Begin(Attempt(1));
    sender.Add(kPartition, 5, 1);
    silent.called.WaitForNotification();
    sender.Begin(Attempt(2, {"b"}));
    sender.Add(kPartition, 5, 2);
    taken.AwaitCalls(2);
    sender.Begin(Attempt(3, {}));
    sender.Begin(Attempt(4, {"b"}));
    EXPECT_EQ(taken.cancels, 0);  // one that stays
  }
  EXPECT_THAT(taken.At("a"), IsEmpty());
}

TEST(GradientSender, AServerAtWhichOneFailsGetsNoMoreOfTheAttempt) {
  Taken taken;
  std::atomic<int> calls = 0;
  {
    GradientSender sender({.threads = 1}, Read, [&](const std::string& address) -> GradientTaker {
      if (address == "b") {
        return taken.Connect(address);
      }
      const auto take =
          [&](const proto::TakeGradientRequest&) -> absl::StatusOr<proto::TakeGradientReply> {
        ++calls;
        return DeadlineExceeded("no answer");
      };
      return {.take = take, .cancel = [] {}};
    });
    for (const int attempt : {1, 2}) {
      sender.Begin(Attempt(attempt));
      sender.Add(kPartition, 5, attempt);
      sender.Add(kPartition, 5, attempt);
      taken.AwaitCalls(4);
      sender.Add(kPartition, 5, attempt);
      taken.AwaitCalls(6);
      EXPECT_EQ(calls, attempt);
      taken.Forget();
    }
  }
}

TEST(GradientSender, SendsNothingOfAnAttemptThatIsNotOpen) {
  Taken taken;
  {
    GradientSender sender({.threads = 1}, Read,
                          [&taken](const std::string& address) { return taken.Connect(address); });
    sender.Add(kPartition, 5, 1);
    sender.Begin(Attempt(2));
    sender.Add(kPartition, 5, 1);
    taken.Hold(true);
    sender.Add(kPartition, 5, 2);
    taken.AwaitCalls(1);  // the first part
    sender.End();
    taken.Hold(false);
  }
  EXPECT_THAT(taken.At("a"), ElementsAre(Taken::Part(0, static_cast<size_t>(kMostStateElements))));
  EXPECT_THAT(taken.At("b"), IsEmpty());
}

TEST(GradientSender, WhatWasDamagedIsNotTaken) {
  proto::TakeGradientRequest of;
  of.set_step(5);
  auto piece = *NextPiece(kPartition, kMostStateElements, of, Read);
  ASSERT_OK(ElementsOf(piece).status());
  EXPECT_EQ(ElementsOf(piece)->size(), static_cast<size_t>(kRest));
  (*piece.mutable_elements())[5] ^= 1;
  EXPECT_EQ(ElementsOf(piece).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace shoal::server
