// Worker groups of several stages train what single workers train, bit for bit in exact mode:
// whatever the schedule, the offloading and the recomputing, with gRPC and transports between the
// stages as in a real cluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/base/bytes.h"
#include "core/model/huggingface/hf_model.h"
#include "core/plan/memory/activation_bytes.h"
#include "fmt/format.h"
#include "tests/in_process/reference.h"
#include "tests/in_process/tiny_job.h"

namespace shoal::testing {
namespace {

using ::testing::HasSubstr;

class PipelineTest : public TinyJobTest {
 protected:
  PipelineTest() {
    job_.train.steps = 3;
    job_.train.minibatch_samples = 10;
    job_.service.accumulate = plan::Accumulate::kExact;
    MakeSixLayers(/*tied=*/true);
  }

  void MakeSixLayers(bool tied) {
    plan::ModelSpec spec = *plan::NamedShape("tiny");
    spec.layers = 6;
    spec.tied_embeddings = tied;
    MakeModel(spec);
  }

  // Of `groups` groups.
  ClusterRun Run(const plan::PipelineOptions& pipeline, int groups,
                 transport::FaultOptions faults = {.seed = 0}, const std::string& held_out = "") {
    job_.cluster.pipeline = pipeline;
    job_.cluster.pipeline.pace = {.forward_flops = 2e10,
                                  .backward_input_flops = 2e10,
                                  .backward_weights_flops = 2e10,
                                  .offload_bytes_per_second = 2e9,
                                  .reload_bytes_per_second = 2e9};
    return TinyJobTest::Run({.servers = 2,
                             .workers = groups * static_cast<int>(pipeline.stages),
                             .validation_file = held_out,
                             .lost_worker = lost_worker_,
                             .faults = faults});
  }

  static void ExpectSameValidations(const ClusterRun& run, const ClusterRun& other) {
    ASSERT_EQ(run.validations.size(), other.validations.size());
    for (size_t i = 0; i < run.validations.size(); ++i) {
      EXPECT_EQ(run.validations[i].loss(), other.validations[i].loss());
      EXPECT_EQ(run.validations[i].target_tokens(), other.validations[i].target_tokens());
    }
  }

