// Gets and pushes over transports that delay, reorder, lose doorbells and break, from a seed.
#include <gtest/gtest.h>

#include <string>

#include "client/testing/client_rig.h"
#include "core/transport/registry/registry.h"
#include "core/transport/testing/fault_transport.h"

namespace shoal::client {
namespace {

class FaultTest : public TransportTest {};

TEST_P(FaultTest, WeightsAreRightAndPushesCountOnce) {
  int64_t reconnects = 0;
  int64_t found_by_scan = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    const transport::FaultOptions faults = {.seed = seed,
                                            .delay_probability = 0.3,
                                            .max_delay = absl::Milliseconds(2),
                                            .reorder = true,
                                            .drop_doorbell_probability = seed % 2 == 0 ? 0.2 : 0,
                                            .break_after_operations = seed % 3 == 0 ? 100 : 0};
    ClientRig rig({.partition_bytes = 4 << 10, .transport = GetParam()},
                  transport::MakeFaultTransport(*transport::CreateTransport(GetParam()), faults));
    auto client = *rig.NewClient(
        {.reconnect_delay = absl::Milliseconds(1), .rescan_interval = absl::Milliseconds(5)});
    for (int64_t step = 1; step <= 4; ++step) {
      rig.Publish(step - 1);
      rig.OpenAttempt(step, 1);
      ASSERT_TRUE(client->BeginStep(step, 1, 5).ok());
      std::vector<std::vector<int64_t>> expected(static_cast<size_t>(rig.units()));
      for (int microbatch = 0; microbatch < 3; ++microbatch) {
        for (const plan::UnitSpec& unit : rig.unit_specs) {
          const int next = (unit.index + 1) % rig.units();
          const bool prefetched = client->Prefetch(next);
          auto view = client->Get(unit.index);
          ASSERT_TRUE(view.ok()) << view.status();
          ExpectWeights(*view, DType::kF32, step - 1, unit.index);
          client->Release(unit.index);
          const std::vector<float> gradient = IntegerGradient(unit, microbatch);
          Add(gradient, expected[static_cast<size_t>(unit.index)]);
          const absl::Status pushed = client->Push(unit.index, gradient, {.key = microbatch + 1});
          ASSERT_TRUE(pushed.ok()) << pushed;
          if (prefetched) {
            client->Release(next);  // in flight or arrived
          }
        }
      }
      const auto counts = client->Finish(absl::Seconds(20));
      ASSERT_TRUE(counts.ok()) << counts.status();
      for (int server = 0; server < 3; ++server) {
        ASSERT_EQ((*counts)[static_cast<size_t>(server)], rig.server(server).pushes());
      }
      ExpectSums(rig, expected);
    }
    reconnects += client->statistics().reconnects;
    found_by_scan += client->statistics().found_by_scan;
  }
  // Faults did happen.
  EXPECT_GT(reconnects, 0);
  EXPECT_GT(found_by_scan, 0);
}

INSTANTIATE_TEST_SUITE_P(Transports, FaultTest, ::testing::ValuesIn(TransportsHere()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace shoal::client
