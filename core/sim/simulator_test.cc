#include "core/sim/simulator.h"

#include <array>
#include <map>

#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "core/sim/testing/clusters.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::sim {
namespace {

using plan::Assignment;
using plan::PushPolicy;
using plan::Residency;
using plan::Synchronization;
constexpr plan::WorkerPolicy kPolicies[] = {{Residency::kLayer, PushPolicy::kMicrobatch},
                                            {Residency::kLayer, PushPolicy::kStep},
                                            {Residency::kStep, PushPolicy::kMicrobatch},
                                            {Residency::kStep, PushPolicy::kStep}};

plan::ClusterSpec TwoNodes(int64_t devices_per_node = 8) {
  return {.devices = {{.count = 2 * devices_per_node}},
          .devices_per_node = devices_per_node,
          .device_link = {250e9, 1e-5},
          .node_link = {100e9, 3e-5}};
}

StepResult RunStep(const SimulatorOptions& options, Synchronization synchronization,
                   Assignment assignment, int64_t samples = 64, SpanSink* spans = nullptr) {
  const auto result =
      Simulator(options).Run(*Drawn("longalign", samples)(1), assignment, synchronization, spans);
  EXPECT_TRUE(result.ok()) << result.status();
  return *result;
}

plan::StepPlan PlanWithCounts(const std::vector<size_t>& counts) {
  plan::StepPlan plan;
  const plan::Microbatch one = {.samples = {0}, .tokens = 4096, .squared_tokens = 4096.0 * 4096};
  for (const size_t count : counts) {
    plan.workers.emplace_back(count, one);
  }
  return plan;
}

TEST(Simulator, BytesAreThoseOfPlanTraffic) {
  for (const char* shape : {"tiny", "124m", "1.3b"}) {
    for (const plan::WorkerPolicy& policy : kPolicies) {
      for (const auto& [prefetch, frozen] :
           {std::pair(0, ""), std::pair(1, ""), std::pair(2, "*.layers.[01].*"), std::pair(5, ""),
            std::pair(5, "*embed*"), std::pair(64, "*"), std::pair(64, "")}) {
        SimulatorOptions options = Options(FreeCluster(4));
        options.spec = *plan::NamedShape(shape);
        options.policy = policy;
        options.job.train.prefetch_units = prefetch;
        options.job.train.groups = {{.match = frozen, .freeze = true}};
        const std::vector<size_t> counts = {5, 1, 0, 3};
        const StepResult result =
            Simulator(options).RunPlan(PlanWithCounts(counts), Synchronization::kStep);
        int64_t get = 0;
        int64_t push = 0;
        for (const size_t count : counts) {
          const plan::StepTraffic traffic =
              plan::PlanTraffic(options.spec, options.job, policy, static_cast<int64_t>(count));
          get += traffic.get_bytes;
          push += traffic.push_bytes;
        }
        EXPECT_EQ(result.bytes.get, get) << shape << " prefetch " << prefetch << " " << frozen;
        EXPECT_EQ(result.bytes.push, push);
        EXPECT_EQ(result.microbatches, 9);
      }
    }
  }
  SimulatorOptions exact = Options(FreeCluster(1));
  exact.spec = *plan::NamedShape("tiny");
  ASSERT_TRUE(exact.spec.tied_embeddings);
  exact.policy = {plan::Residency::kLayer, plan::PushPolicy::kMicrobatch};
  exact.job.service.accumulate = plan::Accumulate::kExact;
  EXPECT_EQ(Simulator(exact).RunPlan(PlanWithCounts({2}), Synchronization::kStep).bytes.push,
            plan::PlanTraffic(exact.spec, exact.job, exact.policy, 2).push_bytes);
}

// Per device and microbatch, with every unit fetched for forward and for backward: what lies on
// other devices comes in twice, and its gradient goes out once.
TEST(Simulator, BytesBetweenNodes) {
  SimulatorOptions options = Options(TwoNodes());
  options.job.train.prefetch_units = 0;
  const plan::StepPlan plan = PlanWithCounts(std::vector<size_t>(16, 3));
  const auto bytes = [&](Synchronization synchronization) {
    return Simulator(options).RunPlan(plan, synchronization).bytes;
  };
  const StepBytes flat = bytes(Synchronization::kStep);
  const StepBytes collective = bytes(Synchronization::kLayer);
  EXPECT_EQ(flat.get, collective.get);
  EXPECT_EQ(flat.push, collective.push);
  EXPECT_DOUBLE_EQ(flat.between_nodes, static_cast<double>(flat.get + flat.push) / 2);
  EXPECT_DOUBLE_EQ(flat.between_nodes, 8 * collective.between_nodes);

  options.cluster.gathers = plan::Gathers::kNodeCached;
  const StepBytes cached = bytes(Synchronization::kStep);
  EXPECT_DOUBLE_EQ(cached.between_nodes,
                   static_cast<double>(flat.get) / 16 + static_cast<double>(flat.push) / 2);

  options.cluster.servers = 4;
  options.cluster.gathers = plan::Gathers::kFlat;
  options.cluster.server_link = {100e9, 0};
  EXPECT_DOUBLE_EQ(bytes(Synchronization::kStep).between_nodes,
                   static_cast<double>(flat.get + flat.push));
}

class SpanLog : public SpanSink {
 public:
  void Add(const SimulatedSpan& span) override { spans_[span.worker].push_back(span); }
  const std::map<int64_t, std::vector<SimulatedSpan>>& spans() const { return spans_; }