  int lost_worker_ = -1;
};

TEST_F(PipelineTest, HasTheBitsOfSingleWorkers) {
  struct Case {
    std::string schedule;
    int64_t stages = 2;
    int64_t chunks = 1;
    double offload = 0;
  };
  for (const bool tied : {true, false}) {
    MakeSixLayers(tied);
    for (const int groups : {1, 2}) {
      const ClusterRun single = Run({}, groups);
      const std::vector<Case> cases =
          tied && groups == 2
              ? std::vector<Case>{{"1F1B", 2, 1},
                                  {"interleaved", 2, 2},
                                  {"GIS", 2, 4, plan::OffloadedChunks::kHalf},
                                  {"PO", 2, 3, plan::OffloadedChunks::kFull},
                                  {"ZB-H2", 2, 1},
                                  {"ZB-V", 2, 2, 1}}
              : std::vector<Case>{
                    {"1F1B", 4, 1, plan::OffloadedChunks::kFull}, {"V-Half", 3, 2}, {"auto", 2, 0}};
      for (const Case& one : cases) {
        SCOPED_TRACE(fmt::format("{} over {} stages of {} chunks, {} groups, {}", one.schedule,
                                 one.stages, one.chunks, groups, tied ? "tied" : "untied"));
        ExpectSameBits(Run({.stages = one.stages,
                            .chunks = one.chunks,
                            .schedule = one.schedule,
                            .offload = {one.offload}},
                           groups),
                       single);
      }
    }
  }
}

TEST_F(PipelineTest, RecomputingAndAHostOfOneStageChangeNoBit) {
  const ClusterRun single = Run({}, 1);
  for (const plan::Recompute recompute : {plan::Recompute::kLight, plan::Recompute::kFull}) {
    SCOPED_TRACE(plan::Name(recompute));
    ExpectSameBits(
        Run({.stages = 2, .chunks = 2, .schedule = "PO", .offload = {1}, .recompute = recompute},
            1),
        single);
    ExpectSameBits(Run({.stages = 1, .chunks = 2, .offload = {1}, .recompute = recompute}, 1),
                   single);
  }
  ExpectSameBits(Run({.stages = 1, .offload = {plan::OffloadedChunks::kFull}}, 1), single);
}

// Forward and loss alone through the stages.
TEST_F(PipelineTest, ValidatesWithTheBitsOfSingleWorkers) {
  const std::string held_out = folder_ / "held_out";
  ASSERT_TRUE(
      WriteSyntheticTokens(held_out, plan::NamedShape("tiny")->vocabulary, 30, 120, 9).ok());
  job_.data.validation = {.path = held_out, .every_steps = 2, .at_start = true};
  const ClusterRun single = Run({}, 1, {.seed = 0}, held_out);
  ASSERT_EQ(single.validations.size(), 3U);
  for (const int groups : {1, 2}) {
    for (const plan::PipelineOptions& pipeline :
         {plan::PipelineOptions{.stages = 1, .chunks = 4, .recompute = plan::Recompute::kFull},
          plan::PipelineOptions{.stages = 2, .chunks = 2, .schedule = "PO", .offload = {1}},
          plan::PipelineOptions{.stages = 3, .chunks = 2, .schedule = "V-Half"}}) {
      SCOPED_TRACE(fmt::format("{} groups of {} stages", groups, pipeline.stages));
      const ClusterRun run = Run(pipeline, groups, {.seed = 0}, held_out);
      ExpectSameBits(run, single);
      ExpectSameValidations(run, single);
    }
  }
}

// A stage that goes amid a validation takes its group with it; the other group runs its packs.
TEST_F(PipelineTest, ValidatesWithTheSameBitsWithoutAWorker) {
  const std::string held_out = folder_ / "held_out";
  ASSERT_TRUE(
      WriteSyntheticTokens(held_out, plan::NamedShape("tiny")->vocabulary, 30, 120, 9).ok());
  job_.data.validation = {.path = held_out, .every_steps = 1};
  const ClusterRun single = Run({}, 1, {.seed = 0}, held_out);
  lost_worker_ = 1;
  const ClusterRun run =
      Run({.stages = 2, .chunks = 2, .schedule = "PO", .offload = {1}}, 2, {.seed = 0}, held_out);
  ExpectSameBits(run, single);
  ExpectSameValidations(run, single);
}

// Between stages and to the servers.
TEST_F(PipelineTest, HasTheSameBitsUnderDelaysAndReordering) {
  const ClusterRun single = Run({}, 2);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    job_.service.transports = seed % 2 == 0 ? std::vector<std::string>{"tcp", "shm"}
                                            : std::vector<std::string>{"shm", "tcp"};
    ExpectSameBits(Run({.stages = 2, .chunks = 2, .schedule = "PO", .offload = {1}}, 2,
                       {.seed = seed,
                        .delay_probability = 0.3,
                        .max_delay = absl::Milliseconds(2),
                        .reorder = true}),
                   single);
  }
}

// A connection between stages that breaks ends the attempt; the next one connects anew. Those to
// servers come back by themselves.
TEST_F(PipelineTest, HasTheSameBitsWhereConnectionsBreak) {
  const ClusterRun single = Run({}, 2);
  for (const int64_t operations : {25, 60}) {
    SCOPED_TRACE(operations);
    job_.service.transports = {"tcp"};
    const ClusterRun run = Run({.stages = 2, .chunks = 2, .schedule = "PO", .offload = {1}}, 2,
                               {.seed = 7, .break_after_operations = operations});
    ExpectSameBits(run, single);
  }
}

// One sample a step: one of the groups has nothing to do.
TEST_F(PipelineTest, AGroupWithoutMicrobatchesTakesPart) {
  job_.train.minibatch_samples = 1;
  const ClusterRun single = Run({}, 1);
  ExpectSameBits(Run({.stages = 2}, 2), single);
}

TEST_F(PipelineTest, HasTheSameBitsWithinABudget) {
  const ClusterRun single = Run({}, 1);
  const plan::ModelSpec spec = *formats::ReadModelSpec(job_.model);
  const int64_t layer = plan::BlockActivationBytes(spec, DType::kF32, plan::Recompute::kNone,
                                                   plan::MicrobatchRows(128));
  ExpectSameBits(Run({.stages = 2, .chunks = 2, .schedule = "PO", .device_memory = 14 * layer}, 1),
                 single);
}

}  // namespace
}  // namespace shoal::testing
