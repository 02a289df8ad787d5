// Pushes directly from gradients: from this process's memory over every transport, and from a GPU's
// over the one that reaches it here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "client/registered_memory.h"
#include "client/testing/client_rig.h"
#include "core/base/bf16.h"
#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/transport/registry/registry.h"
#include "core/transport/testing/guarded_gpu.h"

namespace shoal::client {
namespace {

// Gradients of all units, concatenated, in memory registered with the client's transport.
class Gradients {
 public:
  Gradients(ClientRig& rig, const BufferAllocator& allocate = nullptr) : rig_(rig) {
    transport::Transport* const transport = rig.client_transport.get();
    memory_ = *RegisteredMemory::Create(rig.elements() * element(), {&transport, 1}, allocate);
  }
  int64_t element() const { return SizeOf(rig_.options.gradient_type); }
  std::span<std::byte> of(int unit) {
    int64_t before = 0;
    for (int i = 0; i < unit; ++i) {
      before += rig_.unit_specs[static_cast<size_t>(i)].count;
    }
    return memory_->bytes().subspan(
        static_cast<size_t>(before * element()),
        static_cast<size_t>(rig_.unit_specs[static_cast<size_t>(unit)].count * element()));
  }
  // Returns the bytes of IntegerGradient, whose values it adds to `sum`.
  std::vector<std::byte> Make(int unit, int seed, std::vector<int64_t>& sum) const {
    const std::vector<float> values =
        IntegerGradient(rig_.unit_specs[static_cast<size_t>(unit)], seed);
    Add(values, sum);
    std::vector<std::byte> bytes(values.size() * static_cast<size_t>(element()));
    if (rig_.options.gradient_type == DType::kF32) {
      std::memcpy(bytes.data(), values.data(), bytes.size());
    } else {
      Convert(values, reinterpret_cast<BFloat16*>(bytes.data()));
    }
    return bytes;
  }

 private:
  ClientRig& rig_;
  std::unique_ptr<RegisteredMemory> memory_;
};

class PushInPlaceTest : public TransportTest {};

TEST_P(PushInPlaceTest, SumsExactlyInBothGradientTypes) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    RigOptions options = Options();
    options.gradient_type = type;
    ClientRig rig(options);
    Gradients gradients(rig);
    Returns returns;
    auto client = *rig.NewClient({.push_in_place = true});
    auto copying = *rig.NewClient();
    EXPECT_LT(client->buffer_bytes(), copying->buffer_bytes())
        << "no payload lies in buffers of the client";
    rig.OpenAttempt(1, 1);
    ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
    std::vector<std::vector<int64_t>> expected(static_cast<size_t>(rig.units()));
    for (int round = 0; round < 4; ++round) {
      for (int unit = 0; unit < rig.units(); ++unit) {
        const std::vector<std::byte> bytes =
            gradients.Make(unit, round, expected[static_cast<size_t>(unit)]);
        std::ranges::copy(bytes, gradients.of(unit).begin());
        ASSERT_TRUE(
            client->PushInPlace(unit, gradients.of(unit), {.key = round + 1}, &returns).ok());
      }
      ASSERT_TRUE(returns.WaitFor(static_cast<size_t>(rig.units() * (round + 1))));
    }
    const auto counts = client->Finish(absl::Seconds(10));
    ASSERT_TRUE(counts.ok()) << counts.status();
    EXPECT_EQ(rig.pushes(), 4 * static_cast<int64_t>(rig.partitions.size()));
    for (int unit = 0; unit < rig.units(); ++unit) {
      EXPECT_EQ(rig.Sum(unit), expected[static_cast<size_t>(unit)]);
      EXPECT_EQ(returns.gradients().count(gradients.of(unit).data()), 1u);
    }
    const ClientStatistics statistics = client->statistics();
    EXPECT_EQ(statistics.transports[0].push_bytes, 4 * rig.elements() * SizeOf(type));
    EXPECT_LE(statistics.most_in_flight, options.slots);
  }
}

