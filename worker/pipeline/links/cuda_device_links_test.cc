// Links of a stage on a fake GPU that refuses an event: a message that is told to go is whole, and
// the attempt after a failed one starts clean.
#include <array>
#include <cstring>
#include <vector>

#include "core/gpu/fake_cuda/fake_cuda.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/pipeline/links/device_links.h"

namespace shoal::worker {
namespace {

constexpr int64_t kBytes = 640;
constexpr int kMessages = 5;

std::byte ByteOf(int microbatch) { return std::byte(0x10 + microbatch); }

// Links in pinned memory: look at a message when it is sent, and deliver at once.
class PinnedLinks final : public StageLinks {
 public:
  explicit PinnedLinks(Device& device)
      : memory_(device.NewHostMemory(0)), bytes_(*memory_->Allocate(2 * kMessages * kBytes)) {}

  absl::Status BeginStep(const StepMessages&) override {
    std::memset(bytes_.data(), 0, 2 * kMessages * kBytes);
    sent = 0;
    return absl::OkStatus();
  }
  absl::Status EndStep(absl::Duration) override { return absl::OkStatus(); }
  absl::StatusOr<std::byte*> Reserve(const StageMessage& message, absl::Duration) override {
    return CapacityOf(message);
  }
  absl::Status Send(const StageMessage& message) override {
    EXPECT_EQ(CapacityOf(message)[0], ByteOf(message.microbatch));
    EXPECT_EQ(CapacityOf(message)[kBytes - 1], ByteOf(message.microbatch));
    ++sent;
    return absl::OkStatus();
  }
  absl::Status Post(const StageMessage&) override { return absl::OkStatus(); }
  absl::StatusOr<const std::byte*> Await(const StageMessage& message, absl::Duration) override {
    std::byte* const arrived = CapacityOf(message) + kMessages * kBytes;
    std::memset(arrived, static_cast<int>(ByteOf(message.microbatch)), kBytes);
    return arrived;
  }
  absl::Status Consumed(const StageMessage&) override { return absl::OkStatus(); }
  void Close(const absl::Status&) override {}
  absl::Status status() const override { return absl::OkStatus(); }

  int sent = 0;

 private:
  std::byte* CapacityOf(const StageMessage& message) const {
    return bytes_.data() + message.microbatch * kBytes;
  }

  const std::unique_ptr<Memory> memory_;
  const Buffer bytes_;
};

// Sends what it receives.
absl::Status PassOn(DeviceLinks& links, Stream& compute, PinnedLinks& host) {
  const plan::MessageQueue queue{.from = 0, .to = 1};
  const std::vector<int64_t> bytes(kMessages, kBytes);
  links.Attach(host);
  absl::Status status = links.BeginStep({.queues = {&queue, 1}, .bytes = bytes});
  for (int i = 0; i < kMessages && status.ok(); ++i) {
    const StageMessage message = {.peer = 1, .microbatch = i};
    const auto arrived = links.Await(message, absl::Seconds(5));
    const auto room = arrived.ok() ? links.Reserve(message, absl::Seconds(5)) : arrived.status();
    if (!room.ok()) {
      status = room.status();
      break;
    }
    compute.Copy(*room, *arrived, kBytes);
    status = links.Consumed(message);
    status.Update(links.Send(message));
  }
  status.Update(links.EndStep(absl::Seconds(30)));
  if (!status.ok()) {
    links.Abandon(status);
  }
  status.Update(compute.Synchronize());
  return status;
}

TEST(CudaDeviceLinks, StartAnewAfterAnEventThatWasRefused) {
  int failed = 0;
  for (int64_t number = 1; number <= 30; ++number) {
    SCOPED_TRACE(testing::Message() << "event " << number);
    gpu::SetFakeGpus({.seed = static_cast<uint64_t>(number)});
    const std::unique_ptr<Device> device = *MakeCudaDevice({});
    const std::unique_ptr<Stream> compute = device->NewStream();
    PinnedLinks host(*device);
    DeviceLinks links(*device, *compute);
    gpu::FailCall("cudaEventRecord", number, cudaErrorMemoryAllocation);
    int failures = 0;
    for (int attempt = 1; attempt <= 3; ++attempt) {
      const absl::Status status = PassOn(links, *compute, host);
      EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
      EXPECT_TRUE(!status.ok() || host.sent == kMessages) << host.sent;
      failures += status.ok() ? 0 : 1;
    }
    EXPECT_LE(failures, 1);
    failed += failures;
  }
  EXPECT_GT(failed, 10);
}

}  // namespace
}  // namespace shoal::worker
