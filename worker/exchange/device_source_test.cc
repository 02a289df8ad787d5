// The source between the service and device memory: same weights and fetches as on the host,
// whatever is late, fails or is cancelled; through pinned memory, and directly into the device's.
#include "worker/exchange/device_source.h"

#include <deque>

#include "core/base/random.h"
#include "core/plan/memory/memory_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/exchange/gpu_direct.h"
#include "worker/exchange/testing/device_access.h"
#include "worker/exchange/testing/fetches.h"

namespace shoal::worker {
namespace {

using testing::HasSubstr;

// The weights that the device computed with, in host memory to which it copies late.
class Seen {
 public:
  Seen() = default;
  explicit Seen(Buffer buffer) : buffer_(std::move(buffer)) {}
  float* data() const { return reinterpret_cast<float*>(buffer_.data()); }
  float operator[](size_t at) const { return data()[at]; }

 private:
  Buffer buffer_;
};

class DeviceSourceTest : public DeviceAccess {
 protected:
  explicit DeviceSourceTest(const client::RigOptions& options = {}) : DeviceAccess(options) {}
  void Leave() override {
    source_.reset();
    client_.reset();
  }
  void MakeSource(bool keep, int prefetch) {
    const bool landed = GetParam().direct;
    client_ = *rig_.NewClient(
        {.keep_for_step = keep && landed,
         .buffers_per_size = prefetch + 2,
         .view_memory = landed ? DeviceAllocator(device_.get()) : PinnedAllocator(host_.get())});
    source_ = *DeviceSource::Create(
        {.uses = {.keep_for_step = keep, .prefetch_units = prefetch, .units = kUnits},
         .units = {0, 1, 2, 3},
         .buffers_per_size = prefetch + 2,
         .landed = landed},
        environment());
  }
  // Gets and releases a unit; `seen` has its weights when the device's stream is done.
  absl::Status Use(int unit, Seen& seen) {
    const absl::StatusOr<WeightsView> view = source_->Get(unit);
    if (!view.ok()) {
      return view.status();
    }
    absl::StatusOr<Buffer> memory = host_->Allocate(view->count * 4);
    if (memory.ok()) {  // fails on a lost GPU
      seen = Seen(*std::move(memory));
      compute_->Copy(seen.data(), view->data, view->count * 4);
    }
    source_->Release(unit);
    return memory.status();
  }

