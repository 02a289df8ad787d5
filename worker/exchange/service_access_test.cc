// Source and sink between a model and the service, with units and microbatches in any order.
#include <algorithm>
#include <functional>
#include <numeric>

#include "client/testing/client_rig.h"
#include "core/base/bytes.h"
#include "core/base/random.h"
#include "core/plan/memory/memory_plan.h"
#include "core/plan/schedule/stage_units.h"
#include "core/transport/data_layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/exchange/service_sink.h"
#include "worker/exchange/service_source.h"
#include "worker/exchange/testing/contributions.h"
#include "worker/exchange/testing/fetches.h"

namespace shoal::worker {
namespace {

using client::ClientRig;

class ServiceAccess : public testing::Test {
 protected:
  // A new step each time.
  void BeginStep(client::ParameterClient& client) {
    rig_.Publish(step_);
    ++step_;
    rig_.OpenAttempt(step_, 1);
    ASSERT_TRUE(client.BeginStep(step_, 1, rig_.options.generation).ok());
  }
  int64_t PartitionsOf(int unit) const {
    return static_cast<int64_t>(rig_.layout.unit(unit).partitions.size());
  }

  ClientRig rig_{{}};
  TimeKindClock time_kinds_{RealClock()};
  LayerBarriers barriers_{false, nullptr, &time_kinds_};
  int64_t step_ = 0;
};

constexpr int kMicrobatches = 5;

struct SinkCase {
  bool push_per_step = false;
  bool push_each_contribution = false;
};

class Sink : public ServiceAccess, public testing::WithParamInterface<SinkCase> {};

INSTANTIATE_TEST_SUITE_P(Policies, Sink,
                         testing::Values(SinkCase{.push_per_step = true}, SinkCase{},
                                         SinkCase{.push_each_contribution = true}));

// Contributions of all units and microbatches in random order: each arrives once, and each unit is
// pushed as often as the policy says, however far other units are.
TEST_P(Sink, TakesContributionsInAnyOrder) {
  const auto client = *rig_.NewClient();
  ServiceSink::Options options{.rule = {.push_per_step = GetParam().push_per_step,
                                        .push_each_contribution = GetParam().push_each_contribution,
                                        .contributions = {2, 1, 1, 1},
                                        .keys_per_pack = {2, 1, 1, 1}}};
  std::vector<int> microbatches_done(4, 0);
  options.rule.on_done = [&](int unit) { ++microbatches_done[static_cast<size_t>(unit)]; };
  const auto sink =
      *ServiceSink::Create(options, rig_.unit_specs, client.get(), &barriers_, &time_kinds_);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    std::ranges::fill(microbatches_done, 0);
    BeginStep(*client);
    sink->BeginStep({.microbatches = kMicrobatches, .packs = kMicrobatches});
    const int64_t pushed_before = client->statistics().pushes;
    std::vector<int> done(4, 0);
    GradientSums expected(4);
    for (const Contribution& contribution :
         RandomContributions(rig_.unit_specs, options.rule.contributions, kMicrobatches, seed)) {
      AddUp(contribution, expected);
      const auto accumulator = sink->Accumulator(contribution.unit);
      ASSERT_TRUE(accumulator.ok()) << accumulator.status();
      std::ranges::transform(*accumulator, contribution.gradient, accumulator->begin(),
                             std::plus<float>());
      ASSERT_TRUE(Done(*sink, contribution).ok());
      ++done[static_cast<size_t>(contribution.unit)];
      int64_t pushes = 0;
      for (size_t u = 0; u < 4; ++u) {
        const int contributions = options.rule.contributions[u];
        const int times = options.rule.push_per_step ? done[u] / (kMicrobatches * contributions)
                          : options.rule.push_each_contribution ? done[u]
                                                                : done[u] / contributions;
        pushes += times * PartitionsOf(static_cast<int>(u));
        EXPECT_EQ(microbatches_done[u], done[u] / contributions);
      }
      ASSERT_EQ(client->statistics().pushes - pushed_before, pushes);
    }
    ASSERT_TRUE(client->Finish(absl::Seconds(10)).ok());
    for (int unit = 0; unit < 4; ++unit) {
      EXPECT_EQ(rig_.Sum(unit), expected[static_cast<size_t>(unit)]) << "unit " << unit;
    }
  }
}

TEST_F(ServiceAccess, SinkTellsOfAUnitThatWantsNoGradientToo) {
  const auto client = *rig_.NewClient();
  std::vector<int> done;
  const auto sink =
      *ServiceSink::Create({.rule = {.contributions = {0, 1, 0, 1},
                                     .keys_per_pack = {0, 1, 0, 1},
                                     .on_done = [&done](int unit) { done.push_back(unit); }}},
                           rig_.unit_specs, client.get(), &barriers_, &time_kinds_);
  BeginStep(*client);
  sink->BeginStep({.microbatches = 1, .packs = 1});
  for (const int unit : {3, 2, 1, 0}) {
    ASSERT_EQ(sink->Wants(unit), unit % 2 == 1);
    if (sink->Wants(unit)) {
      ASSERT_TRUE(sink->Accumulator(unit).ok());
    }
    ASSERT_TRUE(sink->Done(unit).ok());
  }
  EXPECT_EQ(done, (std::vector<int>{3, 2, 1, 0}));
  ASSERT_TRUE(client->Finish(absl::Seconds(10)).ok());
  EXPECT_EQ(client->statistics().pushes, PartitionsOf(1) + PartitionsOf(3));
}

TEST_F(ServiceAccess, SinkForgetsAnAttemptThatFailed) {
  const auto client = *rig_.NewClient();
  const auto sink = *ServiceSink::Create({.rule = {.push_per_step = true,
                                                   .contributions = {1, 1, 1, 1},
                                                   .keys_per_pack = {1, 1, 1, 1}}},
                                         rig_.unit_specs, client.get(), &barriers_, &time_kinds_);
  BeginStep(*client);
  sink->BeginStep({.microbatches = 2, .packs = 2});
  const std::span<float> dropped = *sink->Accumulator(1);
  std::ranges::fill(dropped, 3.0F);
  ASSERT_TRUE(sink->Done(1).ok());
  BeginStep(*client);
  sink->BeginStep({.microbatches = 2, .packs = 2});
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    (*sink->Accumulator(1))[5] += 1;
    ASSERT_TRUE(sink->Done(1).ok());
  }
  ASSERT_TRUE(client->Finish(absl::Seconds(10)).ok());
  const std::vector<int64_t> sum = rig_.Sum(1);
  EXPECT_EQ(sum[5], 2);
  EXPECT_EQ(std::accumulate(sum.begin(), sum.end(), int64_t{0}), 2);
}

