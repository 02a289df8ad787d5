// Coordinator, servers and workers together train what a plain loop trains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "core/base/time_kind.h"
#include "core/data/token_file.h"
#include "core/job/job_units.h"
#include "fmt/format.h"
#include "tests/in_process/reference.h"
#include "tests/in_process/tiny_job.h"

namespace shoal::testing {
namespace {

using ::testing::HasSubstr;

class TrainingTest : public TinyJobTest {
 protected:
  TrainingTest() {
    job_.train.steps = 4;
    job_.train.minibatch_samples = 12;
  }
};

TEST_F(TrainingTest, EqualsAPlainLoopAtAnyShape) {
  const auto reference = TrainReference(job_, tokens_);
  ASSERT_TRUE(reference.ok()) << reference.status();
  EXPECT_LT(reference->losses.back(), reference->losses.front());
  for (const auto& [servers, workers] : {std::pair(1, 1), std::pair(2, 3), std::pair(3, 2)}) {
    SCOPED_TRACE(fmt::format("{} servers, {} workers", servers, workers));
    ExpectSame(Run({.servers = servers, .workers = workers}), *reference);
  }
}

// The same samples, of which target number n weighs weights(n).
void Reweigh(const std::string& tokens, const std::function<float(int64_t)>& weights) {
  const std::string weighted = tokens + ".weighted";
  {
    const auto file = formats::TokenFile::Open(tokens).value();
    const auto writer = formats::TokenFileWriter::Create(weighted, file->vocabulary(), 7).value();
    int64_t targets = 0;
    for (int64_t i = 0; i < file->samples(); ++i) {
      const formats::TokenSample sample = file->Sample(i).value();
      std::vector<float> of_labels;
      for (const int32_t label : sample.labels) {
        of_labels.push_back(label == formats::kIgnoredLabel ? 1 : weights(targets++));
      }
      ASSERT_TRUE(writer->Add(sample.tokens, sample.labels, of_labels).ok());
    }
    ASSERT_TRUE(writer->Finish().ok());
  }
  std::filesystem::rename(weighted, tokens);
}

TEST_F(TrainingTest, WeightsOfTargetsAreThoseOfAPlainLoop) {
  const ClusterRun before = Run({.servers = 2, .workers = 2});
  Reweigh(tokens_, [](int64_t n) { return 0.25f * static_cast<float>(1 + n % 7); });
  const auto reference = TrainReference(job_, tokens_);
  ASSERT_TRUE(reference.ok()) << reference.status();
  EXPECT_GT(std::abs(reference->losses.front() - before.steps.front().loss()), 1e-3);
  ExpectSame(Run({.servers = 2, .workers = 2}), *reference);
}

// Two halves the scale of a target, and doubles it again.
TEST_F(TrainingTest, TargetsThatAllWeighTwoGiveTheBitsOfThoseWithoutWeights) {
  job_.service.accumulate = plan::Accumulate::kExact;
  job_.data.validation = {.path = tokens_, .every_steps = 2};
  const ClusterOptions options{.servers = 2, .workers = 2, .validation_file = tokens_};
  const ClusterRun without = Run(options);
  Reweigh(tokens_, [](int64_t) { return 2.0f; });
  const ClusterRun twos = Run(options);
  ExpectSameBits(twos, without);
  ASSERT_EQ(without.validations.size(), 2U);
  ASSERT_EQ(twos.validations.size(), without.validations.size());
  for (size_t i = 0; i < twos.validations.size(); ++i) {
    EXPECT_EQ(twos.validations[i].loss(), without.validations[i].loss());
  }
}

TEST_F(TrainingTest, ResidencyAndPushPolicyDoNotMatter) {
  const auto reference = TrainReference(job_, tokens_);
  ASSERT_TRUE(reference.ok()) << reference.status();
  for (const plan::Residency residency : {plan::Residency::kLayer, plan::Residency::kStep}) {
    for (const plan::PushPolicy push : {plan::PushPolicy::kMicrobatch, plan::PushPolicy::kStep}) {
      for (const std::string transport : {"shm", "tcp"}) {
        job_.train.residency = residency;
        job_.train.push = push;
        job_.service.transports = {transport, transport == "shm" ? "tcp" : "shm"};
        ExpectSame(Run({.servers = 2, .workers = 2}), *reference);
      }
    }
  }
}

// Whoever runs what, and whenever workers wait for each other: the same training.
TEST_F(TrainingTest, AssignmentAndSynchronisationDoNotMatter) {
  const auto reference = TrainReference(job_, tokens_);
  ASSERT_TRUE(reference.ok()) << reference.status();
  for (const auto& [name, assignment] : plan::kAssignmentNames) {
    for (const plan::Synchronization synchronization :
         {plan::Synchronization::kStep, plan::Synchronization::kLayer}) {
      if (assignment == plan::Assignment::kDynamic &&
          synchronization == plan::Synchronization::kLayer) {
        continue;
      }
      SCOPED_TRACE(fmt::format("{} {}", name, plan::Name(synchronization)));
      job_.plan.assignment = assignment;
      job_.plan.cost = assignment == plan::Assignment::kSpeedWeighted ? plan::CostSource::kFitted
                                                                      : plan::CostSource::kFlops;
      job_.train.synchronization = synchronization;
      ExpectSame(Run({.servers = 2, .workers = 3}), *reference);
    }
  }
}

// What is got and pushed per layer is not the only way to train with layers' barriers: with weights
// kept and gradients summed, workers meet where something is transferred.
TEST_F(TrainingTest, LayerBarriersGoWithAnyResidency) {
  const auto reference = TrainReference(job_, tokens_);
  ASSERT_TRUE(reference.ok()) << reference.status();
  job_.train.synchronization = plan::Synchronization::kLayer;
  job_.train.residency = plan::Residency::kStep;
  job_.train.push = plan::PushPolicy::kStep;
  job_.service.transports = {"tcp"};
  ExpectSame(Run({.servers = 1, .workers = 3}), *reference);
}

TEST_F(TrainingTest, BarriersSurviveLostDoorbellsAndBrokenConnections) {
  const auto reference = TrainReference(job_, tokens_);
  ASSERT_TRUE(reference.ok()) << reference.status();
  job_.train.synchronization = plan::Synchronization::kLayer;
  transport::FaultOptions faults = {.seed = 4,
                                    .delay_probability = 0.3,
                                    .max_delay = absl::Milliseconds(2),
                                    .reorder = true,
                                    .drop_doorbell_probability = 0.05,
                                    .break_after_operations = 400};
  ExpectSame(Run({.servers = 2, .workers = 3, .faults = faults}), *reference);
}

// Exact mode: the sum does not depend on who drew which pack, so drawing gives the bits of the
// plan.
TEST_F(TrainingTest, ExactModeGivesTheSameBitsWhoeverDrawsWhat) {
  job_.service.accumulate = plan::Accumulate::kExact;
  job_.train.residency = plan::Residency::kLayer;
  job_.data.microbatch_tokens = 128;
  job_.plan.assignment = plan::Assignment::kLbMini;
  const ClusterRun planned = Run({.servers = 2, .workers = 3});
  ASSERT_FALSE(planned.checksums.empty());
  job_.plan.assignment = plan::Assignment::kDynamic;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    transport::FaultOptions faults = {
        .seed = seed, .delay_probability = 0.5, .max_delay = absl::Milliseconds(3)};
    EXPECT_EQ(Run({.servers = 2, .workers = 3, .faults = faults}).checksums, planned.checksums)
        << "seed " << seed;
  }
}

TEST_F(TrainingTest, RecordsOverTcpChangeNoBit) {
  job_.service.accumulate = plan::Accumulate::kExact;
  job_.service.transports = {"tcp"};
  const ClusterRun plain = Run({.servers = 2, .workers = 2});
  const ClusterRun encrypted = Run({.servers = 2, .workers = 2, .encrypted = true});
  ExpectSameBits(encrypted, plain);
  EXPECT_EQ(encrypted.weights, plain.weights);
}

// The coordinator has not named it to the servers, so it has nothing to push into.
TEST_F(TrainingTest, AStrangerWithTheTokenChangesNothing) {
  job_.service.accumulate = plan::Accumulate::kExact;
  const ClusterRun undisturbed = Run({.servers = 2, .workers = 2});
  const ClusterRun run = Run({.servers = 2, .workers = 2, .stranger = true});
  ExpectSameBits(run, undisturbed);
  EXPECT_TRUE(absl::IsPermissionDenied(run.stranger)) << run.stranger;
  EXPECT_THAT(std::string(run.stranger.message()),
              HasSubstr("stranger (incarnation dead) is no worker of job-"));
}

// Twenty runs of eight workers with delays of their own: one result.
TEST_F(TrainingTest, ExactModeIsOneResultOverManyRuns) {
  job_.service.accumulate = plan::Accumulate::kExact;
  job_.train.steps = 2;
  std::vector<uint64_t> first;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    transport::FaultOptions faults = {
        .seed = seed, .delay_probability = 0.5, .max_delay = absl::Milliseconds(2)};
    const ClusterRun run = Run({.servers = 2, .workers = 8, .faults = faults});
    ASSERT_FALSE(run.checksums.empty());
    first = seed == 1 ? run.checksums : first;
    EXPECT_EQ(run.checksums, first) << "seed " << seed;
  }
}

