// Source and sink between a device's memory and the service: the same weights, gradients, fetches
// and pushes as on the host, whatever comes late, fails or is given up; through pinned memory, and
// directly into and out of the device's.
#include <numeric>
#include <thread>

#include "client/testing/client_rig.h"
#include "common/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/memory_plan.h"
#include "transport/registry.h"
#include "worker/trainer/client_memory.h"
#include "worker/trainer/device_sink.h"
#include "worker/trainer/device_source.h"
#include "worker/trainer/testing_devices.h"
#include "worker/trainer/testing_fetches.h"

namespace shoal::worker {
namespace {

using client::ClientRig;
using client::IntegerGradient;
using testing::HasSubstr;

constexpr int kUnits = 4;
constexpr int kMicrobatches = 3;
const std::vector<int> kContributions = {2, 1, 1, 1};

struct AccessCase {
  DeviceCase device;
  bool direct = false;
};

std::vector<AccessCase> AccessCases() {
  std::vector<AccessCase> cases;
  for (const DeviceCase& device : DeviceCases()) {
    cases.push_back({.device = device, .direct = false});
    if (device.reached) {
      cases.push_back({.device = device, .direct = true});
    }
  }
  return cases;
}

std::unique_ptr<transport::Transport> MakeShm(const DeviceCase& device) {
  transport::TransportOptions options;
  options.gpu_memory = device.reach;
  return *transport::CreateTransport("shm", options);
}

// What the device computes with, in memory of the host that it copies to late.
class Seen {
 public:
  Seen() = default;
  explicit Seen(Buffer buffer) : buffer_(std::move(buffer)) {}
  float* data() const { return reinterpret_cast<float*>(buffer_.data()); }
  float operator[](size_t at) const { return data()[at]; }

 private:
  Buffer buffer_;
};

class DeviceAccess : public testing::TestWithParam<AccessCase> {
 protected:
  void MakeDevice(uint64_t seed, int64_t fail_at_copy = 0) {
    Leave();
    host_.reset();
    compute_.reset();
    device_ = GetParam().device.make(seed, fail_at_copy, 0);
    compute_ = device_->NewStream();
    host_ = device_->NewHostMemory(0);
  }
  // The client's threads give gradients back to the sink.
  void Leave() {
    source_.reset();
    if (sink_ != nullptr) {
      sink_->EndStep().IgnoreError();
    }
    client_.reset();
    sink_.reset();
  }
  void TearDown() override { Leave(); }
  void MakeSource(bool keep, int prefetch) {
    const bool landed = GetParam().direct;
    client_ = *rig_.NewClient(
        {.keep_for_step = keep && landed,
         .frames_per_size = prefetch + 2,
         .view_memory = landed ? DeviceAllocator(device_.get()) : PinnedAllocator(host_.get())});
    source_ = *DeviceSource::Create(
        {.uses = {.keep_for_step = keep, .prefetch_units = prefetch, .units = kUnits},
         .units = {0, 1, 2, 3},
         .frames_per_size = prefetch + 2,
         .landed = landed},
        rig_.unit_specs, device_.get(), compute_.get(), client_.get(), &meetings_, &phases_);
  }
  void MakeSink(DeviceSink::Options options) {
    client_ = *rig_.NewClient({.push_in_place = GetParam().direct});
    if (GetParam().direct) {
      options.in_place = {rig_.client_transport.get()};
    }
    options.rule.contributions = kContributions;
    sink_ = *DeviceSink::Create(options, rig_.unit_specs, device_.get(), compute_.get(),
                                host_.get(), client_.get(), &meetings_, &phases_);
  }
  // A step of its own for each.
  void BeginStep() {
    rig_.Publish(step_);
    ++step_;
    rig_.OpenAttempt(step_, 1);
    ASSERT_TRUE(client_->BeginStep(step_, 1, rig_.options.generation).ok());
  }
  int64_t CountOf(int unit) const { return rig_.unit_specs[static_cast<size_t>(unit)].count; }

