// The laws of on-demand communication, with emulated devices: real coordinator, servers, planner
// and messages, and workers that take the time a cost model gives. Times here are a device's,
// waited for on the clock; bounds leave room for a busy machine, and the middle one of several
// steps counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>

#include "core/base/time_kind.h"
#include "core/data/token_file.h"
#include "core/model/huggingface/hf_model.h"
#include "core/plan/memory/memory_plan.h"
#include "core/plan/step/emulation.h"
#include "fmt/format.h"
#include "tests/in_process/cluster.h"

namespace shoal::testing {
namespace {

using plan::Synchronization;
using ::testing::HasSubstr;

// Tokens whose cost is `units` times that of kShort.
constexpr int64_t kShort = 2000;

class EmulatedTest : public ::testing::Test {
 protected:
  EmulatedTest() {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    EXPECT_TRUE(formats::InitHfModel(folder_ / "model", spec_, /*seed=*/3, {}).ok());
    job_.model = folder_ / "model";
    job_.data.train = folder_ / "tokens";
    job_.data.max_sequence_tokens = 1 << 16;
    job_.data.microbatch_tokens = 1 << 16;
    job_.data.shuffle = false;
    job_.plan.assignment = plan::Assignment::kNative;
    job_.train.compute = plan::ComputeType::kFp32;
    job_.train.residency = plan::Residency::kLayer;
    job_.train.push = plan::PushPolicy::kMicrobatch;
    job_.service.wire_type_auto = false;
    job_.checkpoint.directory = folder_ / "checkpoints";
    job_.checkpoint.export_huggingface = false;
    job_.emulate.shape = "1.5b";
    job_.emulate.time_scale = 1;
    SetShortSeconds(0.04);
  }
  ~EmulatedTest() override { std::filesystem::remove_all(folder_); }

  plan::ModelSpec Spec() const { return spec_; }
  // Real seconds of a microbatch of one sample of kShort tokens on a device of speed 1.
  void SetShortSeconds(double seconds) {
    const double flops = plan::FlopCost(*plan::NamedShape("1.5b")).Sequence(kShort);
    job_.emulate.device_flops = flops / seconds;
    short_seconds_ = seconds;
  }
  // The length whose microbatch takes `times` as long as one of kShort.
  static int64_t LengthOf(double times) {
    const plan::CostModel cost = plan::FlopCost(*plan::NamedShape("1.5b"));
    const double wanted = times * cost.Sequence(kShort);
    int64_t length = 1;
    while (cost.Sequence(length) < wanted) {
      ++length;
    }
    return length;
  }
  // The samples in the order in which steps take them: one pass is one step.
  void WriteSamples(const std::vector<int64_t>& lengths) {
    auto writer = formats::TokenFileWriter::Create(job_.data.train, spec_.vocabulary, 7);
    ASSERT_TRUE(writer.ok());
    for (const int64_t length : lengths) {
      const std::vector<int32_t> tokens(static_cast<size_t>(length), 1);
      std::vector<int32_t> labels = tokens;
      labels.back() = formats::kIgnoredLabel;
      const absl::Status added = (*writer)->Add(tokens, labels);
      ASSERT_TRUE(added.ok()) << added;
    }
    ASSERT_TRUE((*writer)->Finish().ok());
    job_.train.minibatch_samples = static_cast<int64_t>(lengths.size());
  }

  ClusterRun Run(const ClusterOptions& options) {
    std::filesystem::remove_all(job_.checkpoint.directory);
    auto run = Train(job_, job_.data.train, options);
    EXPECT_TRUE(run.ok()) << run.status();
    if (!run.ok()) {
      return {};
    }
    EXPECT_TRUE(run->end.has_done()) << run->end.DebugString();
    const double norm = std::sqrt(static_cast<double>(plan::ParameterCount(spec_)));
    for (const proto::StepEvent& step : run->steps) {
      EXPECT_TRUE(step.emulated());
      // Each element of the gradient is 1: every sample counted, once.
      EXPECT_NEAR(step.grad_norm(), norm, 1e-3 * norm);
    }
    return *std::move(run);
  }
  // In units of kShort's time; without the first step, which connects.
  double Middle(const ClusterRun& run) const {
    std::vector<double> seconds;
    for (size_t i = 1; i < run.steps.size(); ++i) {
      seconds.push_back(run.steps[i].step_seconds());
    }
    std::ranges::sort(seconds);
    return seconds.empty() ? 0 : seconds[seconds.size() / 2] / short_seconds_;
  }

  const plan::ModelSpec spec_ = *plan::NamedShape("tiny");
  std::filesystem::path folder_;
  plan::Job job_;
  double short_seconds_ = 0;
};

// Device d is three times slower in microbatch d alone. Who waits at every layer waits for the slow
// one in every microbatch: M k; who waits at the end of the step: M - 1 + k.
TEST_F(EmulatedTest, RotatingStraggler) {
  constexpr int kDevices = 8;
  std::vector<int64_t> lengths;
  for (int microbatch = 0; microbatch < kDevices; ++microbatch) {
    for (int device = 0; device < kDevices; ++device) {
      lengths.push_back(device == microbatch ? LengthOf(3) : kShort);
    }
  }
  WriteSamples(lengths);
  job_.train.steps = 4;
  job_.train.prefetch_units = 0;
  const double on_demand = Middle(Run({.servers = 2, .workers = kDevices}));
  EXPECT_NEAR(on_demand, kDevices - 1 + 3, 0.1 * (kDevices - 1 + 3));
  job_.train.synchronization = Synchronization::kLayer;
  const double layers = Middle(Run({.servers = 2, .workers = kDevices}));
  EXPECT_NEAR(layers, kDevices * 3, 0.1 * kDevices * 3);
}

TEST_F(EmulatedTest, OneSampleEachAndUniformLengthsAreAlike) {
  job_.train.steps = 6;
  SetShortSeconds(0.1);
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{kShort, LengthOf(4), LengthOf(2), kShort},
        std::vector<int64_t>(12, kShort)}) {
    WriteSamples(lengths);
    job_.train.synchronization = Synchronization::kStep;
    const double on_demand = Middle(Run({.servers = 1, .workers = 4}));
    job_.train.synchronization = Synchronization::kLayer;
    const double layers = Middle(Run({.servers = 1, .workers = 4}));
    EXPECT_NEAR(on_demand / layers, 1, 0.08);
  }
}

