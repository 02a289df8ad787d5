// The sink between device memory and the service: same gradients and pushes as on the host,
// whatever is late, fails or is cancelled; through pinned memory, and directly from the device's.
#include "worker/exchange/device_sink.h"

#include <deque>
#include <functional>
#include <thread>

#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/exchange/testing/contributions.h"
#include "worker/exchange/testing/device_access.h"

namespace shoal::worker {
namespace {

using client::IntegerGradient;
using testing::HasSubstr;

constexpr int kMicrobatches = 3;
const std::vector<int> kContributions = {2, 1, 1, 1};

class DeviceSinkTest : public DeviceAccess {
 protected:
  // The client's threads return gradients to the sink.
  void Leave() override {
    if (sink_ != nullptr) {
      sink_->EndStep().IgnoreError();
    }
    client_.reset();
    sink_.reset();
    if (compute_ != nullptr) {  // copies read sums_, which is destroyed first
      compute_->Synchronize().IgnoreError();
    }
  }
  void MakeSink(DeviceSink::Options options) {
    client_ = *rig_.NewClient({.push_in_place = GetParam().direct});
    if (GetParam().direct) {
      options.in_place = {rig_.client_transport.get()};
    }
    options.rule.contributions = kContributions;
    options.rule.keys_per_pack = kContributions;
    sink_ = *DeviceSink::Create(options, environment());
  }
  // Alternates between adding to zeros and writing what is empty.
  absl::Status Contribute(const Contribution& contribution) {
    const auto& [unit, gradient, pack, tied] = contribution;
    by_accumulator_ = !by_accumulator_;
    UnitGradient to;
    if (by_accumulator_) {
      SHOAL_ASSIGN_OR_RETURN(to.sums, sink_->Accumulator(unit));
    } else {
      SHOAL_ASSIGN_OR_RETURN(to, sink_->Gradient(unit));
    }
    if (to.empty) {
      sums_.push_back(gradient);
      compute_->Copy(to.sums.data(), sums_.back().data(),
                     static_cast<int64_t>(to.sums.size_bytes()));
    } else {
      SHOAL_RETURN_IF_ERROR(AddOnDevice(to.sums, gradient, *compute_, sums_));
    }
    return Done(*sink_, contribution);
  }
  // Makes all contributions of a step, and their expected sums.
  absl::Status RunSink(uint64_t seed, GradientSums& expected) {
    expected.assign(kUnits, {});
    for (const Contribution& contribution :
         RandomContributions(rig_.unit_specs, kContributions, kMicrobatches, seed)) {
      AddUp(contribution, expected);
      if (absl::Status status = Contribute(contribution); !status.ok()) {
        return status;
      }
    }
    return sink_->Flush();
  }

  void ExpectSums(const GradientSums& expected) {
    for (int unit = 0; unit < kUnits; ++unit) {
      EXPECT_EQ(rig_.Sum(unit), expected[static_cast<size_t>(unit)]) << "unit " << unit;
    }
  }
  void HoldAcknowledgements(bool hold) {
    for (int server = 0; server < rig_.options.servers; ++server) {
      rig_.server(server).HoldAcknowledgements(hold);
    }
  }
  // Contributes until that fails. Meanwhile a thread runs `then` once servers have some pushes.
  absl::Status ContributeUntilItFails(const std::function<void()>& then) {
    std::thread thread([&] {
      while (client_->statistics().pushes < 2) {
        RealClock().SleepFor(absl::Milliseconds(1));
      }
      then();
    });
    absl::Status status;
    for (int i = 0; i < 1000 && status.ok(); ++i) {
      status = Contribute({1, std::vector<float>(static_cast<size_t>(CountOf(1)), 1.0F)});
    }
    thread.join();
    return status;
  }