  // Takes the use of a unit; what the device computes with is in `seen` when its stream is done.
  absl::Status Use(int unit, Seen& seen) {
    const absl::StatusOr<WeightsView> view = source_->Get(unit);
    if (!view.ok()) {
      return view.status();
    }
    absl::StatusOr<Buffer> memory = host_->Allocate(view->count * 4);
    if (memory.ok()) {  // not on a GPU that was lost
      seen = Seen(*std::move(memory));
      compute_->Copy(seen.data(), view->data, view->count * 4);
    }
    source_->Release(unit);
    return memory.status();
  }
  // Adds to the accumulator, on the compute stream.
  absl::Status Contribute(int unit, const std::vector<float>& gradient) {
    const absl::StatusOr<std::span<float>> accumulator = sink_->Accumulator(unit);
    if (!accumulator.ok()) {
      return accumulator.status();
    }
    std::vector<float> sum(accumulator->size());
    const auto bytes = static_cast<int64_t>(accumulator->size_bytes());
    compute_->Copy(sum.data(), accumulator->data(), bytes);
    if (absl::Status status = compute_->Synchronize(); !status.ok()) {
      return status;
    }
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += gradient[i];
    }
    sums_.push_back(std::move(sum));
    compute_->Copy(accumulator->data(), sums_.back().data(), bytes);
    return sink_->Done(unit);
  }
  // All contributions of a step in a random order, and what their sums must be.
  absl::Status RunSink(uint64_t seed, std::vector<std::vector<int64_t>>& expected) {
    std::vector<int> order;
    for (int unit = 0; unit < kUnits; ++unit) {
      order.insert(order.end(), kContributions[static_cast<size_t>(unit)] * kMicrobatches, unit);
    }
    Random random(seed);
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[random.Below(i)]);
    }
    expected.assign(kUnits, {});
    std::vector<int> done(kUnits, 0);
    for (const int unit : order) {
      const auto at = static_cast<size_t>(unit);
      const std::vector<float> gradient = IntegerGradient(rig_.unit_specs[at], ++done[at]);
      expected[at].resize(gradient.size(), 0);
      for (size_t i = 0; i < gradient.size(); ++i) {
        expected[at][i] += static_cast<int64_t>(gradient[i]);
      }
      if (absl::Status status = Contribute(unit, gradient); !status.ok()) {
        return status;
      }
    }
    return sink_->Flush();
  }

  ClientRig rig_{{}, MakeShm(GetParam().device)};
  PhaseClock phases_{RealClock()};
  LayerMeetings meetings_{false, nullptr, &phases_};
  int64_t step_ = 0;
  std::deque<std::vector<float>> sums_;  // that copies read from
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Memory> host_;
  std::unique_ptr<client::ParameterClient> client_;
  std::unique_ptr<DeviceSource> source_;
  std::unique_ptr<DeviceSink> sink_;
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceAccess, testing::ValuesIn(AccessCases()),
                         [](const auto& info) {
                           return info.param.device.name + (info.param.direct ? "Direct" : "");
                         });

