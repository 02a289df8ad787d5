#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <string>
#include <thread>

#include "client/testing/client_rig.h"
#include "core/base/status.h"
#include "core/transport/registry/registry.h"

namespace shoal::client {
namespace {

using ::testing::HasSubstr;

class PushTest : public TransportTest {};

TEST_P(PushTest, SumsExactlyInBothGradientTypes) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    RigOptions options = Options();
    options.gradient_type = type;
    ClientRig rig(options);
    std::atomic<int64_t> pushed_partitions = 0;
    auto client = *rig.NewClient({.pushed = [&](const std::string& transport, absl::Duration took) {
      EXPECT_EQ(transport, GetParam());
      EXPECT_GT(took, absl::ZeroDuration());
      ++pushed_partitions;
    }});
    rig.OpenAttempt(1, 1);
    ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
    std::vector<std::vector<int64_t>> expected(static_cast<size_t>(rig.units()));
    for (int round = 0; round < 4; ++round) {
      for (const plan::UnitSpec& unit : rig.unit_specs) {
        const std::vector<float> gradient = IntegerGradient(unit, round);
        const absl::Status pushed = client->Push(unit.index, gradient, {.key = round + 1});
        ASSERT_TRUE(pushed.ok()) << pushed;
        Add(gradient, expected[static_cast<size_t>(unit.index)]);
      }
    }
    auto counts = client->Finish(absl::Seconds(10));
    ASSERT_TRUE(counts.ok()) << counts.status();
    int64_t total = 0;
    for (int server = 0; server < options.servers; ++server) {
      EXPECT_EQ((*counts)[static_cast<size_t>(server)], rig.server(server).pushes());
      EXPECT_LE(rig.server(server).most_in_flight(), options.slots);
      total += (*counts)[static_cast<size_t>(server)];
    }
    EXPECT_EQ(total, 4 * static_cast<int64_t>(rig.partitions.size()));
    EXPECT_EQ(pushed_partitions, total);
    ExpectSums(rig, expected);
    const ClientStatistics statistics = client->statistics();
    EXPECT_EQ(statistics.transports[0].push_bytes, 4 * rig.elements() * SizeOf(type));
    EXPECT_LE(statistics.most_in_flight, options.slots);
  }
}

TEST_P(PushTest, GivesGradientsBackBeforeTheyAreAcknowledged) {
  RigOptions options = Options();
  options.slots = 64;
  ClientRig rig(options);
  auto client = *rig.NewClient();
  rig.OpenAttempt(1, 1);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  rig.HoldAcknowledgements(true);
  Returns returned;
  std::vector<float> gradient = IntegerGradient(rig.unit_specs[1], 0);
  std::vector<int64_t> expected;
  Add(gradient, expected);
  ASSERT_TRUE(client->PushAsync(1, gradient, {}, &returned).ok());
  ASSERT_TRUE(returned.WaitFor(1));
  std::fill(gradient.begin(), gradient.end(),
            1e6F);  // the caller owns it again: must not reach the servers
  auto early = client->Finish(absl::Milliseconds(20));
  EXPECT_EQ(early.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(Message(early.status())), HasSubstr("push of block.0 (partition"));
  rig.HoldAcknowledgements(false);
  ASSERT_TRUE(client->Finish(absl::Seconds(10)).ok());
  EXPECT_EQ(rig.Sum(1), expected);
}