  bool by_accumulator_ = false;          // how the last contribution was made
  std::deque<std::vector<float>> sums_;  // read by copies
  std::unique_ptr<DeviceSink> sink_;
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceSinkTest, testing::ValuesIn(AccessCases()), NameOf);

TEST_P(DeviceSinkTest, TakesContributionsInAnyOrder) {
  const std::vector<PushRule::Options> rules = {
      {.push_per_step = true}, {}, {.push_each_contribution = true}};
  for (const PushRule::Options& rule : rules) {
    MakeDevice(20);
    MakeSink({.rule = rule});
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(testing::Message() << "per step " << rule.push_per_step << ", each "
                                      << rule.push_each_contribution << ", seed " << seed);
      BeginStep();
      sink_->BeginStep({.microbatches = kMicrobatches, .packs = kMicrobatches});
      const int64_t before = client_->statistics().pushes;
      GradientSums expected;
      const absl::Status ran = RunSink(seed, expected);
      ASSERT_TRUE(ran.ok()) << ran;
      ASSERT_TRUE(client_->Finish(absl::Seconds(10)).ok());
      ASSERT_TRUE(sink_->EndStep().ok());
      int64_t pushes = 0;
      for (int unit = 0; unit < kUnits; ++unit) {
        EXPECT_EQ(rig_.Sum(unit), expected[static_cast<size_t>(unit)]) << "unit " << unit;
        const int each =
            rule.push_each_contribution ? kContributions[static_cast<size_t>(unit)] : 1;
        pushes += (rule.push_per_step ? 1 : each * kMicrobatches) *
                  static_cast<int64_t>(rig_.layout.unit(unit).partitions.size());
      }
      EXPECT_EQ(client_->statistics().pushes - before, pushes);
    }
  }
}

TEST_P(DeviceSinkTest, PushesTheRestWhenMicrobatchesAreNotKnown) {
  MakeDevice(21);
  MakeSink({.rule = {.push_per_step = true}});
  BeginStep();
  sink_->BeginStep({.packs = kMicrobatches});
  GradientSums expected;
  ASSERT_TRUE(RunSink(5, expected).ok());
  ASSERT_TRUE(sink_->PushRest().ok());
  ASSERT_TRUE(sink_->Flush().ok());
  ASSERT_TRUE(client_->Finish(absl::Seconds(10)).ok());
  ExpectSums(expected);
}

TEST_P(DeviceSinkTest, ForgetsAnAttemptThatFailed) {
  for (const bool per_step : {true, false}) {
    MakeDevice(22);
    MakeSink({.rule = {.push_per_step = per_step}});
    BeginStep();
    sink_->BeginStep({.microbatches = 2, .packs = 2});
    ASSERT_TRUE(Contribute({0, IntegerGradient(rig_.unit_specs[0], 3)}).ok());  // one of two
    ASSERT_TRUE(Contribute({1, IntegerGradient(rig_.unit_specs[1], 3)}).ok());
    ASSERT_TRUE(sink_->EndStep().ok());
    BeginStep();
    sink_->BeginStep({.microbatches = 1, .packs = 1});
    std::vector<float> ones(static_cast<size_t>(CountOf(1)), 1.0F);
    ASSERT_TRUE(Contribute({1, ones}).ok());
    ASSERT_TRUE(sink_->Flush().ok());
    ASSERT_TRUE(client_->Finish(absl::Seconds(10)).ok());
    EXPECT_THAT(rig_.Sum(1), testing::Each(1));
    EXPECT_THAT(rig_.Sum(0), testing::Each(0));
    ASSERT_TRUE(sink_->EndStep().ok());
  }
}

TEST_P(DeviceSinkTest, TellsOfACopyThatFails) {
  if (!GetParam().device.fails || GetParam().direct) {
    GTEST_SKIP() << "it does not fail, or there is no copy of the device's";
  }
  for (const int64_t copy : {1, 3}) {
    MakeDevice(23, copy);
    MakeSink({});
    BeginStep();
    sink_->BeginStep({.microbatches = kMicrobatches, .packs = kMicrobatches});
    GradientSums expected;
    EXPECT_FALSE(RunSink(1, expected).ok()) << "copy " << copy;
    sink_->EndStep().IgnoreError();
  }
}

// A refusal may be temporary: the attempt after a failed one is complete, and an attempt that
// reports success has every bit.
TEST_P(DeviceSinkTest, StartsAnewAfterAnEventThatWasRefused) {
  if (!GetParam().device.refuse_event) {
    GTEST_SKIP() << "it refuses none";
  }
  int64_t failed = 0;
  for (int64_t number = 1; number <= 40; ++number) {
    SCOPED_TRACE(testing::Message() << "event " << number);
    MakeDevice(static_cast<uint64_t>(100 + number));
    MakeSink({});
    GetParam().device.refuse_event(number);
    int64_t failures = 0;
    for (int attempt = 1; attempt <= 3; ++attempt) {
      BeginStep();
      sink_->BeginStep({.microbatches = kMicrobatches, .packs = kMicrobatches});
      GradientSums expected;
      absl::Status status = RunSink(static_cast<uint64_t>(number), expected);
      status.Update(compute_->Synchronize());  // as a worker does at a step's end
      ASSERT_TRUE(sink_->EndStep().ok());
      if (!status.ok()) {
        EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
        ++failures;
        continue;
      }
      ASSERT_TRUE(client_->Finish(absl::Seconds(10)).ok());
      ExpectSums(expected);
    }
    EXPECT_LE(failures, 1);
    failed += failures;
  }
  EXPECT_GT(failed, 10);
}

// Servers that hold all buffers never answer: a caller that waits for a buffer gets the reason.
TEST_P(DeviceSinkTest, TellsOfServersThatAreLost) {
  MakeDevice(25);
  MakeSink({.timeout = absl::Milliseconds(100)});
  BeginStep();
  HoldAcknowledgements(true);
  sink_->BeginStep({.microbatches = 1000, .packs = 1000});
  const absl::Status status = ContributeUntilItFails([&] {
    for (int server = 0; server < rig_.options.servers; ++server) {
      rig_.server(server).RefuseConnections(absl::PermissionDeniedError("gone fishing"));
      rig_.server(server).BreakConnections();
    }
  });
  EXPECT_THAT(std::string(status.message()), HasSubstr("gone fishing"));
  EXPECT_TRUE(sink_->EndStep().ok());
}

// Servers take nothing: buffers run out, and a caller that waits for one can be cancelled.
TEST_P(DeviceSinkTest, WaitingForServersItIsCancelled) {
  MakeDevice(24);
  MakeSink({});
  BeginStep();
  HoldAcknowledgements(true);
  sink_->BeginStep({.microbatches = 1000, .packs = 1000});
  const absl::Status status = ContributeUntilItFails([&] {
    RealClock().SleepFor(absl::Milliseconds(20));
    sink_->Cancel(absl::CancelledError("leaving"));
    client_->Cancel(absl::CancelledError("leaving"));
  });
  EXPECT_EQ(status, absl::CancelledError("leaving"));
  EXPECT_FALSE(sink_->EndStep().ok());
  HoldAcknowledgements(false);
}

TEST_P(DeviceSinkTest, MemoryThatDoesNotSufficeIsSaid) {
  MakeDevice(15);
  client_ = *rig_.NewClient();
  const std::unique_ptr<Device> small = MakeSmallDevice();
  const auto sink =
      DeviceSink::Create({.rule = {.contributions = kContributions}}, environment(small.get()));
  EXPECT_EQ(sink.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace shoal::worker
