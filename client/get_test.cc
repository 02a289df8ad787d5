#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "client/testing/client_rig.h"
#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/transport/data_layout.h"
#include "core/transport/registry/registry.h"

namespace shoal::client {
namespace {

using ::testing::HasSubstr;

class GetTest : public TransportTest {};

TEST_P(GetTest, GivesWhatWasPublishedInEveryMixOfTypes) {
  for (const DType wire : {DType::kF32, DType::kBF16}) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      for (const bool keep : {false, true}) {
        RigOptions options = Options();
        options.wire_type = wire;
        ClientRig rig(options);
        auto client = rig.NewClient({.compute_type = compute, .keep_for_step = keep});
        ASSERT_TRUE(client.ok()) << client.status();
        for (int64_t step = 1; step <= 3; ++step) {
          rig.Publish(step - 1);
          ASSERT_TRUE((*client)->BeginStep(step, 1, 5).ok());
          for (int unit = 0; unit < rig.units(); ++unit) {
            auto view = (*client)->Get(unit);
            ASSERT_TRUE(view.ok()) << view.status();
            ASSERT_EQ(view->count, rig.unit_specs[static_cast<size_t>(unit)].count);
            ExpectWeights(*view, compute, step - 1, unit);
            (*client)->Release(unit);
          }
        }
      }
    }
  }
}

TEST_P(GetTest, CountsEveryByte) {
  for (const bool keep : {false, true}) {
    ClientRig rig(Options());
    std::atomic<int64_t> partitions = 0;
    auto client = *rig.NewClient(
        {.keep_for_step = keep, .got = [&](const std::string& transport, absl::Duration took) {
           EXPECT_EQ(transport, GetParam());
           EXPECT_GE(took, absl::ZeroDuration());
           ++partitions;
         }});
    rig.Publish(0);
    ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
    constexpr int kMicrobatches = 3;
    for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
      for (int pass = 0; pass < 2; ++pass) {
        for (int unit = 0; unit < rig.units(); ++unit) {
          ASSERT_TRUE(client->Get(unit).ok());
          client->Release(unit);
        }
      }
    }
    const int64_t times = keep ? 1 : 2 * kMicrobatches;
    EXPECT_EQ(client->statistics().transports[0].get_bytes, times * rig.elements() * 4);
    EXPECT_EQ(partitions, times * std::ssize(rig.partitions));
  }
}

TEST_P(GetTest, ReadsVersionZeroOfWhatIsFrozenAndKeepsItWithTheStep) {
  for (const bool keep : {false, true}) {
    RigOptions options = Options();
    options.frozen = {0, 2};
    ClientRig rig(options);
    auto client = *rig.NewClient({.keep_for_step = keep});
    for (int64_t step = 1; step <= 4; ++step) {
      rig.Publish(step - 1);
      const int64_t before = client->statistics().fetches;
      ASSERT_TRUE(client->BeginStep(step, 1, 5).ok());
      for (int unit = 0; unit < rig.units(); ++unit) {
        const auto view = client->Get(unit);
        ASSERT_TRUE(view.ok()) << view.status();
        ExpectWeights(*view, DType::kF32, options.frozen.contains(unit) ? 0 : step - 1, unit);
        client->Release(unit);
      }
      EXPECT_EQ(client->statistics().fetches - before,
                rig.units() - (keep && step > 1 ? std::ssize(options.frozen) : 0));
    }
    rig.OpenAttempt(4, 1);
    const std::vector<float> gradient = IntegerGradient(rig.unit_specs[2], 1);
    EXPECT_THAT(std::string(client->Push(2, gradient, {}).message()),
                HasSubstr("push block.1: it is frozen (train.groups) and takes no gradient"));
  }
}

// A pipeline stage has some of the model's units, and buffers only for these.
TEST_P(GetTest, KeepsBuffersForTheUnitsThatAreGot) {
  for (const bool keep : {false, true}) {
    ClientRig rig(Options());
    const auto whole = *rig.NewClient({.keep_for_step = keep});
    const auto stage = *rig.NewClient({.units = {0, 2}, .keep_for_step = keep});
    const auto buffer = [&](int unit) {
      return RoundUp(rig.unit_specs[static_cast<size_t>(unit)].count * 4,
                     transport::kBufferAlignment);
    };
    EXPECT_EQ(whole->buffer_bytes() - stage->buffer_bytes(), buffer(1) + buffer(3));
    rig.Publish(0);
    ASSERT_TRUE(stage->BeginStep(1, 1, 5).ok());
    for (const int unit : {0, 2}) {
      auto view = stage->Get(unit);
      ASSERT_TRUE(view.ok()) << view.status();
      ExpectWeights(*view, DType::kF32, 0, unit);
      stage->Release(unit);
    }
  }
}