// Were each worker's mean taken first, and then the mean of those, the result would depend on who
// ran what: what the equality with the plain loop above would not let pass.
TEST_F(TrainingTest, AMeanPerWorkerIsAnotherGradient) {
  const auto reference = TrainReference(job_, tokens_);
  const auto wrong = TrainReference(job_, tokens_, Normaliser::kMeanOfThreeWorkers);
  ASSERT_TRUE(reference.ok() && wrong.ok());
  EXPECT_GT(std::abs(wrong->grad_norms[0] - reference->grad_norms[0]),
            1e-3 * reference->grad_norms[0]);
}

TEST_F(TrainingTest, MoreWorkersThanSamples) {
  job_.train.minibatch_samples = 2;
  const auto reference = TrainReference(job_, tokens_);
  ASSERT_TRUE(reference.ok()) << reference.status();
  ExpectSame(Run({.servers = 2, .workers = 4}), *reference);
}

TEST_F(TrainingTest, ExactModeGivesTheSameBitsUnderFaults) {
  job_.service.accumulate = plan::Accumulate::kExact;
  job_.train.residency = plan::Residency::kLayer;
  job_.train.push = plan::PushPolicy::kMicrobatch;
  const ClusterRun calm = Run({.servers = 2, .workers = 3});
  ASSERT_FALSE(calm.checksums.empty());
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    transport::FaultOptions faults = {.seed = seed,
                                      .delay_probability = 0.5,
                                      .max_delay = absl::Milliseconds(3),
                                      .reorder = true,
                                      .drop_doorbell_probability = 0.05,
                                      .break_after_operations = seed % 2 == 0 ? 150 : 0};
    job_.service.transports = {"shm", "tcp"};
    if (seed % 2 == 0) {
      std::swap(job_.service.transports[0], job_.service.transports[1]);
    }
    const ClusterRun stormy = Run({.servers = 2, .workers = 3, .faults = faults});
    EXPECT_EQ(stormy.checksums, calm.checksums) << "seed " << seed;
  }
}