TEST_P(PushTest, NeverMoreInFlightThanGranted) {
  RigOptions options = Options();
  options.slots = 2;
  options.partition_bytes = 2048;
  ClientRig rig(options);
  auto client = *rig.NewClient({.push_timeout = absl::Seconds(2)});
  rig.OpenAttempt(1, 1);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  rig.HoldAcknowledgements(true);
  const std::vector<float> gradient = IntegerGradient(rig.unit_specs[1], 0);
  const absl::Status stuck = client->Push(1, gradient, {});  // far more partitions than slots
  EXPECT_EQ(stuck.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(Message(stuck)), HasSubstr("push block.0: no credit within 2s"));
  for (int server = 0; server < options.servers; ++server) {
    EXPECT_LE(rig.server(server).most_in_flight(), 2);
    rig.server(server).HoldAcknowledgements(false);
  }
  EXPECT_LE(client->statistics().most_in_flight, 2);
  // A new attempt starts from zero.
  rig.OpenAttempt(1, 2);
  ASSERT_TRUE(client->BeginStep(1, 2, 5).ok());
  std::vector<int64_t> expected;
  Add(gradient, expected);
  ASSERT_TRUE(client->Push(1, gradient, {}).ok());
  ASSERT_TRUE(client->Finish(absl::Seconds(10)).ok());
  EXPECT_EQ(rig.Sum(1), expected);
}

TEST_P(PushTest, RefusalsOfAnotherAttemptAreNamed) {
  ClientRig rig(Options());
  auto client = *rig.NewClient();
  rig.OpenAttempt(1, 2);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  client->Push(1, IntegerGradient(rig.unit_specs[1], 0), {}).IgnoreError();
  auto finished = client->Finish(absl::Seconds(10));
  EXPECT_EQ(finished.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(finished.status())), HasSubstr("push of block.0 (partition"));
  EXPECT_THAT(std::string(Message(finished.status())), HasSubstr("refused by server-"));
  EXPECT_EQ(rig.pushes(), 0);
  ASSERT_TRUE(client->BeginStep(1, 2, 5).ok());
  EXPECT_TRUE(client->Push(1, IntegerGradient(rig.unit_specs[1], 0), {}).ok());
  EXPECT_TRUE(client->Finish(absl::Seconds(10)).ok());
}

TEST_P(PushTest, AFencedClientStopsAtOnce) {
  ClientRig rig(Options());
  auto client = *rig.NewClient();
  rig.OpenAttempt(1, 1);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  for (int server = 0; server < 3; ++server) {
    rig.server(server).RefuseConnections(absl::PermissionDeniedError("fenced: lease over"));
    rig.server(server).BreakConnections();
  }
  client->Push(1, IntegerGradient(rig.unit_specs[1], 0), {}).IgnoreError();
  auto finished = client->Finish(absl::Seconds(10));
  EXPECT_EQ(finished.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(Message(finished.status())), HasSubstr("fenced: lease over"));
}

TEST_P(PushTest, BrokenConnectionsCountNothingTwice) {
  ClientRig rig(Options());
  auto client = *rig.NewClient({.reconnect_delay = absl::Milliseconds(1)});
  for (int64_t attempt = 1; attempt <= 5; ++attempt) {
    rig.OpenAttempt(1, attempt);
    ASSERT_TRUE(client->BeginStep(1, attempt, 5).ok());
    std::vector<std::vector<int64_t>> expected(static_cast<size_t>(rig.units()));
    for (int round = 0; round < 6; ++round) {
      for (const plan::UnitSpec& unit : rig.unit_specs) {
        const std::vector<float> gradient = IntegerGradient(unit, round);
        const absl::Status pushed = client->Push(unit.index, gradient, {.key = round + 1});
        ASSERT_TRUE(pushed.ok()) << pushed;
        Add(gradient, expected[static_cast<size_t>(unit.index)]);
      }
      rig.server(round % 3).BreakConnections();
    }
    auto counts = client->Finish(absl::Seconds(10));
    ASSERT_TRUE(counts.ok()) << counts.status();
    SCOPED_TRACE(attempt);
    ExpectSums(rig, expected);
    for (int server = 0; server < 3; ++server) {
      EXPECT_EQ((*counts)[static_cast<size_t>(server)], rig.server(server).pushes());
    }
  }
  EXPECT_GT(client->statistics().reconnects, 0);
}