TEST_P(DeviceAccess, SourceFetchesAlongAnyOrder) {
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

TEST_P(DeviceAccess, SourceGoesOnWithUsesThatAreAdded) {
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

// The head holds its own unit and the embedding's at once, as it does with tied embeddings.
TEST_P(DeviceAccess, SourceHoldsTwoUnitsAtOnce) {
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

TEST_P(DeviceAccess, SourceRefusesWhatIsNotNext) {
  MakeDevice(10);
  MakeSource(/*keep=*/false, /*prefetch=*/1);
  BeginStep();
  source_->BeginStep(std::vector<int>{1, 2});
  EXPECT_THAT(std::string(source_->Get(2).status().message()),
              HasSubstr("the step's order of use has block.0 here"));
}

// A step is given up at each of its points in turn; the next one is right.
TEST_P(DeviceAccess, SourceEndsAStepInTheMiddle) {
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
      ASSERT_TRUE(source_->Get(uses[length]).ok());  // and keeps it
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

TEST_P(DeviceAccess, SourceTellsOfACopyThatFails) {
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
      status = compute_->Synchronize();  // it waits for the copy that failed
    }
    EXPECT_FALSE(status.ok()) << "copy " << copy;
    source_->EndStep().IgnoreError();
    compute_->Synchronize().IgnoreError();
  }
}

TEST_P(DeviceAccess, SourceTellsOfAClientThatFails) {
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

TEST_P(DeviceAccess, NothingWaitsOnceCancelled) {
  MakeDevice(14);
  MakeSource(/*keep=*/false, /*prefetch=*/1);
  BeginStep();
  source_->BeginStep(std::vector<int>{0, 1});
  source_->Cancel(absl::CancelledError("leaving"));
  client_->Cancel(absl::CancelledError("leaving"));
  EXPECT_EQ(source_->Get(0).status(), absl::CancelledError("leaving"));
  EXPECT_EQ(source_->EndStep(), absl::CancelledError("leaving"));
}

TEST_P(DeviceAccess, MemoryThatDoesNotSufficeIsSaid) {
  MakeDevice(15);
  client_ = *rig_.NewClient();
  const std::unique_ptr<Device> small = GetParam().device.make(1, 0, 1000);
  const auto source =
      DeviceSource::Create({.uses = {.units = kUnits}, .units = {0, 1, 2, 3}}, rig_.unit_specs,
                           small.get(), compute_.get(), client_.get(), &meetings_, &phases_);
  EXPECT_EQ(source.status().code(), absl::StatusCode::kResourceExhausted);
  const auto sink =
      DeviceSink::Create({.rule = {.contributions = kContributions}}, rig_.unit_specs, small.get(),
                         compute_.get(), host_.get(), client_.get(), &meetings_, &phases_);
  EXPECT_EQ(sink.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_P(DeviceAccess, SinkTakesContributionsInAnyOrder) {
  const std::vector<PushRule::Options> rules = {
      {.push_per_step = true}, {}, {.push_each_contribution = true}};
  for (const PushRule::Options& rule : rules) {
    MakeDevice(20);
    MakeSink({.rule = rule});
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(testing::Message() << "per step " << rule.push_per_step << ", each "
                                      << rule.push_each_contribution << ", seed " << seed);
      BeginStep();
      sink_->BeginStep(kMicrobatches);
      const int64_t before = client_->statistics().pushes;
      std::vector<std::vector<int64_t>> expected;
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

TEST_P(DeviceAccess, SinkPushesTheRestWhenMicrobatchesAreNotKnown) {
  MakeDevice(21);
  MakeSink({.rule = {.push_per_step = true}});
  BeginStep();
  sink_->BeginStep(std::nullopt);
  std::vector<std::vector<int64_t>> expected;
  ASSERT_TRUE(RunSink(5, expected).ok());
  ASSERT_TRUE(sink_->PushRest().ok());
  ASSERT_TRUE(sink_->Flush().ok());
  ASSERT_TRUE(client_->Finish(absl::Seconds(10)).ok());
  for (int unit = 0; unit < kUnits; ++unit) {
    EXPECT_EQ(rig_.Sum(unit), expected[static_cast<size_t>(unit)]) << "unit " << unit;
  }
}

TEST_P(DeviceAccess, SinkForgetsAnAttemptThatFailed) {
  for (const bool per_step : {true, false}) {
    MakeDevice(22);
    MakeSink({.rule = {.push_per_step = per_step}});
    BeginStep();
    sink_->BeginStep(2);
    ASSERT_TRUE(Contribute(0, IntegerGradient(rig_.unit_specs[0], 3)).ok());  // one of two
    ASSERT_TRUE(Contribute(1, IntegerGradient(rig_.unit_specs[1], 3)).ok());
    ASSERT_TRUE(sink_->EndStep().ok());
    BeginStep();
    sink_->BeginStep(1);
    std::vector<float> ones(static_cast<size_t>(CountOf(1)), 1.0F);
    ASSERT_TRUE(Contribute(1, ones).ok());
    ASSERT_TRUE(sink_->Flush().ok());
    ASSERT_TRUE(client_->Finish(absl::Seconds(10)).ok());
    EXPECT_THAT(rig_.Sum(1), testing::Each(1));
    EXPECT_THAT(rig_.Sum(0), testing::Each(0));
    ASSERT_TRUE(sink_->EndStep().ok());
  }
}

TEST_P(DeviceAccess, SinkTellsOfACopyThatFails) {
  if (!GetParam().device.fails || GetParam().direct) {
    GTEST_SKIP() << "it does not fail, or there is no copy of the device's";
  }
  for (const int64_t copy : {1, 3}) {
    MakeDevice(23, copy);
    MakeSink({});
    BeginStep();
    sink_->BeginStep(kMicrobatches);
    std::vector<std::vector<int64_t>> expected;
    EXPECT_FALSE(RunSink(1, expected).ok()) << "copy " << copy;
    sink_->EndStep().IgnoreError();
  }
}

// The device's buffers are at servers that never answer: whoever waits for one is told why.
TEST_P(DeviceAccess, SinkTellsOfServersThatAreLost) {
  MakeDevice(25);
  MakeSink({.timeout = absl::Milliseconds(100)});
  BeginStep();
  for (int server = 0; server < rig_.options.servers; ++server) {
    rig_.server(server).HoldAcknowledgements(true);
  }
  sink_->BeginStep(1000);
  std::thread breaking([&] {
    while (client_->statistics().pushes < 2) {
      RealClock().SleepFor(absl::Milliseconds(1));
    }
    for (int server = 0; server < rig_.options.servers; ++server) {
      rig_.server(server).RefuseConnections(absl::PermissionDeniedError("gone fishing"));
      rig_.server(server).BreakConnections();
    }
  });
  absl::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = Contribute(1, std::vector<float>(static_cast<size_t>(CountOf(1)), 1.0F));
  }
  breaking.join();
  EXPECT_THAT(std::string(status.message()), HasSubstr("gone fishing"));
  EXPECT_TRUE(sink_->EndStep().ok());
}

// Servers that take nothing: buffers run out, and whoever waits for one can be told to leave.
TEST_P(DeviceAccess, ASinkThatWaitsForServersIsCancelled) {
  MakeDevice(24);
  MakeSink({});
  BeginStep();
  for (int server = 0; server < rig_.options.servers; ++server) {
    rig_.server(server).HoldAcknowledgements(true);
  }
  sink_->BeginStep(1000);
  std::thread canceller([&] {
    while (client_->statistics().pushes < 2) {
      RealClock().SleepFor(absl::Milliseconds(1));
    }
    RealClock().SleepFor(absl::Milliseconds(20));
    sink_->Cancel(absl::CancelledError("leaving"));
    client_->Cancel(absl::CancelledError("leaving"));
  });
  absl::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = Contribute(1, std::vector<float>(static_cast<size_t>(CountOf(1)), 1.0F));
  }
  canceller.join();
  EXPECT_EQ(status, absl::CancelledError("leaving"));
  EXPECT_FALSE(sink_->EndStep().ok());
  for (int server = 0; server < rig_.options.servers; ++server) {
    rig_.server(server).HoldAcknowledgements(false);
  }
}

}  // namespace
}  // namespace shoal::worker
