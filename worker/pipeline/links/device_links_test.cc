#include "worker/pipeline/links/device_links.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/ops/testing/late_device.h"

namespace shoal::worker {
namespace {

constexpr int64_t kBytes = 640;
constexpr int kMessages = 6;

std::byte ByteOf(int microbatch) { return std::byte(0x10 + microbatch); }

// Messages of any microbatch arrive at once, and what is sent is kept. A Post of microbatch 0
// blocks until `go`.
class HostLinks final : public StageLinks {
 public:
  absl::Status BeginStep(const StepMessages&) override { return absl::OkStatus(); }
  absl::Status EndStep(absl::Duration) override { return absl::OkStatus(); }
  absl::StatusOr<std::byte*> Reserve(const StageMessage& message, absl::Duration) override {
    return rooms[message.microbatch].data();
  }
  absl::Status Send(const StageMessage& message) override {
    told.push_back(absl::StrCat("send ", message.microbatch));
    sent.push_back(rooms[message.microbatch]);
    return fail_at_send == message.microbatch ? absl::UnavailableError("gone") : absl::OkStatus();
  }
  absl::Status Post(const StageMessage& message) override {
    if (message.microbatch == 0) {
      go.WaitForNotification();
    }
    told.push_back(absl::StrCat("post ", message.microbatch));
    return absl::OkStatus();
  }
  absl::StatusOr<const std::byte*> Await(const StageMessage& message, absl::Duration) override {
    std::ranges::fill(arrived[message.microbatch], ByteOf(message.microbatch));
    return arrived[message.microbatch].data();
  }
  absl::Status Consumed(const StageMessage& message) override {
    told.push_back(absl::StrCat("consumed ", message.microbatch));
    std::ranges::fill(arrived[message.microbatch], std::byte{0xFF});
    return absl::OkStatus();
  }
  void Close(const absl::Status& why) override { closed.Update(why); }
  absl::Status status() const override { return closed; }

  using Bytes = std::array<std::byte, kBytes>;
  absl::Notification go;
  std::array<Bytes, kMessages> rooms = {};
  std::array<Bytes, kMessages> arrived = {};
  std::vector<Bytes> sent;
  std::vector<std::string> told;
  int fail_at_send = -1;
  absl::Status closed;
};

// Links whose messages lie on the device.
class LinksOnDevice final : public StageLinks {
 public:
  explicit LinksOnDevice(std::byte* message) : message_(message) {}

  absl::Status BeginStep(const StepMessages&) override { return absl::OkStatus(); }
  absl::Status EndStep(absl::Duration) override { return absl::OkStatus(); }
  absl::StatusOr<std::byte*> Reserve(const StageMessage&, absl::Duration) override {
    return message_;
  }
  absl::Status Send(const StageMessage&) override { return Tell("send"); }
  absl::Status Post(const StageMessage&) override { return Tell("post"); }
  absl::StatusOr<const std::byte*> Await(const StageMessage&, absl::Duration) override {
    return message_;
  }
  absl::Status Consumed(const StageMessage&) override { return Tell("consumed"); }
  bool OnDevice(int) const override { return true; }
  void Close(const absl::Status&) override {}
  absl::Status status() const override { return absl::OkStatus(); }

  std::vector<std::string> told;

 private:
  absl::Status Tell(const char* what) {
    told.push_back(what);
    return absl::OkStatus();
  }
  std::byte* const message_;
};

class DeviceLinksTest : public testing::TestWithParam<uint64_t> {
 protected:
  absl::Status Begin() {
    const plan::MessageQueue queue{.from = 0, .to = 1};
    const std::vector<int64_t> bytes(kMessages, kBytes);
    links_.Attach(host_);
    return links_.BeginStep({.queues = {&queue, 1}, .bytes = bytes});
  }
  static StageMessage Of(int microbatch) { return {.peer = 1, .microbatch = microbatch}; }