TEST_P(PushTest, CancelEndsEveryWait) {
  RigOptions options = Options();
  options.slots = 64;
  ClientRig rig(options);
  auto client = *rig.NewClient();
  rig.OpenAttempt(1, 1);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  rig.HoldAcknowledgements(true);
  ASSERT_TRUE(client->Push(1, IntegerGradient(rig.unit_specs[1], 0), {}).ok());
  std::thread leaving([&] { client->Cancel(absl::CancelledError("told to leave")); });
  EXPECT_EQ(client->Finish(absl::Seconds(30)).status().code(), absl::StatusCode::kCancelled);
  leaving.join();
  EXPECT_EQ(client->Get(1).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(client->BeginStep(2, 1, 5).code(), absl::StatusCode::kCancelled);
}

TEST_P(PushTest, ANewAttemptDropsWhatWaits) {
  RigOptions options = Options();
  options.slots = 1;
  ClientRig rig(options);
  auto client = *rig.NewClient();
  rig.OpenAttempt(1, 1);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  rig.HoldAcknowledgements(true);
  Returns returned;
  std::vector<std::vector<float>> gradients;
  for (const plan::UnitSpec& unit : rig.unit_specs) {
    gradients.push_back(IntegerGradient(unit, 1));
  }
  for (const plan::UnitSpec& unit : rig.unit_specs) {
    ASSERT_TRUE(
        client->PushAsync(unit.index, gradients[static_cast<size_t>(unit.index)], {}, &returned)
            .ok());
  }
  ASSERT_TRUE(client->BeginStep(1, 2, 5).ok());
  ASSERT_TRUE(
      returned.WaitFor(static_cast<size_t>(rig.units())));  // their owner has all gradients again
  rig.OpenAttempt(1, 2);
  rig.HoldAcknowledgements(false);
  ASSERT_TRUE(client->Push(2, gradients[2], {}).ok());
  ASSERT_TRUE(client->Finish(absl::Seconds(10)).ok());
  EXPECT_EQ(rig.pushes(), static_cast<int64_t>(rig.layout.unit(2).partitions.size()));
  std::vector<int64_t> expected;
  Add(gradients[2], expected);
  EXPECT_EQ(rig.Sum(2), expected);
}

// Clients with a range of every unit together deliver all of it: if two share a partition, each
// sends zero for the other's part.
TEST_P(PushTest, RangesOfSeveralClientsAddUp) {
  ClientRig rig(Options());
  rig.OpenAttempt(1, 1);
  int64_t pushes = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const plan::WorkerShards shards = plan::ShardUnits(rig.unit_specs, rig.partitions, rank, 3);
    auto client =
        *rig.NewClient({.incarnation = 70 + static_cast<uint64_t>(rank), .ranges = shards.whole()});
    ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
    for (const plan::UnitSpec& unit : rig.unit_specs) {
      const plan::WorkerShards::Unit& shard = shards.of(unit.index);
      if (shard.own.count == 0) {
        continue;
      }
      const std::vector<float> all = IntegerGradient(unit, 1);
      std::vector<float> part(static_cast<size_t>(shard.whole.count), 0);
      std::copy_n(all.begin() + shard.own.first, shard.own.count,
                  part.begin() + (shard.own.first - shard.whole.first));
      ASSERT_TRUE(client->Push(unit.index, part, {.key = rank + 1}).ok());
    }
    const auto counts = client->Finish(absl::Seconds(10));
    ASSERT_TRUE(counts.ok()) << counts.status();
    pushes = std::accumulate(counts->begin(), counts->end(), pushes);
  }
  EXPECT_GE(pushes, static_cast<int64_t>(rig.partitions.size()));
  for (const plan::UnitSpec& unit : rig.unit_specs) {
    std::vector<int64_t> expected;
    Add(IntegerGradient(unit, 1), expected);
    EXPECT_EQ(rig.Sum(unit.index), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, PushTest, ::testing::ValuesIn(TransportsHere()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace shoal::client