TEST_P(GetTest, UnitStaysWhileItHasUses) {
  ClientRig rig(Options());
  auto client = *rig.NewClient();
  rig.Publish(0);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  auto first = client->Get(1);
  auto second = client->Get(1);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->data, second->data);
  client->Release(1);
  ExpectWeights(*second, DType::kF32, 0, 1);
  EXPECT_EQ(client->statistics().fetches, 1);
  client->Release(1);
  ASSERT_TRUE(client->Get(1).ok());
  EXPECT_EQ(client->statistics().fetches, 2);
}

TEST_P(GetTest, PrefetchIsTheFetch) {
  ClientRig rig(Options());
  auto client = *rig.NewClient();
  rig.Publish(0);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  ASSERT_TRUE(client->Prefetch(1));
  ASSERT_TRUE(client->Prefetch(2));
  auto view = client->Get(1);
  ASSERT_TRUE(view.ok());
  ExpectWeights(*view, DType::kF32, 0, 1);
  EXPECT_EQ(client->statistics().fetches, 2);
}

TEST_P(GetTest, PrefetchWithoutABufferSaysSo) {
  ClientRig rig(Options());
  auto client = *rig.NewClient({.buffers_per_size = 1, .get_timeout = absl::Seconds(1)});
  rig.Publish(0);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  ASSERT_TRUE(client->Get(1).ok());
  EXPECT_FALSE(client->Prefetch(2));  // the only buffer of a block's size is in use
  auto second = client->Get(2);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(Message(second.status())), HasSubstr("get block.1"));
  client->Release(1);
  EXPECT_TRUE(client->Get(2).ok());
}

TEST_P(GetTest, ReadsAgainWhatWasBeingWritten) {
  ClientRig rig(Options());
  auto client = *rig.NewClient({.max_version_reads = 1000});
  rig.Publish(0);
  const int partition = rig.layout.unit(1).partitions.front();
  FakeServer& server = rig.server(rig.layout.writer_of(partition));
  server.SetWriting(partition, 0, true);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  std::thread writer([&] {
    while (client->statistics().rereads == 0) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    server.SetWriting(partition, 0, false);
  });
  auto view = client->Get(1);
  writer.join();
  ASSERT_TRUE(view.ok()) << view.status();
  ExpectWeights(*view, DType::kF32, 0, 1);
  EXPECT_EQ(view->last_server, rig.layout.writer_of(partition));
}

TEST_P(GetTest, GivesUpOnAVersionThatDoesNotComeAndNamesIt) {
  ClientRig rig(Options());
  auto client = *rig.NewClient({.max_version_reads = 3});
  rig.Publish(0);
  ASSERT_TRUE(client->BeginStep(3, 1, 5).ok());  // version 2: buffer 0, which has version 0
  auto view = client->Get(1);
  ASSERT_EQ(view.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(view.status())), HasSubstr("get block.0"));
  EXPECT_THAT(std::string(Message(view.status())), HasSubstr("wanted version 2, found version 0"));
  // The next step still works.
  ASSERT_TRUE(client->BeginStep(1, 2, 5).ok());
  EXPECT_TRUE(client->Get(1).ok());
}

TEST_P(GetTest, DoesNotTakeABufferThatIsBeingWritten) {
  ClientRig rig(Options());
  auto client = *rig.NewClient({.max_version_reads = 3});
  rig.Publish(0);
  const int partition = rig.layout.unit(1).partitions.front();
  rig.server(rig.layout.writer_of(partition)).SetWriting(partition, 0, true);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  auto view = client->Get(1);
  ASSERT_FALSE(view.ok());
  EXPECT_THAT(std::string(Message(view.status())), HasSubstr("being written"));
}

TEST_P(GetTest, AnotherGenerationIsRefusedByName) {
  ClientRig rig(Options());
  auto client = *rig.NewClient();
  const absl::Status status = client->BeginStep(1, 1, 6);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("generation 6"));
}

TEST_P(GetTest, ReadsOnAfterBrokenConnections) {
  ClientRig rig(Options());
  auto client = *rig.NewClient();
  for (int64_t step = 1; step <= 10; ++step) {
    rig.Publish(step - 1);
    ASSERT_TRUE(client->BeginStep(step, 1, 5).ok());
    for (int unit = 0; unit < rig.units(); ++unit) {
      if (unit == static_cast<int>(step) % rig.units()) {
        rig.server(static_cast<int>(step) % 3).BreakConnections();
      }
      auto view = client->Get(unit);
      ASSERT_TRUE(view.ok()) << view.status();
      ExpectWeights(*view, DType::kF32, step - 1, unit);
      client->Release(unit);
    }
  }
  EXPECT_GT(client->statistics().reconnects, 0);
}