TEST_P(PushInPlaceTest, GivesGradientsBackWhenTheyAreAcknowledged) {
  RigOptions options = Options();
  options.slots = 64;  // enough for everything
  ClientRig rig(options);
  Gradients gradients(rig);
  Returns returns;
  auto client = *rig.NewClient({.push_in_place = true});
  rig.OpenAttempt(1, 1);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  rig.HoldAcknowledgements(true);
  std::vector<int64_t> expected;
  std::ranges::copy(gradients.Make(1, 0, expected), gradients.of(1).begin());
  ASSERT_TRUE(client->PushInPlace(1, gradients.of(1), {}, &returns).ok());
  EXPECT_EQ(client->Finish(absl::Milliseconds(50)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(returns.units().empty()) << "it may have to be sent again";
  rig.HoldAcknowledgements(false);
  ASSERT_TRUE(client->Finish(absl::Seconds(10)).ok());
  ASSERT_TRUE(returns.WaitFor(1));
  EXPECT_EQ(rig.Sum(1), expected);
}

TEST_P(PushInPlaceTest, ANewAttemptGivesBackWhatWaitsNowAndWhatIsPostedLater) {
  RigOptions options = Options();
  options.slots = 1;
  ClientRig rig(options);
  Gradients gradients(rig);
  Returns returns;
  auto client = *rig.NewClient({.push_in_place = true});
  rig.OpenAttempt(1, 1);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  rig.HoldAcknowledgements(true);
  std::vector<int64_t> expected;
  for (int unit = 0; unit < rig.units(); ++unit) {
    std::vector<int64_t> dropped;
    std::ranges::copy(gradients.Make(unit, 1, unit == 2 ? expected : dropped),
                      gradients.of(unit).begin());
    ASSERT_TRUE(client->PushInPlace(unit, gradients.of(unit), {}, &returns).ok());
  }
  while (client->statistics().transports[0].push_bytes == 0) {  // until the first are posted
    absl::SleepFor(absl::Milliseconds(1));
  }
  ASSERT_TRUE(client->BeginStep(1, 2, 5).ok());
  ASSERT_TRUE(returns.WaitForUnit(rig.units() - 1)) << "nothing of the last was posted";
  EXPECT_LT(returns.units().size(), static_cast<size_t>(rig.units())) << "servers read some";
  rig.OpenAttempt(1, 2);
  rig.HoldAcknowledgements(false);
  ASSERT_TRUE(returns.WaitFor(static_cast<size_t>(rig.units())));
  ASSERT_TRUE(client->PushInPlace(2, gradients.of(2), {}, &returns).ok());
  ASSERT_TRUE(client->Finish(absl::Seconds(10)).ok());
  EXPECT_EQ(rig.Sum(2), expected);
  ASSERT_TRUE(returns.WaitFor(static_cast<size_t>(rig.units()) + 1));
  EXPECT_EQ(returns.units().size(), static_cast<size_t>(rig.units()) + 1);
}

TEST_P(PushInPlaceTest, BrokenConnectionsCountNothingTwice) {
  ClientRig rig(Options());
  Gradients gradients(rig);
  Returns returns;
  auto client = *rig.NewClient({.push_in_place = true, .reconnect_delay = absl::Milliseconds(1)});
  size_t pushed = 0;
  for (int64_t attempt = 1; attempt <= 5; ++attempt) {
    rig.OpenAttempt(1, attempt);
    ASSERT_TRUE(client->BeginStep(1, attempt, 5).ok());
    std::vector<std::vector<int64_t>> expected(static_cast<size_t>(rig.units()));
    for (int round = 0; round < 6; ++round) {
      ASSERT_TRUE(returns.WaitFor(pushed)) << "before memory is filled again";
      for (int unit = 0; unit < rig.units(); ++unit) {
        std::ranges::copy(gradients.Make(unit, round, expected[static_cast<size_t>(unit)]),
                          gradients.of(unit).begin());
        ASSERT_TRUE(
            client->PushInPlace(unit, gradients.of(unit), {.key = round + 1}, &returns).ok());
        ++pushed;
      }
      rig.server(round % 3).BreakConnections();
    }
    const auto counts = client->Finish(absl::Seconds(10));
    ASSERT_TRUE(counts.ok()) << counts.status();
    SCOPED_TRACE(attempt);
    ExpectSums(rig, expected);
  }
  EXPECT_GT(client->statistics().reconnects, 0);
  EXPECT_TRUE(returns.WaitFor(pushed));
  EXPECT_EQ(returns.units().size(), pushed);
}

INSTANTIATE_TEST_SUITE_P(Transports, PushInPlaceTest, ::testing::ValuesIn(TransportsHere()),
                         [](const auto& info) { return info.param; });

// GPU memory that faults on access by the CPU, so a copy through the host would crash.
TEST(PushInPlaceGpu, GradientsLeaveTheGpuByItsCopies) {
  const auto gpu = std::make_shared<transport::GuardedGpu>(16 * kMiB);
  transport::TransportOptions transport_options;
  transport_options.gpu_memory = gpu;
  ClientRig rig({}, *transport::CreateTransport("shm", transport_options));
  Gradients gradients(rig, [&](int64_t) -> absl::StatusOr<std::shared_ptr<std::byte>> {
    return std::shared_ptr<std::byte>(gpu, gpu->memory().data());
  });
  Returns returns;
  auto client = *rig.NewClient({.push_in_place = true});
  rig.OpenAttempt(1, 1);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  std::vector<int64_t> expected;
  const std::vector<std::byte> bytes = gradients.Make(1, 0, expected);
  std::ranges::copy(bytes,
                    gpu->contents().begin() + (gradients.of(1).data() - gpu->memory().data()));
  ASSERT_TRUE(client->PushInPlace(1, gradients.of(1), {}, &returns).ok());
  ASSERT_TRUE(client->Finish(absl::Seconds(10)).ok());
  EXPECT_EQ(rig.Sum(1), expected);
  EXPECT_GE(gpu->copies(), static_cast<int64_t>(rig.layout.unit(1).partitions.size()));
  client.reset();
}

}  // namespace
}  // namespace shoal::client
