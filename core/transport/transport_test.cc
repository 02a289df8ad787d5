// What all transports share: the registry, handshake bytes, the region table, the event buffer and
// sleeping.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/transport/event_buffer.h"
#include "core/transport/handshake.h"
#include "core/transport/region_table.h"
#include "core/transport/registry/registry.h"
#include "core/transport/sleeper.h"
#include "gmock/gmock.h"

namespace shoal::transport {
namespace {

TEST(RegistryTest, MakesTheKnownAndNamesThemToWhoAsksForAnother) {
  EXPECT_THAT(TransportNames(), testing::ElementsAre("shm", "verbs", "tcp"));
  for (const std::string& name : TransportNames()) {
    auto transport = CreateTransport(name);
    if (name == "verbs" && absl::IsNotFound(transport.status())) {
      continue;  // no such device here
    }
    ASSERT_TRUE(transport.ok()) << Describe(transport.status());
    EXPECT_EQ((*transport)->name(), name);
  }
  const absl::Status unknown = CreateTransport("pigeon").status();
  EXPECT_TRUE(absl::IsInvalidArgument(unknown));
  EXPECT_THAT(Message(unknown),
              testing::AllOf(testing::HasSubstr("pigeon"), testing::HasSubstr("shm, verbs, tcp")));
}

TEST(RegionTableTest, KnowsExactlyTheBytesOfItsRegions) {
  RegionTable table;
  std::vector<std::byte> memory(1000);
  const std::span<std::byte> all(memory);
  EXPECT_TRUE(table.Contains({}));
  EXPECT_FALSE(table.Contains(all.first(1)));
  table.Add(all.subspan(100, 200));
  table.Add(all.subspan(100, 50));  // same start, shorter
  table.Add(all.subspan(150, 10));  // inside another
  EXPECT_TRUE(table.Contains(all.subspan(100, 200)));
  EXPECT_TRUE(table.Contains(all.subspan(155, 145)));
  EXPECT_TRUE(table.Contains(all.subspan(299, 1)));
  EXPECT_FALSE(table.Contains(all.subspan(99, 2)));
  EXPECT_FALSE(table.Contains(all.subspan(299, 2)));
  EXPECT_FALSE(table.Contains(all.subspan(300, 1)));
  table.Remove(all.subspan(100, 200));
  EXPECT_FALSE(table.Contains(all.subspan(100, 51)));
  EXPECT_TRUE(table.Contains(all.subspan(100, 50)));
}

TEST(HandshakeTest, RegionsSurviveTheWireAndMalformedOnesDoNot) {
  const std::vector<RemoteRegion> regions = {{4096, true}, {1, false}};
  ByteWriter writer;
  WriteRegions(regions, writer);
  ByteReader reader(writer.bytes());
  const auto read = ReadRegions("peer", reader);
  ASSERT_TRUE(read.ok());
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ((*read)[0].bytes, 4096);
  EXPECT_TRUE((*read)[0].writable);
  EXPECT_FALSE((*read)[1].writable);
  for (size_t size = 0; size < writer.bytes().size(); ++size) {
    ByteReader cut(std::string_view(writer.bytes()).substr(0, size));
    EXPECT_FALSE(ReadRegions("peer", cut).ok()) << size;
  }
  for (const RemoteRegion& bad :
       {RemoteRegion{0, false}, RemoteRegion{-1, false}, RemoteRegion{int64_t{1} << 62, false}}) {
    ByteWriter bad_writer;
    WriteRegions({&bad, 1}, bad_writer);
    ByteReader bad_reader(bad_writer.bytes());
    EXPECT_FALSE(ReadRegions("peer", bad_reader).ok());
  }
  ByteWriter many;
  many.U32(0xFFFFFFFF);
  ByteReader many_reader(many.bytes());
  EXPECT_FALSE(ReadRegions("peer", many_reader).ok());
}

TEST(HandshakeTest, EnvelopesTellWhatIsWrong) {
  EXPECT_EQ(*OpenOffer("tcp", "p", SealOffer("tcp", "body")), "body");
  EXPECT_TRUE(absl::IsInvalidArgument(OpenAnswer("tcp", "p", SealOffer("tcp", "body")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(OpenOffer("shm", "p", SealOffer("tcp", "body")).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(OpenOffer("tcp", "p", SealOffer("tcp", "body") + "x").status()));
  EXPECT_THAT(Message(OpenOffer("tcp", "worker-4", "junk").status()),
              testing::HasSubstr("worker-4"));
}

TEST(HandshakeTest, SecretsCompareInFull) {
  EXPECT_TRUE(SameSecret("abc", "abc"));
  EXPECT_FALSE(SameSecret("abc", "abd"));
  EXPECT_FALSE(SameSecret("abc", "ab"));
}

TEST(EventBufferTest, RoomComesBackWhenCompletionsArePolled) {
  EventBuffer buffer;
  auto outstanding = std::make_shared<OutstandingOperations>(3);
  EXPECT_TRUE(outstanding->TakeReads(2));
  EXPECT_FALSE(outstanding->TakeReads(2));
  EXPECT_TRUE(outstanding->TakeReads(1));
  EXPECT_TRUE(outstanding->TakeWrites(3));
  for (uint64_t id = 0; id < 3; ++id) {
    buffer.Push(PendingEvent{{.kind = Event::Kind::kReadDone, .operation = id}, outstanding});
  }
  EXPECT_FALSE(outstanding->TakeReads(1));
  Event events[2];
  EXPECT_EQ(buffer.Poll(events), 2u);
  EXPECT_EQ(events[1].operation, 1u);
  EXPECT_TRUE(outstanding->TakeReads(2));
  EXPECT_FALSE(outstanding->TakeReads(1));
  EXPECT_FALSE(outstanding->TakeWrites(1));
}

TEST(SleeperTest, NoNotificationIsLost) {
  using Seen = Sleeper::Seen;
  auto sleeper = Sleeper::Create(nullptr, absl::ZeroDuration());
  ASSERT_TRUE(sleeper.ok());
  constexpr int kItems = 20000;
  std::atomic<int> produced{0};
  std::thread producer([&] {
    for (int i = 0; i < kItems; ++i) {
      produced.fetch_add(1);
      (*sleeper)->Notify();
      if (i % 64 == 0) {
        absl::SleepFor(absl::Microseconds(1));  // lets the consumer go to sleep
      }
    }
  });
  int consumed = 0;
  while (consumed < kItems) {
    ASSERT_TRUE((*sleeper)->Wait(absl::Seconds(20), [&] {
      return produced.load() > consumed ? Seen::kWork : Seen::kNothing;
    })) << consumed;
    consumed = produced.load();
  }
  producer.join();
  EXPECT_FALSE((*sleeper)->Wait(absl::Milliseconds(5), [] { return Seen::kNothing; }));
}

// As a peer may leave what it shares: the flags and the counter are the open file's.
void LetEventBlock(int event_fd, uint64_t count) {
  ASSERT_EQ(write(event_fd, &count, sizeof count), static_cast<ssize_t>(sizeof count));
  ASSERT_EQ(fcntl(event_fd, F_SETFL, 0), 0);
}

TEST(SleeperTest, AFullEventThatBlocksHoldsNoNotifierUp) {
  auto sleeper = Sleeper::Create(nullptr, absl::ZeroDuration());
  ASSERT_TRUE(sleeper.ok());
  const int event_fd = (*sleeper)->event_fd();
  LetEventBlock(event_fd, std::numeric_limits<uint64_t>::max() - 1);
  absl::Notification notified;
  std::thread notifier([&] {
    const uint32_t sleeping = 1;
    NotifySleeper(&sleeping, event_fd);
    notified.Notify();
  });
  EXPECT_TRUE(notified.WaitForNotificationWithTimeout(absl::Seconds(10)));
  uint64_t count = 0;
  EXPECT_EQ(read(event_fd, &count, sizeof count), static_cast<ssize_t>(sizeof count));
  notifier.join();
}

TEST(SleeperTest, AnEmptyEventThatBlocksHoldsNoSleeperUp) {
  auto sleeper = Sleeper::Create(nullptr, absl::ZeroDuration());
  ASSERT_TRUE(sleeper.ok());
  ASSERT_EQ(fcntl((*sleeper)->event_fd(), F_SETFL, 0), 0);
  absl::Notification woken;
  std::thread waiter([&] {
    EXPECT_FALSE((*sleeper)->Wait(absl::Milliseconds(5), [] { return Sleeper::Seen::kNothing; }));
    woken.Notify();
  });
  const bool in_time = woken.WaitForNotificationWithTimeout(absl::Seconds(10));
  EXPECT_TRUE(in_time);
  if (!in_time) {
    const uint64_t one = 1;
    EXPECT_EQ(write((*sleeper)->event_fd(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }
  waiter.join();
}

TEST(SleeperTest, ProgressAndAnotherDescriptorKeepItLooking) {
  auto sleeper = Sleeper::Create(nullptr, absl::ZeroDuration());
  ASSERT_TRUE(sleeper.ok());
  int looks = 0;
  EXPECT_TRUE((*sleeper)->Wait(absl::Seconds(20), [&] {
    return ++looks < 100 ? Sleeper::Seen::kProgress : Sleeper::Seen::kWork;
  }));
  EXPECT_EQ(looks, 100);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::atomic<bool> written{false};
  std::thread writer([&] {
    absl::SleepFor(absl::Milliseconds(5));
    written.store(true);
    EXPECT_EQ(write(ends[1], "x", 1), 1);  // and no Notify
  });
  EXPECT_TRUE((*sleeper)->Wait(
      absl::Seconds(20),
      [&] { return written.load() ? Sleeper::Seen::kWork : Sleeper::Seen::kNothing; }, ends[0]));
  writer.join();
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace shoal::transport