 private:
  std::map<int64_t, std::vector<SimulatedSpan>> spans_;
};

TEST(Simulator, SpansFillTheStepAndAddUpToItsTimes) {
  SimulatorOptions options = Options(TwoNodes(2));
  options.cluster.node_link.bytes_per_second = 5e9;  // so that there are waits of every kind
  options.cluster.step_seconds = 0.5;
  for (const plan::WorkerPolicy& policy : kPolicies) {
    options.policy = policy;
    for (const Choice& choice : AllChoices()) {
      SpanLog log;
      const StepResult result =
          RunStep(options, choice.synchronization, choice.assignment, 16, &log);
      EXPECT_EQ(RunStep(options, choice.synchronization, choice.assignment, 16).workers,
                result.workers);
      ASSERT_EQ(log.spans().size(), 4u);
      for (const auto& [worker, spans] : log.spans()) {
        const WorkerTimes& times = result.workers[static_cast<size_t>(worker)];
        std::array<double, kTimeKindNames.size()> sums = {};
        double end = 0;
        for (const SimulatedSpan& span : spans) {
          EXPECT_NEAR(span.begin, end, 1e-9);
          EXPECT_GT(span.end, span.begin);
          end = span.end;
          sums[static_cast<size_t>(span.kind)] += span.end - span.begin;
        }
        EXPECT_NEAR(end, result.seconds, 1e-9);
        const auto sum = [&](TimeKind kind) { return sums[static_cast<size_t>(kind)]; };
        EXPECT_NEAR(sum(TimeKind::kForward) + sum(TimeKind::kBackward), times.compute, 1e-9);
        EXPECT_NEAR(sum(TimeKind::kGetWait), times.get_wait, 1e-9);
        EXPECT_NEAR(sum(TimeKind::kPushWait), times.push_wait, 1e-9);
        EXPECT_NEAR(sum(TimeKind::kLayerWait), times.layer_wait, 1e-9);
        EXPECT_NEAR(sum(TimeKind::kStepWait), result.seconds - times.finish, 1e-9);
        EXPECT_NEAR(times.compute + times.get_wait + times.push_wait + times.layer_wait,
                    times.finish, 1e-9);
      }
    }
  }
}

// Nothing that one worker does affects another before the end of the step.
TEST(Simulator, OnDemandAStallIsSeenAtTheBoundaryAlone) {
  const Simulator simulator(Options(TwoNodes(2)));
  plan::StepPlan plan = PlanWithCounts({3, 3, 3, 3});
  const StepResult before = simulator.RunPlan(plan, Synchronization::kStep);
  plan.workers[2][1].squared_tokens *= 10;
  const StepResult after = simulator.RunPlan(plan, Synchronization::kStep);
  for (const size_t worker : {0, 1, 3}) {
    EXPECT_EQ(before.workers[worker], after.workers[worker]);
  }
  EXPECT_GT(after.seconds, before.seconds);

  const StepResult layers = simulator.RunPlan(plan, Synchronization::kLayer);
  EXPECT_GT(layers.workers[0].layer_wait, after.workers[0].get_wait);
}

// Transfers hide behind compute that takes longer than they do: a slow link costs little until it
// does.
TEST(Simulator, TransfersHideBehindCompute) {
  SimulatorOptions options = Options(FreeCluster(8));
  const double free = RunStep(options, Synchronization::kStep, Assignment::kLbMini).seconds;
  options.cluster.device_link = {50e9, 1e-5};
  const double hidden = RunStep(options, Synchronization::kStep, Assignment::kLbMini).seconds;
  EXPECT_GT(hidden, free);
  EXPECT_LT(hidden, 1.02 * free);
  options.job.train.prefetch_units = 0;
  EXPECT_GT(RunStep(options, Synchronization::kStep, Assignment::kLbMini).seconds, hidden);
  options.cluster.device_link = {1e9, 1e-5};
  EXPECT_GT(RunStep(options, Synchronization::kStep, Assignment::kLbMini).seconds, 2 * free);
}

TEST(Simulator, SlowerLinksNeverHelp) {
  for (const plan::WorkerPolicy& policy : kPolicies) {
    for (const Choice& choice : AllChoices()) {
      double before = 0;
      for (const double rate : {1e12, 1e11, 1e10, 1e9}) {
        SimulatorOptions options = Options(TwoNodes(2));
        options.policy = policy;
        options.cluster.node_link.bytes_per_second = rate;
        const double seconds =
            RunStep(options, choice.synchronization, choice.assignment, 16).seconds;
        EXPECT_GE(seconds, before * 0.999) << Name(choice.assignment) << " at " << rate;
        before = seconds;
      }
    }
  }
}

TEST(Simulator, UnequalCountsWithNone) {
  const Simulator simulator(Options(TwoNodes(2)));
  const StepResult result = simulator.RunPlan(PlanWithCounts({5, 1, 0, 3}), Synchronization::kStep);
  EXPECT_EQ(result.workers[2], WorkerTimes());
  EXPECT_GT(result.workers[0].finish, result.workers[3].finish);
  // Fewer samples than workers, and none at all.
  EXPECT_GT(RunStep(simulator.options(), Synchronization::kLayer, Assignment::kLbMicro, 2).seconds,
            0);
  EXPECT_GT(RunStep(simulator.options(), Synchronization::kStep, Assignment::kDynamic, 2).seconds,
            0);
}

// Emulated devices: the weights that travel are a small model's, the pace is the shape's.
TEST(Simulator, AShapeSetsThePaceOfASmallModel) {
  SimulatorOptions options = Options(FreeCluster(4));
  const StepResult whole = RunStep(options, Synchronization::kStep, Assignment::kLbMini, 16);
  options.shape = options.spec;
  options.spec = *plan::NamedShape("tiny");
  const StepResult emulated = RunStep(options, Synchronization::kStep, Assignment::kLbMini, 16);
  EXPECT_EQ(emulated.workers, whole.workers);
  EXPECT_LT(emulated.bytes.get, whole.bytes.get / 1000);
}

TEST(Simulator, RefusesWhatTrainingRefuses) {
  const Simulator simulator(Options(FreeCluster(2)));
  const auto samples = *Drawn("fixed:100000", 2)(1);
  EXPECT_REFUSED(simulator.Run(samples, Assignment::kLbMini, Synchronization::kStep).status(),
                 "sample 0 has 100000 tokens");
  EXPECT_REFUSED(simulator.Run({}, Assignment::kDynamic, Synchronization::kLayer).status(),
                 "dynamic contradicts");
}

}  // namespace
}  // namespace shoal::sim