  ComputeDevice compute_device_ = MakeLateComputeDevice(GetParam());
  Stream& compute_ = compute_device_.ops->stream();
  HostLinks host_;
  DeviceLinks links_{*compute_device_.device, compute_};
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceLinksTest, testing::Range<uint64_t>(1, 9));

TEST_P(DeviceLinksTest, SendsWhatWasMadeHoweverFarAheadTheHostIs) {
  ASSERT_TRUE(Begin().ok());
  ASSERT_TRUE(links_.Post(Of(0)).ok());
  for (int i = 0; i < kMessages; ++i) {
    std::byte* const room = *links_.Reserve(Of(i), absl::Seconds(5));
    compute_.Fill(room, ByteOf(i), kBytes);
    ASSERT_TRUE(links_.Send(Of(i)).ok());
  }
  EXPECT_TRUE(host_.sent.empty());
  host_.go.Notify();
  ASSERT_TRUE(links_.EndStep(absl::Seconds(30)).ok());
  ASSERT_EQ(host_.sent.size(), static_cast<size_t>(kMessages));
  for (int i = 0; i < kMessages; ++i) {
    EXPECT_THAT(host_.sent[static_cast<size_t>(i)], testing::Each(ByteOf(i)));
  }
}

TEST_P(DeviceLinksTest, UsesWhatArrivedHoweverFarAheadTheHostIs) {
  const std::unique_ptr<Memory> memory = compute_device_.device->NewHostMemory(0);
  std::vector<Buffer> results;
  ASSERT_TRUE(Begin().ok());
  ASSERT_TRUE(links_.Post(Of(0)).ok());
  for (int i = 0; i < kMessages; ++i) {
    const std::byte* const data = *links_.Await(Of(i), absl::Seconds(5));
    results.push_back(*memory->Allocate(kBytes));
    compute_.Copy(results.back().data(), data, kBytes);
    ASSERT_TRUE(links_.Consumed(Of(i)).ok());
  }
  host_.go.Notify();
  ASSERT_TRUE(links_.EndStep(absl::Seconds(30)).ok());
  ASSERT_TRUE(compute_.Synchronize().ok());
  for (int i = 0; i < kMessages; ++i) {
    const Buffer& result = results[static_cast<size_t>(i)];
    EXPECT_THAT(std::vector<std::byte>(result.data(), result.data() + kBytes),
                testing::Each(ByteOf(i)));
  }
}

// Messages that are made before the first is sent have a buffer each.
TEST_P(DeviceLinksTest, TellsInTheOrderOfTheCalls) {
  ASSERT_TRUE(Begin().ok());
  ASSERT_TRUE(links_.Post(Of(1)).ok());
  for (int i = 0; i < 4; ++i) {
    compute_.Fill(*links_.Reserve(Of(i), absl::Seconds(5)), ByteOf(i), kBytes);
  }
  ASSERT_TRUE(links_.Await(Of(1), absl::Seconds(5)).ok());
  ASSERT_TRUE(links_.Send(Of(2)).ok());
  ASSERT_TRUE(links_.Consumed(Of(1)).ok());
  ASSERT_TRUE(links_.Post(Of(3)).ok());
  ASSERT_TRUE(links_.Send(Of(0)).ok());
  ASSERT_TRUE(links_.EndStep(absl::Seconds(30)).ok());
  EXPECT_THAT(host_.told,
              testing::ElementsAre("post 1", "send 2", "consumed 1", "post 3", "send 0"));
  EXPECT_THAT(host_.sent[0], testing::Each(ByteOf(2)));
  EXPECT_THAT(host_.sent[1], testing::Each(ByteOf(0)));
}

// Messages are made and used in place; links are told only once the device has done so.
TEST_P(DeviceLinksTest, CopiesNothingThatLiesOnTheDevice) {
  const Buffer message = *compute_device_.device->Allocate(kBytes);
  LinksOnDevice links(message.data());
  links_.Attach(links);
  const plan::MessageQueue queue{.from = 0, .to = 1};
  const std::vector<int64_t> bytes(kMessages, kBytes);
  const int64_t allocated = compute_device_.device->allocated_bytes();
  ASSERT_TRUE(links_.BeginStep({.queues = {&queue, 1}, .bytes = bytes}).ok());
  std::vector<std::string> done;
  const auto work = [&](const char* what) {
    LateDevice::Put(compute_, [&done, &links, what] {
      done.push_back(absl::StrCat(what, " after ", links.told.size(), " were told"));
    });
  };
  ASSERT_TRUE(links_.Post(Of(1)).ok());
  ASSERT_EQ(*links_.Reserve(Of(0), absl::Seconds(5)), message.data());
  work("made");
  ASSERT_TRUE(links_.Send(Of(0)).ok());
  ASSERT_EQ(*links_.Await(Of(1), absl::Seconds(5)), message.data());
  work("used");
  ASSERT_TRUE(links_.Consumed(Of(1)).ok());
  ASSERT_TRUE(links_.EndStep(absl::Seconds(30)).ok());
  EXPECT_THAT(links.told, testing::ElementsAre("post", "send", "consumed"));
  EXPECT_THAT(done, testing::ElementsAre("made after 1 were told", "used after 2 were told"));
  EXPECT_EQ(compute_device_.device->allocated_bytes(), allocated);
}

TEST_P(DeviceLinksTest, ClosesTheLinksWhereTheyRefuseAndServesTheNextStep) {
  host_.fail_at_send = 1;
  host_.go.Notify();
  ASSERT_TRUE(Begin().ok());
  for (int i = 0; i < 2; ++i) {
    compute_.Fill(*links_.Reserve(Of(i), absl::Seconds(5)), ByteOf(i), kBytes);
    ASSERT_TRUE(links_.Send(Of(i)).ok());
  }
  EXPECT_TRUE(absl::IsUnavailable(links_.EndStep(absl::Seconds(30))));
  EXPECT_TRUE(absl::IsUnavailable(links_.Post(Of(1))));
  links_.Abandon(absl::CancelledError("the step has failed"));
  EXPECT_TRUE(absl::IsUnavailable(host_.closed));

  host_.fail_at_send = -1;
  host_.sent.clear();
  ASSERT_TRUE(Begin().ok());
  compute_.Fill(*links_.Reserve(Of(3), absl::Seconds(5)), ByteOf(3), kBytes);
  ASSERT_TRUE(links_.Send(Of(3)).ok());
  ASSERT_TRUE(links_.EndStep(absl::Seconds(30)).ok());
  EXPECT_THAT(host_.sent.back(), testing::Each(ByteOf(3)));
}

}  // namespace
}  // namespace shoal::worker
