#include "worker/backend/cpu/copy_stream.h"

#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using testing::Each;

std::unique_ptr<Event> DoneEvent(Device& device) { return device.NewStream()->Record(); }

TEST(CopyStream, CopiesBesideTheCallerAndInOrder) {
  const auto device = MakeCpuDevice(0, {.longest_delay = absl::Milliseconds(1), .seed = 3});
  const auto copies = device->NewStream(StreamKind::kCopy);
  std::vector<std::byte> from(3 << 20);
  std::vector<std::byte> to(from.size());
  for (int round = 1; round <= 20; ++round) {
    copies->Fill(from.data(), static_cast<std::byte>(round), static_cast<int64_t>(from.size()));
    copies->Copy(to.data(), from.data(), static_cast<int64_t>(from.size()));
    ASSERT_TRUE(copies->Record()->Wait().ok());
    ASSERT_EQ(to, from);
    ASSERT_EQ(to.back(), static_cast<std::byte>(round));
  }
}

// Each stream in turn adds to what the other has copied; without the events the delays would mix
// them up.
TEST(CopyStream, EventsOrderStreams) {
  constexpr int kRounds = 100;
  const auto device = MakeCpuDevice(0, {.longest_delay = absl::Microseconds(300), .seed = 4});
  const std::array streams = {device->NewStream(StreamKind::kCopy),
                              device->NewStream(StreamKind::kCopy)};
  std::vector<int64_t> numbers(kRounds);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::array<int64_t, 2> cells = {-1, -1};
  std::vector<std::array<int64_t, 2>> seen(kRounds);
  std::unique_ptr<Event> last = DoneEvent(*device);
  for (int round = 0; round < kRounds; ++round) {
    Stream& stream = *streams[static_cast<size_t>(round % 2)];
    stream.WaitFor(*last);
    stream.Copy(&cells[static_cast<size_t>(round % 2)], &numbers[static_cast<size_t>(round)],
                sizeof(int64_t));
    stream.Copy(&seen[static_cast<size_t>(round)], &cells, sizeof(cells));
    last = stream.Record();
  }
  ASSERT_TRUE(last->Wait().ok());
  for (int64_t round = 0; round < kRounds; ++round) {
    const auto& [even, odd] = seen[static_cast<size_t>(round)];
    EXPECT_EQ(std::max(even, odd), round);
    EXPECT_EQ(std::min(even, odd), round - 1);
  }
}

TEST(CopyStream, AComputeStreamWaitsForCopies) {
  const auto device = MakeCpuDevice(0, {.longest_delay = absl::Milliseconds(2), .seed = 5});
  const auto compute = device->NewStream();
  const auto copies = device->NewStream(StreamKind::kCopy);
  std::vector<std::byte> text(1000, std::byte{7});
  std::vector<std::byte> there(1000);
  for (int round = 0; round < 20; ++round) {
    copies->Copy(there.data(), text.data(), 1000);
    compute->WaitFor(*copies->Record());
    EXPECT_THAT(there, Each(std::byte{7}));
    compute->Zero(there.data(), 1000);
  }
}

TEST(CopyStream, TakesAtLeastTheTimeOfItsRate) {
  const auto device = MakeCpuDevice(0, {.bytes_per_second = 100e6});
  const auto copies = device->NewStream(StreamKind::kCopy);
  std::vector<std::byte> from(1500000);
  std::vector<std::byte> to(from.size());
  const absl::Time begin = RealClock().Now();
  copies->Copy(to.data(), from.data(), 1500000);
  const auto first = copies->Record();
  copies->Copy(to.data(), from.data(), 500000);
  const auto second = copies->Record();
  EXPECT_TRUE(second->WaitDone(absl::Seconds(10)));
  EXPECT_GE(first->at(), begin + absl::Milliseconds(15));
  EXPECT_GE(second->at(), begin + absl::Milliseconds(20));
}

TEST(CopyStream, AFailedCopyIsToldByAllBehindIt) {
  const auto device = MakeCpuDevice(0, {.fail_at_copy = 2});
  const auto copies = device->NewStream(StreamKind::kCopy);
  const auto other = device->NewStream(StreamKind::kCopy);
  int from = 5;
  int to = 0;
  copies->Copy(&to, &from, sizeof(int));
  const auto first = copies->Record();
  copies->Copy(&to, &from, sizeof(int));
  const auto second = copies->Record();
  EXPECT_TRUE(first->Wait().ok());
  EXPECT_EQ(second->Wait().message(), "cpu copy stream: copy 2 failed on purpose");
  EXPECT_FALSE(copies->Synchronize().ok());
  EXPECT_TRUE(other->Synchronize().ok());
  other->WaitFor(*second);
  EXPECT_FALSE(other->Synchronize().ok());
  const auto compute = device->NewStream();
  EXPECT_TRUE(compute->Synchronize().ok());
  compute->WaitFor(*second);
  EXPECT_FALSE(compute->Synchronize().ok());
}

TEST(CopyStream, WhoPutsTooMuchOnItWaits) {
  const auto device = MakeCpuDevice();
  const auto copies = device->NewStream(StreamKind::kCopy);
  std::vector<int> to(2 * CpuCopyStream::kMaxCommands + 10);
  std::vector<int> from(to.size());
  std::iota(from.begin(), from.end(), 0);
  for (size_t i = 0; i < to.size(); ++i) {
    copies->Copy(&to[i], &from[i], sizeof(int));
  }
  ASSERT_TRUE(copies->Synchronize().ok());
  EXPECT_EQ(to, from);
}

}  // namespace
}  // namespace shoal::worker
