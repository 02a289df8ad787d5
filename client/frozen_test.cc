// What is frozen, in the wire type and in NF4: of version 0 in every step, and read once by a
// client that keeps weights over one.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "client/testing/client_rig.h"
#include "core/base/bf16.h"
#include "core/base/status.h"
#include "core/model/nf4_partition.h"
#include "core/transport/registry/registry.h"
#include "core/transport/testing/fault_transport.h"

namespace shoal::client {
namespace {

// The elements of a block in NF4, whatever its partitions are.
std::vector<float> OfNf4(const plan::UnitSpec& unit) {
  const plan::Nf4Partition whole(unit, 0, unit.count);
  std::vector<std::byte> wire(static_cast<size_t>(whole.bytes()));
  const auto weights = [](int index, int64_t offset, std::span<float> out) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = FakeServer::Weight(0, index, offset + static_cast<int64_t>(i));
    }
    return absl::OkStatus();
  };
  EXPECT_TRUE(whole.Encode(weights, wire.data()).ok());
  std::vector<float> values(static_cast<size_t>(unit.count));
  whole.Decode(wire.data(), DType::kF32, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

class FrozenTest : public TransportTest {
 protected:
  static RigOptions Frozen(bool nf4) {
    RigOptions options = Options();
    options.frozen = {0, 1, 2};
    options.nf4 = nf4;
    return options;
  }

  // Gets a unit in step `step`, and releases it.
  static void Expect(const ClientRig& rig, ParameterClient& client, int64_t step, int index,
                     DType type = DType::kF32) {
    const plan::UnitSpec& unit = rig.unit_specs[static_cast<size_t>(index)];
    const auto view = client.Get(index);
    ASSERT_TRUE(view.ok()) << view.status();
    if (!unit.nf4) {
      ExpectWeights(*view, type, unit.frozen ? 0 : step - 1, index);
    } else {
      const std::vector<float> values = OfNf4(unit);
      ASSERT_EQ(view->count, std::ssize(values));
      for (size_t i = 0; i < values.size(); ++i) {
        const float value = type == DType::kF32
                                ? static_cast<const float*>(view->data)[i]
                                : static_cast<float>(static_cast<const BFloat16*>(view->data)[i]);
        ASSERT_EQ(value, type == DType::kF32 ? values[i] : static_cast<float>(BFloat16(values[i])))
            << "unit " << index << " element " << i;
      }
    }
    client.Release(index);
  }
};

TEST_P(FrozenTest, IsReadOnceWhereWeightsAreKept) {
  for (const bool nf4 : {false, true}) {
    for (const bool keep : {false, true}) {
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        RigOptions options = Frozen(nf4);
        options.wire_type = DType::kBF16;
        ClientRig rig(options);
        const auto client = *rig.NewClient({.compute_type = compute, .keep_for_step = keep});
        int64_t expected = 0;
        for (int64_t step = 1; step <= 3; ++step) {
          rig.Publish(step - 1);
          ASSERT_TRUE(client->BeginStep(step, 1, 5).ok());
          for (int unit = 0; unit < rig.units(); ++unit) {
            Expect(rig, *client, step, unit, compute);
            Expect(rig, *client, step, unit, compute);
          }
          for (const plan::PartitionSpec& partition : rig.partitions) {
            const int uses = !keep ? 2 : partition.frozen && step > 1 ? 0 : 1;
            expected += uses * partition.wire_bytes(DType::kBF16);
          }
          EXPECT_EQ(client->statistics().transports[0].get_bytes, expected) << step;
        }
      }
    }
  }
}

TEST_P(FrozenTest, StaysWhereItsPartitionsMove) {
  for (const bool nf4 : {false, true}) {
    RigOptions options = Frozen(nf4);
    options.reserves_all = true;
    ClientRig rig(options);
    const auto client = *rig.NewClient({.keep_for_step = true});
    rig.Publish(0);
    ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
    Expect(rig, *client, 1, 1);
    const std::vector<int64_t> before = client->statistics().server_get_bytes;

    plan::ShardMap next = rig.map;
    ++next.generation;
    std::vector<int64_t> expected = before;
    for (const plan::PartitionSpec& partition : rig.partitions) {
      const auto id = static_cast<size_t>(partition.id);
      next.servers[id] = {(next.servers[id].front() + 1) % options.servers};
      if (partition.unit == 2) {
        expected[static_cast<size_t>(next.servers[id].front())] +=
            partition.wire_bytes(DType::kF32);
      }
    }
    rig.layout.holders = next.servers;
    rig.Publish(0);
    ASSERT_TRUE(client->Follow(rig.unit_specs, rig.partitions, next));
    ASSERT_TRUE(client->BeginStep(2, 1, next.generation).ok());
    Expect(rig, *client, 2, 1);
    EXPECT_EQ(client->statistics().server_get_bytes, before);
    Expect(rig, *client, 2, 2);
    EXPECT_EQ(client->statistics().server_get_bytes, expected);
  }
}

TEST_P(FrozenTest, IsThereThoughAServerIsLostAndElseTriedAgain) {
  for (const bool nf4 : {false, true}) {
    ClientRig rig(Frozen(nf4));
    const auto client = *rig.NewClient(
        {.keep_for_step = true, .max_reconnects = 2, .reconnect_delay = absl::Milliseconds(1)});
    rig.Publish(0);
    ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
    Expect(rig, *client, 1, 1);
    rig.server(1).RefuseConnections(absl::UnavailableError("gone fishing"));
    rig.server(1).BreakConnections();
    while (!client->LacksServer()) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    Expect(rig, *client, 1, 1);
    EXPECT_TRUE(absl::IsUnavailable(client->Get(2).status()));
    rig.server(1).RefuseConnections(absl::OkStatus());
    for (int64_t attempt = 2; attempt <= 3; ++attempt) {
      ASSERT_TRUE(client->BeginStep(1, attempt, 5).ok());
      Expect(rig, *client, 1, 1);
      Expect(rig, *client, 1, 2);
    }
    EXPECT_EQ(client->statistics().fetches, 3);
  }
}

TEST_P(FrozenTest, IsWholeThoughConnectionsBreakWhileItIsRead) {
  int64_t reconnects = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    RigOptions options = Frozen(seed % 2 == 0);
    const transport::FaultOptions faults = {.seed = seed,
                                            .delay_probability = 0.3,
                                            .max_delay = absl::Milliseconds(2),
                                            .reorder = true,
                                            .break_after_operations = 20};
    ClientRig rig(options,
                  transport::MakeFaultTransport(*transport::CreateTransport(GetParam()), faults));
    const auto client =
        *rig.NewClient({.keep_for_step = true, .reconnect_delay = absl::Milliseconds(1)});
    for (int64_t step = 1; step <= 4; ++step) {
      rig.Publish(step - 1);
      ASSERT_TRUE(client->BeginStep(step, 1, 5).ok());
      std::map<int, bool> prefetched;
      for (int unit = 0; unit < rig.units(); ++unit) {
        prefetched[unit + 1] = unit + 1 < rig.units() && client->Prefetch(unit + 1);
        Expect(rig, *client, step, unit);
        if (prefetched[unit]) {
          client->Release(unit);
        }
      }
    }
    EXPECT_EQ(client->statistics().fetches, std::ssize(options.frozen) + 4) << seed;
    reconnects += client->statistics().reconnects;
  }
  EXPECT_GT(reconnects, 0);
}

INSTANTIATE_TEST_SUITE_P(Transports, FrozenTest, ::testing::ValuesIn(TransportsHere()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace shoal::client