TEST_P(GetTest, ALostServerIsNamedAndTriedAgainInTheNextStep) {
  ClientRig rig(Options());
  auto client = *rig.NewClient({.max_reconnects = 2, .reconnect_delay = absl::Milliseconds(1)});
  rig.Publish(0);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  EXPECT_FALSE(client->LacksServer());
  rig.server(1).RefuseConnections(absl::UnavailableError("gone fishing"));
  rig.server(1).BreakConnections();
  absl::Status failed;
  for (int i = 0; i < 1000 && failed.ok(); ++i) {
    auto view = client->Get(1);
    failed = view.status();
    if (view.ok()) {
      client->Release(1);
    }
  }
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Message(failed)), HasSubstr("server-1 is lost"));
  EXPECT_THAT(std::string(Message(failed)), HasSubstr("gone fishing"));
  EXPECT_TRUE(client->LacksServer());
  rig.server(1).RefuseConnections(absl::OkStatus());
  ASSERT_TRUE(client->BeginStep(1, 2, 5).ok());
  auto view = client->Get(1);
  ASSERT_TRUE(view.ok()) << view.status();
  ExpectWeights(*view, DType::kF32, 0, 1);
  EXPECT_FALSE(client->LacksServer());
}

TEST_P(GetTest, ReadOnlyClientNeedsNoSlots) {
  ClientRig rig(Options());
  rig.Publish(4);
  auto client = *rig.NewClient({.read_only = true});
  EXPECT_EQ(client->published(), 4);
  ASSERT_TRUE(client->BeginRead(client->published()).ok());
  auto view = client->Get(2);
  ASSERT_TRUE(view.ok());
  ExpectWeights(*view, DType::kF32, 4, 2);
}

TEST(CreateTest, NamesTheServerThatCannotBeReached) {
  ClientRig rig({});
  rig.server(2).RefuseConnections(absl::UnavailableError("not up"));
  auto client = rig.NewClient({.connect_timeout = absl::Seconds(1)});
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Message(client.status())), HasSubstr("connect to server-2"));
}

TEST(CreateTest, AServerOfAnotherJobIsNotAskedTwice) {
  ClientRig rig({});
  const absl::Time start = absl::Now();
  const auto client = rig.NewClient({.job_id = "job-2", .connect_timeout = absl::Minutes(1)});
  EXPECT_TRUE(absl::IsNotFound(client.status())) << client.status();
  EXPECT_THAT(std::string(Message(client.status())), HasSubstr("job-2 is not here"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
}

// During a call, and between tries.
TEST(CreateTest, EndsWhenItIsNotWantedAnyMore) {
  for (const bool answered : {false, true}) {
    ClientRig rig({});
    if (answered) {
      rig.server(0).RefuseConnections(absl::UnavailableError("not up"));
    } else {
      rig.server_client->Hold();
    }
    std::atomic<bool> leaving = false;
    std::thread leave([&] {
      while (!answered && rig.server_client->held() == 0) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      leaving = true;
      if (!answered) {
        rig.server_client->Cancel();
      }
    });
    const absl::Time begun = absl::Now();
    const absl::Status status =
        rig.NewClient(
               {.connect_timeout = absl::Seconds(30),
                .check = [&] { return leaving ? absl::AbortedError("leaving") : absl::OkStatus(); },
                .handshake_timeout = absl::Seconds(30)})
            .status();
    EXPECT_EQ(status, absl::AbortedError("leaving"));
    EXPECT_LT(absl::Now() - begun, absl::Seconds(15));
    leave.join();
  }
}

// A client with a range of each unit gets only its partitions.
TEST_P(GetTest, OfARangeIsItsPartitionsAlone) {
  ClientRig rig(Options());
  std::vector<plan::ElementRange> ranges;
  int64_t elements = 0;
  for (const plan::UnitSpec& unit : rig.unit_specs) {
    const plan::ElementRange third = plan::ShardOf(unit.count, 1, 3);
    ranges.push_back(plan::WholePartitions(rig.partitions, unit.index, third));
    elements += ranges.back().count;
  }
  ASSERT_LT(elements, rig.elements());
  ClientRig whole_rig(Options());
  auto all = *whole_rig.NewClient({.keep_for_step = true});
  auto part = *rig.NewClient({.ranges = ranges, .keep_for_step = true});
  for (ClientRig* each : {&rig, &whole_rig}) {
    each->Publish(0);
  }
  ASSERT_TRUE(all->BeginStep(1, 1, 5).ok());
  ASSERT_TRUE(part->BeginStep(1, 1, 5).ok());
  for (const plan::UnitSpec& unit : rig.unit_specs) {
    const plan::ElementRange range = ranges[static_cast<size_t>(unit.index)];
    if (range.count == 0) {
      continue;
    }
    const auto got = part->Get(unit.index);
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_EQ(got->count, range.count);
    const auto* whole = static_cast<const float*>(all->Get(unit.index)->data);
    EXPECT_EQ(std::memcmp(got->data, whole + range.first, static_cast<size_t>(range.count) * 4), 0);
  }
  EXPECT_EQ(part->statistics().transports[0].get_bytes, elements * 4);
}

INSTANTIATE_TEST_SUITE_P(Transports, GetTest, ::testing::ValuesIn(TransportsHere()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace shoal::client