TEST_F(TrainingTest, DamagedGradientsAreSentAgainWhereTheyAreVerified) {
  job_.service.accumulate = plan::Accumulate::kExact;
  const ClusterRun calm = Run({.servers = 2, .workers = 2});
  const transport::FaultOptions faults = {.seed = 1, .damage_payload = 15};
  for (const std::vector<std::string>& transports :
       {std::vector<std::string>{"shm", "tcp"}, std::vector<std::string>{"tcp"}}) {
    SCOPED_TRACE(transports.front());
    job_.service.transports = transports;
    job_.service.verify_pushes = true;
    ExpectSameBits(Run({.servers = 2, .workers = 2, .faults = faults}), calm);
    job_.service.verify_pushes = false;
    EXPECT_NE(Run({.servers = 2, .workers = 2, .faults = faults}).checksums, calm.checksums);
  }
}

// The loss of the weights that there are then, the same bits whoever takes it, and no bit of the
// training is another for it.
TEST_F(TrainingTest, ValidationIsTheLossOfTheWeightsAtThatStep) {
  const std::string held_out = folder_ / "held_out";
  ASSERT_TRUE(
      WriteSyntheticTokens(held_out, plan::NamedShape("tiny")->vocabulary, 30, 120, 9).ok());
  job_.service.accumulate = plan::Accumulate::kExact;
  const ClusterRun alone = Run({.servers = 2, .workers = 2});
  job_.data.validation = {.path = held_out, .every_steps = 2, .at_start = true};
  const ClusterRun one = Run({.validation_file = held_out});
  ASSERT_EQ(one.validations.size(), 3U);
  ExpectSameBits(one, alone);
  for (const int workers : {2, 3}) {
    const ClusterRun run = Run({.servers = 2, .workers = workers, .validation_file = held_out});
    ExpectSameBits(run, alone);
    ASSERT_EQ(run.validations.size(), 3U);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(run.validations[i].step(), static_cast<int64_t>(2 * i));
      EXPECT_EQ(run.validations[i].loss(), one.validations[i].loss());
    }
  }
  // Where workers meet at layers, too, though one of them has fewer packs or is gone. What is
  // trained is packed in another way there.
  job_.train.synchronization = plan::Synchronization::kLayer;
  const ClusterRun at_layers = Run({.validation_file = held_out});
  ASSERT_EQ(at_layers.validations.size(), 3U);
  EXPECT_EQ(at_layers.validations[0].loss(), one.validations[0].loss());
  for (const int lost : {-1, 1}) {
    const ClusterRun run =
        Run({.servers = 2, .workers = 3, .validation_file = held_out, .lost_worker = lost});
    ASSERT_EQ(run.validations.size(), 3U);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(run.validations[i].loss(), at_layers.validations[i].loss());
    }
  }
  job_.train.synchronization = plan::Synchronization::kStep;
  // A plain loop's first step takes the loss of all of them with the weights that there are.
  plan::Job first = job_;
  first.train.steps = 1;
  first.train.minibatch_samples = 30;
  const auto reference = TrainReference(first, held_out);
  ASSERT_TRUE(reference.ok()) << reference.status();
  EXPECT_NEAR(one.validations[0].loss(), reference->losses[0], 1e-5 * reference->losses[0]);
}