  std::unique_ptr<DeviceSource> source_;
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceSourceTest, testing::ValuesIn(AccessCases()), NameOf);

TEST_P(DeviceSourceTest, FetchesAlongAnyOrder) {
  Random random(3);
  for (const bool keep : {false, true}) {
    for (const int prefetch : {0, 1, 3, 8}) {
      MakeDevice(static_cast<uint64_t>(prefetch) + 1);
      MakeSource(keep, prefetch);
      for (const size_t length : {0, 1, 7, 40}) {
        SCOPED_TRACE(testing::Message()
                     << length << " uses, prefetch " << prefetch << ", keep " << keep);
        std::vector<int> uses(length);
        for (int& unit : uses) {
          unit = static_cast<int>(random.Below(kUnits));
        }
        BeginStep();
        const int64_t before = client_->statistics().fetches;
        source_->BeginStep(uses);
        std::vector<Seen> seen(length);
        for (size_t i = 0; i < length; ++i) {
          const absl::Status used = Use(uses[i], seen[i]);
          ASSERT_TRUE(used.ok()) << used;
        }
        ASSERT_TRUE(compute_->Synchronize().ok());
        ASSERT_TRUE(source_->EndStep().ok());
        EXPECT_EQ(client_->statistics().fetches - before, FetchesOf(uses, prefetch, keep));
        EXPECT_EQ(source_->buffer_bytes() == 0, GetParam().direct)
            << "the model computes in the client's buffers";
        for (size_t i = 0; i < length; ++i) {
          for (const int64_t at : {int64_t{0}, CountOf(uses[i]) / 2, CountOf(uses[i]) - 1}) {
            ASSERT_EQ(seen[i][static_cast<size_t>(at)],
                      client::FakeServer::Weight(step_ - 1, uses[i], at))
                << "use " << i;
          }
        }
      }
    }
  }
}

// With a rig of which a unit is frozen.
class FrozenDeviceSourceTest : public DeviceSourceTest {
 protected:
  static constexpr int kFrozen = 1;
  FrozenDeviceSourceTest() : DeviceSourceTest({.frozen = {kFrozen}}) {}
};

INSTANTIATE_TEST_SUITE_P(Devices, FrozenDeviceSourceTest, testing::ValuesIn(AccessCases()), NameOf);

TEST_P(FrozenDeviceSourceTest, StaysOnTheDeviceOverTheSteps) {
  for (const bool keep : {false, true}) {
    MakeDevice(4);
    MakeSource(keep, 2);
    const std::vector<int> uses = {0, 1, 2, 3, 2, 1};
    for (int step = 1; step <= 3; ++step) {
      BeginStep();
      const int64_t before = client_->statistics().fetches;
      source_->BeginStep(uses);
      std::vector<Seen> seen(uses.size());
      for (size_t i = 0; i < uses.size(); ++i) {
        const absl::Status used = Use(uses[i], seen[i]);
        ASSERT_TRUE(used.ok()) << used;
      }
      ASSERT_TRUE(compute_->Synchronize().ok());
      ASSERT_TRUE(source_->EndStep().ok());
      EXPECT_EQ(client_->statistics().fetches - before,
                FetchesOf(uses, 2, keep) - (keep && step > 1 ? 1 : 0));
      for (size_t i = 0; i < uses.size(); ++i) {
        const int64_t last = CountOf(uses[i]) - 1;
        ASSERT_EQ(seen[i][static_cast<size_t>(last)],
                  client::FakeServer::Weight(uses[i] == kFrozen ? 0 : step_ - 1, uses[i], last))
            << "use " << i << " of step " << step_;
      }
    }
  }
}

// A step that fails, or ends in the middle, after one that left the unit on the device.
TEST_P(FrozenDeviceSourceTest, AStepThatFailsAfterwardsLeavesNothingHeld) {
  const std::vector<int> uses = {0, kFrozen, 2, 3, 2, kFrozen};
  for (const bool fails : {false, true}) {
    MakeDevice(5);
    MakeSource(/*keep=*/true, /*prefetch=*/1);
    const auto step = [&](size_t length) {
      BeginStep();
      source_->BeginStep(uses);
      for (size_t i = 0; i < length; ++i) {
        Seen seen;
        ASSERT_TRUE(Use(uses[i], seen).ok());
        ASSERT_TRUE(compute_->Synchronize().ok());
        EXPECT_EQ(seen[1],
                  client::FakeServer::Weight(uses[i] == kFrozen ? 0 : step_ - 1, uses[i], 1));
      }
    };
    step(uses.size());
    ASSERT_TRUE(source_->EndStep().ok());
    for (size_t length = 0; length < uses.size(); ++length) {
      step(length);
      if (fails) {
        rig_.server(0).RefuseConnections(absl::UnavailableError("gone fishing"));
        rig_.server(0).BreakConnections();
        absl::Status status;
        std::deque<Seen> seen;
        for (size_t i = length; i < uses.size() && status.ok(); ++i) {
          status = Use(uses[i], seen.emplace_back());
        }
        compute_->Synchronize().IgnoreError();
      }
      ASSERT_TRUE(source_->EndStep().ok());
      rig_.server(0).RefuseConnections(absl::OkStatus());
      step(uses.size());
      ASSERT_TRUE(source_->EndStep().ok());
    }
    step(2);
    source_->Cancel(absl::CancelledError("leaving"));
    EXPECT_EQ(source_->EndStep(), absl::CancelledError("leaving"));
  }
}

TEST_P(DeviceSourceTest, GoesOnWithUsesThatAreAdded) {
  MakeDevice(9);
  MakeSource(/*keep=*/false, /*prefetch=*/2);
  const std::vector<int> order = plan::UseOrder(*plan::NamedShape("tiny"));
  BeginStep();
  source_->BeginStep(order);
  std::deque<Seen> seen;
  for (int microbatch = 0; microbatch < 3; ++microbatch) {
    for (const int unit : order) {
      ASSERT_TRUE(Use(unit, seen.emplace_back()).ok());
    }
    source_->AddUses(order);
  }
  ASSERT_TRUE(compute_->Synchronize().ok());
  ASSERT_TRUE(source_->EndStep().ok());
  EXPECT_EQ(client_->statistics().fetches, 3 * FetchesOf(order, /*prefetch=*/2, /*keep=*/false));
}

// The head holds its own unit and the embedding's, as with tied embeddings.
TEST_P(DeviceSourceTest, HoldsTwoUnitsAtOnce) {
  MakeDevice(10);
  MakeSource(/*keep=*/false, /*prefetch=*/0);
  BeginStep();
  source_->BeginStep(std::vector<int>{3, 0, 0});
  std::vector<float> seen(static_cast<size_t>(CountOf(0)));
  ASSERT_TRUE(source_->Get(3).ok());
  const void* first = source_->Get(0)->data;
  EXPECT_EQ(source_->Get(0)->data, first);
  source_->Release(0);
  compute_->Copy(seen.data(), first, CountOf(0) * 4);
  source_->Release(0);
  source_->Release(3);
  ASSERT_TRUE(compute_->Synchronize().ok());
  EXPECT_EQ(seen.back(), client::FakeServer::Weight(0, 0, CountOf(0) - 1));
}

TEST_P(DeviceSourceTest, RefusesWhatIsNotNext) {
  MakeDevice(10);
  MakeSource(/*keep=*/false, /*prefetch=*/1);
  BeginStep();
  source_->BeginStep(std::vector<int>{1, 2});
  EXPECT_THAT(std::string(source_->Get(2).status().message()),
              HasSubstr("the step's order of use has block.0 here"));
}

// Ends a step at each of its points in turn; the next one is right.
TEST_P(DeviceSourceTest, EndsAStepInTheMiddle) {
  const std::vector<int> uses = {0, 1, 2, 3, 0, 2, 1, 3};
  for (const bool keep : {false, true}) {
    MakeDevice(11);
    MakeSource(keep, /*prefetch=*/2);
    for (size_t length = 0; length < uses.size(); ++length) {
      std::deque<Seen> seen;
      BeginStep();
      source_->BeginStep(uses);
      for (size_t i = 0; i < length; ++i) {
        ASSERT_TRUE(Use(uses[i], seen.emplace_back()).ok());
      }
      ASSERT_TRUE(source_->Get(uses[length]).ok());  // without Release
      ASSERT_TRUE(source_->EndStep().ok());
      ASSERT_TRUE(compute_->Synchronize().ok());
    }
    BeginStep();
    source_->BeginStep(uses);
    for (const int unit : uses) {
      Seen seen;
      ASSERT_TRUE(Use(unit, seen).ok());
      ASSERT_TRUE(compute_->Synchronize().ok());
      EXPECT_EQ(seen[1], client::FakeServer::Weight(step_ - 1, unit, 1));
    }
    ASSERT_TRUE(source_->EndStep().ok());
  }
}

TEST_P(DeviceSourceTest, TellsOfACopyThatFails) {
  if (!GetParam().device.fails || GetParam().direct) {
    GTEST_SKIP() << "it does not fail, or there is no copy of the device's";
  }
  for (const int64_t copy : {1, 2, 5}) {
    MakeDevice(12, copy);
    MakeSource(/*keep=*/false, /*prefetch=*/1);
    BeginStep();
    const std::vector<int> uses = {0, 1, 2, 3, 2, 1, 0, 1, 2, 3};
    source_->BeginStep(uses);
    absl::Status status;
    std::deque<Seen> seen;
    for (size_t i = 0; i < uses.size() && status.ok(); ++i) {
      status = Use(uses[i], seen.emplace_back());
    }
    if (status.ok()) {
      status = compute_->Synchronize();  // waits for the failed copy
    }
    EXPECT_FALSE(status.ok()) << "copy " << copy;
    source_->EndStep().IgnoreError();
    compute_->Synchronize().IgnoreError();
  }
}

// A refusal may be temporary: the attempt after a failed one is complete, and an attempt that
// reports success has every weight.
TEST_P(DeviceSourceTest, StartsAnewAfterAnEventThatWasRefused) {
  if (!GetParam().device.refuse_event) {
    GTEST_SKIP() << "it refuses none";
  }
  const std::vector<int> uses = {0, 1, 2, 3, 2, 1, 0, 1, 2, 3};
  int64_t failed = 0;
  for (int64_t number = 1; number <= 40; ++number) {
    SCOPED_TRACE(testing::Message() << "event " << number);
    MakeDevice(static_cast<uint64_t>(100 + number));
    MakeSource(/*keep=*/false, /*prefetch=*/1);
    GetParam().device.refuse_event(number);
    int64_t failures = 0;
    for (int attempt = 1; attempt <= 3; ++attempt) {
      BeginStep();
      source_->BeginStep(uses);
      absl::Status status;
      std::deque<Seen> seen;
      for (size_t i = 0; i < uses.size() && status.ok(); ++i) {
        status = Use(uses[i], seen.emplace_back());
      }
      status.Update(compute_->Synchronize());  // as a worker does at a step's end
      ASSERT_TRUE(source_->EndStep().ok());
      if (!status.ok()) {
        EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
        ++failures;
        continue;
      }
      for (size_t i = 0; i < uses.size(); ++i) {
        EXPECT_EQ(seen[i][1], client::FakeServer::Weight(step_ - 1, uses[i], 1)) << "use " << i;
      }
    }
    EXPECT_LE(failures, 1);
    failed += failures;
  }
  EXPECT_GT(failed, 10);
}

TEST_P(DeviceSourceTest, TellsOfAClientThatFails) {
  MakeDevice(13);
  MakeSource(/*keep=*/false, /*prefetch=*/1);
  BeginStep();
  rig_.server(0).RefuseConnections(absl::UnavailableError("gone fishing"));
  rig_.server(0).BreakConnections();
  source_->BeginStep(std::vector<int>{0, 1, 2, 3, 0, 1});
  absl::Status status;
  std::deque<Seen> seen;
  for (const int unit : {0, 1, 2, 3, 0, 1}) {
    if (status.ok()) {
      status = Use(unit, seen.emplace_back());
    }
  }
  EXPECT_THAT(std::string(status.message()), HasSubstr("gone fishing"));
  ASSERT_TRUE(source_->EndStep().ok());
  ASSERT_TRUE(compute_->Synchronize().ok());
  rig_.server(0).RefuseConnections(absl::OkStatus());
  BeginStep();
  source_->BeginStep(std::vector<int>{2});
  EXPECT_TRUE(Use(2, seen.emplace_back()).ok());
  EXPECT_TRUE(compute_->Synchronize().ok());
}

TEST_P(DeviceSourceTest, NothingWaitsOnceCancelled) {
  MakeDevice(14);
  MakeSource(/*keep=*/false, /*prefetch=*/1);
  BeginStep();
  source_->BeginStep(std::vector<int>{0, 1});
  source_->Cancel(absl::CancelledError("leaving"));
  client_->Cancel(absl::CancelledError("leaving"));
  EXPECT_EQ(source_->Get(0).status(), absl::CancelledError("leaving"));
  EXPECT_EQ(source_->EndStep(), absl::CancelledError("leaving"));
}

TEST_P(DeviceSourceTest, MemoryThatDoesNotSufficeIsSaid) {
  MakeDevice(15);
  client_ = *rig_.NewClient();
  const std::unique_ptr<Device> small = MakeSmallDevice();
  const auto source = DeviceSource::Create({.uses = {.units = kUnits}, .units = {0, 1, 2, 3}},
                                           environment(small.get()));
  EXPECT_EQ(source.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace shoal::worker