TEST_F(ServiceAccess, SinkHasBuffersForItsOwnUnitsAlone) {
  const auto client = *rig_.NewClient();
  const auto sink =
      *ServiceSink::Create({.rule = {.push_per_step = true, .contributions = {1, 0, 1, 0}}},
                           rig_.unit_specs, client.get(), &barriers_, &time_kinds_);
  const auto buffer = [&](int unit) {
    return RoundUp(rig_.unit_specs[static_cast<size_t>(unit)].count * 4,
                   transport::kBufferAlignment);
  };
  EXPECT_EQ(sink->buffer_bytes(), buffer(0) + buffer(2));
}

TEST_F(ServiceAccess, SourceFetchesAlongAnyOrder) {
  Random random(3);
  for (const bool keep : {false, true}) {
    for (const int prefetch : {0, 1, 3, 8}) {
      const auto client =
          *rig_.NewClient({.keep_for_step = keep, .buffers_per_size = prefetch + 2});
      ServiceSource source(
          {.uses = {.keep_for_step = keep, .prefetch_units = prefetch, .units = 4}}, client.get(),
          &barriers_, &time_kinds_);
      for (const size_t length : {0, 1, 7, 40}) {
        SCOPED_TRACE(testing::Message()
                     << length << " uses, prefetch " << prefetch << ", keep " << keep);
        std::vector<int> uses(length);
        for (int& unit : uses) {
          unit = static_cast<int>(random.Below(4));
        }
        BeginStep(*client);
        const int64_t before = client->statistics().fetches;
        source.BeginStep(uses);
        for (const int unit : uses) {
          const auto view = source.Get(unit);
          ASSERT_TRUE(view.ok()) << view.status();
          EXPECT_EQ(static_cast<const float*>(view->data)[0],
                    client::FakeServer::Weight(step_ - 1, unit, 0));
          source.Release(unit);
        }
        EXPECT_EQ(client->statistics().fetches - before, FetchesOf(uses, prefetch, keep));
      }
    }
  }
}

// Drawing a microbatch during a step: its uses are prefetched from then on.
TEST_F(ServiceAccess, SourceGoesOnWithUsesThatAreAdded) {
  const auto client = *rig_.NewClient();
  ServiceSource source({.uses = {.prefetch_units = 2, .units = 4}}, client.get(), &barriers_,
                       &time_kinds_);
  const std::vector<int> order = plan::UseOrder(*plan::NamedShape("tiny"));
  BeginStep(*client);
  source.BeginStep(order);
  for (int microbatch = 0; microbatch < 3; ++microbatch) {
    for (const int unit : order) {
      ASSERT_TRUE(source.Get(unit).ok());
      source.Release(unit);
    }
    source.AddUses(order);
    EXPECT_EQ(client->statistics().fetches,
              (microbatch + 1) * FetchesOf(order, /*prefetch=*/2, /*keep=*/false));
  }
}

}  // namespace
}  // namespace shoal::worker