// What servers did comes with what workers did, and a wait says for whom it was.
TEST_F(TrainingTest, ATraceHasServersAndWhoWasWaitedFor) {
  const ClusterRun run = Run({.servers = 2, .workers = 2, .trace = true});
  std::map<int64_t, std::set<int>> servers;  // by step
  std::map<int64_t, std::set<int>> workers;
  std::set<std::string> clients;
  int named = 0;
  for (const proto::TraceEvent& event : run.traces) {
    if (event.has_server()) {
      servers[event.step()].insert(event.server());
      std::set<int> kinds;
      for (const proto::ServerSpan& span : event.served()) {
        kinds.insert(span.kind());
        clients.insert(span.client());
      }
      EXPECT_EQ(kinds.size(), 3U) << "server-" << event.server();
      EXPECT_EQ(event.spans_size(), 0);
      continue;
    }
    workers[event.step()].insert(event.worker());
    for (const proto::Span& span : event.spans()) {
      if (span.has_waited_for()) {
        ++named;
        EXPECT_EQ(span.kind(), static_cast<int>(TimeKind::kGetWait));
        EXPECT_THAT(span.waited_for(), ::testing::AnyOf(0, 1));
      }
    }
  }
  EXPECT_EQ(servers.size(), 4U);
  EXPECT_EQ(servers, workers) << "both of each in each step";
  EXPECT_EQ(clients, (std::set<std::string>{"", "worker-0", "worker-1"}));
  EXPECT_GT(named, 0);
}

