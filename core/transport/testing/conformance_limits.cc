// Bounds and rights: full queues, accesses outside what was exposed.
#include <algorithm>
#include <limits>

#include "absl/time/clock.h"
#include "core/base/bytes.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/transport/handshake.h"
#include "core/transport/testing/conformance.h"

namespace shoal::transport {
namespace {

// Retries the post until it is accepted: room is freed some time after the peer has polled.
absl::Status PostUntilTaken(Connection& connection, const WriteOperation& operation) {
  const absl::Time deadline = RealClock().Now() + absl::Seconds(10);
  absl::Status status;
  do {
    status = connection.PostWrites({&operation, 1});
    absl::SleepFor(absl::Milliseconds(1));
  } while (absl::IsResourceExhausted(status) && RealClock().Now() < deadline);
  return status;
}

TEST_P(ConformanceTest, PostsTakeAllOrNoneAndRoomComesBackWithPolling) {
  auto remote = b().Allocate(4096, Access::kRemoteWrite);
  auto local = a().Allocate(4096, Access::kLocal);
  ConnectionOptions options = a().Options();
  options.max_outstanding = 8;
  Pair pair = Connect(a(), options, b(), b().Options({remote}));
  std::vector<ReadOperation> reads(
      5, {.id = 1, .region = 0, .offset = 0, .into = local->bytes().first(16)});
  std::vector<WriteOperation> writes(
      5, {.id = 2, .region = 0, .offset = 0, .from = local->bytes().subspan(64, 16)});
  EXPECT_TRUE(pair.connector->PostReads(reads).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(pair.connector->PostReads(reads)));
  EXPECT_TRUE(pair.connector->PostReads(std::span(reads).first(3)).ok()) << "the limit itself fits";
  EXPECT_TRUE(absl::IsResourceExhausted(pair.connector->PostReads(std::span(reads).first(1))));
  EXPECT_TRUE(pair.connector->PostWrites(writes).ok()) << "each kind has its own bound";
  EXPECT_TRUE(absl::IsResourceExhausted(pair.connector->PostWrites(writes)));
  EXPECT_EQ(a().Collect(13).size(), 13u);
  EXPECT_TRUE(a().Collect(1, absl::Milliseconds(50)).empty())
      << "what was refused must not complete";
  EXPECT_TRUE(pair.connector->PostReads(reads).ok());
  EXPECT_TRUE(pair.connector->PostWrites(writes).ok());
  EXPECT_EQ(a().Collect(10).size(), 10u);
}

TEST_P(ConformanceTest, DoorbellsThatWaitAtAPeerAreBounded) {
  ConnectionOptions options = a().Options();
  options.max_outstanding = kMaxOutstandingOperations;
  Pair pair = Connect(a(), options, b(), b().Options());
  absl::Status status;
  int64_t taken = 0;
  for (; taken <= kMaxWaitingDoorbells; ++taken) {
    const WriteOperation bell = {
        .id = 1, .from = {}, .ring = true, .immediate = static_cast<uint32_t>(taken)};
    status = pair.connector->PostWrites({&bell, 1});
    if (!status.ok()) {
      break;
    }
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << Describe(status);
  EXPECT_EQ(taken, kMaxWaitingDoorbells);
  EXPECT_EQ(a().Collect(taken).size(), static_cast<size_t>(taken));
  // A write that does not ring is not held up.
  EXPECT_TRUE(WriteNow(a(), *pair.connector, {.id = 2, .from = {}}).ok());
  uint32_t expected = 0;
  for (const Event& event : b().Collect(taken)) {
    ASSERT_EQ(event.immediate, expected++);
  }
  ASSERT_EQ(expected, taken);
  const WriteOperation bell = {.id = 3, .from = {}, .ring = true, .immediate = 77};
  EXPECT_TRUE(PostUntilTaken(*pair.connector, bell).ok());
  const std::vector<Event> last = b().Collect(1);
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].immediate, 77u);
}

TEST_P(ConformanceTest, AccessOutsideARegionFailsAtThePoster) {
  constexpr int64_t kBytes = 5000;
  auto remote = b().Allocate(kBytes, Access::kRemoteWrite);
  auto other = b().Allocate(kBytes, Access::kRemoteWrite);
  auto local = a().Allocate(2 * kBytes, Access::kLocal);
  std::ranges::fill(local->bytes(), std::byte{7});
  Pair pair = Connect(a(), a().Options(), b(), b().Options({remote, other}));
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  struct Case {
    int region;
    int64_t offset;
    int64_t size;
  };
  for (const Case& bad :
       {Case{0, 0, kBytes + 1}, Case{0, kBytes, 1}, Case{0, -1, 1}, Case{2, 0, 1}, Case{-1, 0, 1},
        Case{0, kLargest, 2}, Case{0, std::numeric_limits<int64_t>::min(), 1},
        Case{1, kBytes - 1, 2}}) {
    const ReadOperation read = {.id = 1,
                                .region = bad.region,
                                .offset = bad.offset,
                                .into = local->bytes().first(bad.size)};
    const WriteOperation write = {.id = 2,
                                  .region = bad.region,
                                  .offset = bad.offset,
                                  .from = local->bytes().first(bad.size)};
    EXPECT_TRUE(absl::IsOutOfRange(pair.connector->PostReads({&read, 1})))
        << bad.region << " " << bad.offset;
    EXPECT_TRUE(absl::IsOutOfRange(pair.connector->PostWrites({&write, 1})))
        << bad.region << " " << bad.offset;
    // One bad operation, and none of the batch is posted.
    const WriteOperation batch[] = {
        {.id = 3, .region = 0, .offset = 0, .from = local->bytes().first(8)}, write};
    EXPECT_FALSE(pair.connector->PostWrites(batch).ok());
  }
  EXPECT_TRUE(a().Collect(1, absl::Milliseconds(50)).empty());
  for (const auto& region : {remote, other}) {
    EXPECT_TRUE(
        std::ranges::all_of(region->bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
  }
  // The connection lives on.
  EXPECT_TRUE(ReadNow(a(), *pair.connector,
                      {.id = 9, .region = 0, .offset = kBytes - 1, .into = local->bytes().first(1)})
                  .ok());
}

TEST_P(ConformanceTest, WritesToReadOnlyRegionsFailAtThePoster) {
  auto remote = b().Allocate(5000, Access::kRemoteRead);
  auto local = a().Allocate(5000, Access::kLocal);
  std::ranges::fill(local->bytes(), std::byte{7});
  Pair pair = Connect(a(), a().Options(), b(), b().Options({remote}));
  const WriteOperation write = {
      .id = 1, .region = 0, .offset = 0, .from = local->bytes(), .ring = true};
  EXPECT_TRUE(absl::IsPermissionDenied(pair.connector->PostWrites({&write, 1})));
  EXPECT_TRUE(b().Collect(1, absl::Milliseconds(50)).empty());
  EXPECT_EQ(remote->bytes()[0], std::byte{0});
  // The owner still writes and the peer still reads.
  remote->bytes()[10] = std::byte{3};
  EXPECT_TRUE(ReadNow(a(), *pair.connector,
                      {.id = 2, .region = 0, .offset = 10, .into = local->bytes().first(1)})
                  .ok());
  EXPECT_EQ(local->bytes()[0], std::byte{3});
}

TEST_P(ConformanceTest, MemoryTheTransportDoesNotKnowIsRefused) {
  auto remote = b().Allocate(5000, Access::kRemoteWrite);
  Pair pair = Connect(a(), a().Options(), b(), b().Options({remote}));
  std::vector<std::byte> memory(100);
  const ReadOperation read = {.id = 1, .region = 0, .offset = 0, .into = memory};
  const WriteOperation write = {.id = 1, .region = 0, .offset = 0, .from = memory};
  EXPECT_TRUE(absl::IsInvalidArgument(pair.connector->PostReads({&read, 1})));
  EXPECT_TRUE(absl::IsInvalidArgument(pair.connector->PostWrites({&write, 1})));
  {
    auto registered = a().transport().Register(std::span(memory).first(99), Access::kLocal);
    ASSERT_TRUE(registered.ok());
    EXPECT_TRUE(absl::IsInvalidArgument(pair.connector->PostReads({&read, 1})))
        << "one byte too long";
    EXPECT_TRUE(ReadNow(a(), *pair.connector,
                        {.id = 1, .region = 0, .offset = 0, .into = std::span(memory).first(99)})
                    .ok());
  }
  EXPECT_TRUE(absl::IsInvalidArgument(pair.connector->PostWrites({&write, 1}))) << "unregistered";
}

}  // namespace
}  // namespace shoal::transport
