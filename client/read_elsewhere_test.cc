// A client that reads partitions at other servers than it pushes them to.
#include <algorithm>

#include "client/testing/client_rig.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace shoal::client {
namespace {

class ReadElsewhereTest : public TransportTest {
 protected:
  static RigOptions Replicated() {
    RigOptions options = Options();
    options.replicas = 2;
    return options;
  }
  static void ExpectAllWeights(ClientRig& rig, ParameterClient& client, int64_t version) {
    for (int unit = 0; unit < rig.units(); ++unit) {
      const auto view = client.Get(unit);
      ASSERT_TRUE(view.ok()) << view.status();
      ExpectWeights(*view, DType::kF32, version, unit);
      client.Release(unit);
    }
  }
  static void AwaitThatItLacksAServer(const ParameterClient& client, bool lacks) {
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (client.LacksServer() != lacks) {
      ASSERT_LT(absl::Now(), deadline);
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  // Of the partitions that are at that server.
  static int64_t BytesOf(const ClientRig& rig, const std::vector<int>& at, int server) {
    int64_t bytes = 0;
    for (const plan::PartitionSpec& partition : rig.partitions) {
      bytes += at[static_cast<size_t>(partition.id)] == server ? 4 * partition.count : 0;
    }
    return bytes;
  }
  static std::vector<int> Writers(const ClientRig& rig) {
    std::vector<int> writers;
    for (const plan::PartitionSpec& partition : rig.partitions) {
      writers.push_back(rig.layout.writer_of(partition.id));
    }
    return writers;
  }
};

TEST_P(ReadElsewhereTest, GetsComeFromReadersAndPushesGoToWriters) {
  ClientRig rig(Replicated());
  const auto client = *rig.NewClient();
  rig.Publish(0);
  rig.OpenAttempt(1, 1);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  ExpectAllWeights(rig, *client, 0);
  const ClientStatistics read = client->statistics();
  for (int server = 0; server < rig.options.servers; ++server) {
    EXPECT_EQ(read.server_get_bytes[static_cast<size_t>(server)],
              BytesOf(rig, rig.layout.reader, server));
  }
  EXPECT_EQ(read.backup_get_bytes, 4 * rig.elements());
  EXPECT_EQ(read.backup_fallbacks, 0);
  std::vector<std::vector<int64_t>> expected;
  for (int unit = 0; unit < rig.units(); ++unit) {
    const auto gradient = IntegerGradient(rig.unit_specs[static_cast<size_t>(unit)], 1);
    ASSERT_TRUE(client->Push(unit, gradient, {.key = 1}).ok());
    Add(gradient, expected.emplace_back());
  }
  const auto acknowledged = client->Finish(absl::Seconds(30));
  ASSERT_TRUE(acknowledged.ok()) << acknowledged.status();
  for (int server = 0; server < rig.options.servers; ++server) {
    EXPECT_EQ((*acknowledged)[static_cast<size_t>(server)],
              std::ranges::count(Writers(rig), server));
  }
  ExpectSums(rig, expected);
}

TEST_P(ReadElsewhereTest, AVersionThatIsNotThereIsReadFromTheWriterAfterTwoLooks) {
  ClientRig rig(Replicated());
  const auto client = *rig.NewClient();
  rig.Publish(0);
  rig.server(0).Publish(2);  // into the places of version 0
  rig.server(1).Publish(2);
  const int64_t late = std::ranges::count(rig.layout.reader, 2);
  ASSERT_GT(late, 0);
  ASSERT_TRUE(client->BeginStep(3, 1, 5).ok());
  ExpectAllWeights(rig, *client, 2);
  EXPECT_EQ(client->statistics().backup_fallbacks, late);
  EXPECT_EQ(client->statistics().rereads, 2 * late);
}

TEST_P(ReadElsewhereTest, ALostReaderCostsNoReadAndTakesPartAgainWhenItIsBack) {
  ClientRig rig(Replicated());
  const auto client = *rig.NewClient({.max_reconnects = 100'000});
  rig.Publish(0);
  rig.OpenAttempt(1, 1);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  rig.server(1).RefuseConnections(Unavailable("it is away"));
  rig.server(1).BreakConnections();
  AwaitThatItLacksAServer(*client, true);
  ExpectAllWeights(rig, *client, 0);
  EXPECT_EQ(client->statistics().backup_fallbacks, std::ranges::count(rig.layout.reader, 1));
  EXPECT_EQ(client->statistics().server_get_bytes[1], 0);
  rig.server(1).RefuseConnections(absl::OkStatus());
  AwaitThatItLacksAServer(*client, false);
  ExpectAllWeights(rig, *client, 0);
  EXPECT_EQ(client->statistics().server_get_bytes[1], BytesOf(rig, rig.layout.reader, 1));
}

TEST_P(ReadElsewhereTest, FollowsAMapByWhichOneIsReadFromItsWriter) {
  ClientRig rig(Replicated());
  const auto client = *rig.NewClient();
  plan::ShardMap next = rig.map;
  ++next.generation;
  next.readers.clear();
  ASSERT_TRUE(client->Follow(rig.unit_specs, rig.partitions, next));
  rig.Publish(0);
  ASSERT_TRUE(client->BeginStep(1, 1, 6).ok());
  ExpectAllWeights(rig, *client, 0);
  EXPECT_EQ(client->statistics().backup_get_bytes, 0);
}

TEST_P(ReadElsewhereTest, DoesNotFollowAMapByWhichABackupIsThePrimary) {
  ClientRig rig(Replicated());
  const auto client = *rig.NewClient();
  plan::ShardMap next = rig.map;
  ++next.generation;
  std::swap(next.servers[0][0], next.servers[0][1]);
  EXPECT_FALSE(client->Follow(rig.unit_specs, rig.partitions, next))
      << "it has another place for what it is the primary of";
}

INSTANTIATE_TEST_SUITE_P(Transports, ReadElsewhereTest, ::testing::ValuesIn(TransportsHere()));

}  // namespace
}  // namespace shoal::client