TEST_F(TrainingTest, AFrozenTensorKeepsItsBitsAndTheOthersTrain) {
  const ClusterRun all = Run({.servers = 2, .workers = 2});
  job_.train.groups = {{.match = "*.layers.*", .freeze = true}};
  const ClusterRun run = Run({.servers = 2, .workers = 2});
  job_.train.groups = {{.match = "*", .freeze = true}};
  const ClusterRun none = Run({.servers = 2, .workers = 2});
  ASSERT_EQ(run.weights.size(), none.weights.size());
  for (size_t unit = 0; unit < run.weights.size(); ++unit) {
    const bool is_block = unit > 0 && unit + 1 < run.weights.size();
    EXPECT_EQ(run.weights[unit] == none.weights[unit], is_block) << "unit " << unit;
    EXPECT_NE(all.weights[unit], none.weights[unit]) << "unit " << unit;
  }
  EXPECT_EQ(none.steps.back().grad_norm(), 0);
}

// Its gradient is neither computed nor pushed, and what trains has the bits that it has where that
// is done and changes nothing.
TEST_F(TrainingTest, AFrozenUnitIsFetchedOnceAndChangesNoBitOfTheOthers) {
  job_.service.accumulate = plan::Accumulate::kExact;
  job_.train.clip_norm = 0;
  job_.train.residency = plan::Residency::kStep;
  for (const std::string match : {"model.layers.0.*", "*embed_tokens*", "*[dm].weight"}) {
    job_.train.groups = {{.match = match, .learning_rate_scale = 0, .weight_decay = 0}};
    const ClusterRun still = Run({.servers = 1, .workers = 1});
    job_.train.groups = {{.match = match, .freeze = true}};
    int64_t trained = 0;
    int64_t frozen = 0;
    for (const plan::UnitSpec& unit : plan::JobUnits(*plan::NamedShape("tiny"), job_.train)) {
      (unit.frozen ? frozen : trained) += unit.count;
    }
    EXPECT_GT(frozen, 0);
    for (const auto& [servers, workers] : {std::pair(1, 1), std::pair(3, 1), std::pair(3, 2)}) {
      SCOPED_TRACE(fmt::format("{}: {} servers, {} workers", match, servers, workers));
      const ClusterRun run = Run({.servers = servers, .workers = workers});
      EXPECT_EQ(run.checksums, still.checksums);
      EXPECT_EQ(run.weights, still.weights);
      if (workers == 1) {  // it has work in each step
        EXPECT_THAT(run.worker_metrics,
                    HasSubstr(fmt::format("shoal_client_get_bytes_total{{transport=\"shm\"}} {}\n",
                                          4 * (job_.train.steps * trained + frozen))));
      }
    }
    job_.train.residency = plan::Residency::kLayer;
    EXPECT_EQ(Run({.servers = 2, .workers = 2}).checksums, still.checksums);
    job_.train.residency = plan::Residency::kStep;
  }
  job_.train.groups = {{.match = "*", .freeze = true}};
  EXPECT_THAT(Run({.servers = 2, .workers = 1}).worker_metrics,
              HasSubstr("shoal_client_push_bytes_total{transport=\"shm\"} 0\n"));
}

TEST_F(TrainingTest, WorkersCountTheirTimeAndBytes) {
  const ClusterRun run = Run({.servers = 1, .workers = 1});
  EXPECT_THAT(run.worker_metrics,
              HasSubstr("shoal_worker_phase_seconds_total{phase=\"backward\"}"));
  EXPECT_THAT(run.worker_metrics, HasSubstr("shoal_client_get_bytes_total{transport=\"shm\"}"));
}

}  // namespace
}  // namespace shoal::testing