double Percentile99(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() * 99 / 100];
}

// While one worker computes for half a second longer, the others get and push as before; all that
// they wait for is the end of the step.
TEST_F(EmulatedTest, AStallIsFeltAtTheStepsEndAlone) {
  constexpr int kDevices = 4;
  std::vector<int64_t> lengths(kDevices * 6, kShort);
  WriteSamples(lengths);
  job_.train.steps = 3;
  const auto waits = [&](const ClusterRun& run, double& step_wait) {
    std::vector<double> seconds;
    for (const proto::TraceEvent& event : run.traces) {
      for (const proto::Span& span : event.spans()) {
        const auto kind = static_cast<TimeKind>(span.kind());
        const double length = 1e-9 * static_cast<double>(span.nanoseconds());
        if (event.worker() != 0 && (kind == TimeKind::kGetWait || kind == TimeKind::kPushWait)) {
          seconds.push_back(length);
        } else if (event.worker() != 0 && event.step() > 1 && kind == TimeKind::kStepWait) {
          step_wait += length;
        }
      }
    }
    return Percentile99(seconds);
  };
  double calm_step_wait = 0;
  double stalled_step_wait = 0;
  const double calm =
      waits(Run({.servers = 2, .workers = kDevices, .trace = true}), calm_step_wait);
  lengths[kDevices * 2] = LengthOf(1 + 0.5 / short_seconds_);  // worker 0's third
  WriteSamples(lengths);
  const double stalled =
      waits(Run({.servers = 2, .workers = kDevices, .trace = true}), stalled_step_wait);
  EXPECT_LT(stalled, calm + 0.005);
  // Three others, and the waits that end in steps 2 and 3.
  EXPECT_NEAR(stalled_step_wait - calm_step_wait, 3 * 2 * 0.5, 0.3);
}

// Of both kinds of synchronisation, how often a worker waits for all others.
TEST_F(EmulatedTest, BarriersAreAsManyAsPromised) {
  constexpr int kDevices = 3;
  constexpr int kMicrobatches = 4;
  constexpr int kSteps = 2;
  SetShortSeconds(0.005);
  WriteSamples(std::vector<int64_t>(kDevices * kMicrobatches, kShort));
  job_.train.steps = kSteps;
  const ClusterRun on_demand = Run({.servers = 1, .workers = kDevices});
  EXPECT_THAT(on_demand.worker_metrics, HasSubstr("shoal_client_barriers_total 0"));
  job_.train.synchronization = Synchronization::kLayer;
  const ClusterRun layers = Run({.servers = 1, .workers = kDevices});
  const size_t each = plan::UseOrder(spec_).size() + plan::BuildUnits(spec_).size();
  EXPECT_THAT(layers.worker_metrics,
              HasSubstr(fmt::format("shoal_client_barriers_total {}",
                                    kSteps * kMicrobatches * static_cast<int>(each))));
}

// A worker that has fewer samples than others arrives at all barriers with nothing to send.
TEST_F(EmulatedTest, EmptyMicrobatchesKeepBarriersInStep) {
  SetShortSeconds(0.01);
  WriteSamples({kShort, kShort, kShort, kShort, kShort});
  job_.train.steps = 2;
  job_.train.synchronization = Synchronization::kLayer;
  const ClusterRun run = Run({.servers = 2, .workers = 3});
  ASSERT_EQ(run.steps.size(), 2U);
}

// Pushes that take up to 5 ms each to be acknowledged do not hold up compute, with credits for
// several; with one credit (stop and wait) they may.
TEST_F(EmulatedTest, PushesAreBehindCompute) {
  SetShortSeconds(0.2);
  WriteSamples(std::vector<int64_t>(8, kShort));
  job_.train.steps = 4;
  job_.service.push_slots = 4;
  const double quick = Middle(Run({.servers = 1, .workers = 2}));
  const transport::FaultOptions slow = {
      .seed = 3, .delay_probability = 1, .max_delay = absl::Milliseconds(5)};
  const double delayed = Middle(Run({.servers = 1, .workers = 2, .faults = slow}));
  EXPECT_LT(delayed, 1.1 * quick);
}

// A device at half speed that no plan knows of: whoever draws keeps all busy.
TEST_F(EmulatedTest, DrawingFindsTheSlowDevice) {
  SetShortSeconds(0.02);
  job_.emulate.speeds = {1, 0.5, 1};
  WriteSamples(std::vector<int64_t>(60, kShort));
  job_.data.microbatch_tokens = kShort;
  job_.data.max_sequence_tokens = kShort;
  job_.train.steps = 4;
  job_.plan.assignment = plan::Assignment::kLbMini;
  const double planned = Middle(Run({.servers = 1, .workers = 3}));
  job_.plan.assignment = plan::Assignment::kDynamic;
  const double drawn = Middle(Run({.servers = 1, .workers = 3}));
  EXPECT_NEAR(planned, 40, 4);        // a third of the work at half speed
  EXPECT_NEAR(drawn, 24, 0.12 * 24);  // all of it over the sum of speeds
}

}  // namespace
}  // namespace shoal::testing
