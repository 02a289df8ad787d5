// Adapters over servers and workers: what a plain loop trains, in the same bits wherever they are,
// with a model that is fetched once and that nobody changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/job/job_model.h"
#include "core/job/job_units.h"
#include "core/model/adapters.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/huggingface/peft_adapter.h"
#include "fmt/format.h"
#include "tests/in_process/reference.h"
#include "tests/in_process/tiny_job.h"

namespace shoal::testing {
namespace {

using ::testing::HasSubstr;

class LoraTest : public TinyJobTest {
 protected:
  LoraTest() {
    job_.train.steps = 4;
    job_.train.minibatch_samples = 12;
    job_.lora = {.rank = 4, .alpha = 8, .targets = {"attention", "*.1.mlp.*"}};
  }

  std::vector<plan::UnitSpec> Units() const {
    return plan::JobUnits(plan::ReadJobModel(job_).value(), job_.train);
  }
  // As the adapters of a run are at its end, in the form of PEFT.
  std::string WriteAdapter(const ClusterRun& run, bool rank_stabilized = false) const {
    const std::string folder = folder_ / "adapter";
    const auto read = [&run](int unit, int64_t offset, std::span<float> out) {
      const std::vector<float>& weights = run.weights[static_cast<size_t>(unit)];
      std::copy_n(weights.begin() + offset, out.size(), out.begin());
      return absl::OkStatus();
    };
    EXPECT_TRUE(formats::WritePeftAdapter(folder, plan::ReadJobModel(job_).value(), read,
                                          {.rank_stabilized = rank_stabilized})
                    .ok());
    return folder;
  }
};

TEST_F(LoraTest, EqualsAPlainLoopAtAnyShape) {
  const auto reference = TrainReference(job_, tokens_);
  ASSERT_TRUE(reference.ok()) << reference.status();
  EXPECT_LT(reference->losses.back(), reference->losses.front());
  for (const auto& [servers, workers] : {std::pair(1, 1), std::pair(2, 2), std::pair(3, 2)}) {
    SCOPED_TRACE(fmt::format("{} servers, {} workers", servers, workers));
    ExpectSame(Run({.servers = servers, .workers = workers}), *reference);
  }
}

TEST_F(LoraTest, HowItIsFetchedAndPushedDoesNotMatter) {
  const auto reference = TrainReference(job_, tokens_);
  ASSERT_TRUE(reference.ok()) << reference.status();
  for (const plan::Residency residency : {plan::Residency::kLayer, plan::Residency::kStep}) {
    for (const plan::PushPolicy push : {plan::PushPolicy::kMicrobatch, plan::PushPolicy::kStep}) {
      for (const plan::Synchronization synchronization :
           {plan::Synchronization::kStep, plan::Synchronization::kLayer}) {
        job_.train.residency = residency;
        job_.train.push = push;
        job_.train.synchronization = synchronization;
        ExpectSame(Run({.servers = 2, .workers = 2}), *reference);
      }
    }
  }
}

TEST_F(LoraTest, ExactModeGivesTheSameBitsAnywhere) {
  job_.service.accumulate = plan::Accumulate::kExact;
  const ClusterRun alone = Run({.servers = 1, .workers = 1});
  for (const auto& [servers, workers] :
       {std::pair(1, 2), std::pair(1, 4), std::pair(3, 1), std::pair(3, 4)}) {
    SCOPED_TRACE(fmt::format("{} servers, {} workers", servers, workers));
    const ClusterRun run = Run({.servers = servers, .workers = workers});
    ExpectSameBits(run, alone);
    EXPECT_EQ(run.weights, alone.weights);
  }
  const ClusterRun lost = Run({.servers = 2, .workers = 3, .lost_worker = 1});
  EXPECT_EQ(lost.checksums, alone.checksums);
}

TEST_F(LoraTest, TheModelStaysAndIsFetchedOnce) {
  job_.train.residency = plan::Residency::kStep;
  job_.train.push = plan::PushPolicy::kStep;
  const std::vector<plan::UnitSpec> units = Units();
  const ClusterRun run = Run({.servers = 2, .workers = 1});
  const auto model = formats::HfModel::Open(job_.model).value();
  int64_t frozen = 0;
  int64_t trained = 0;
  for (const plan::UnitSpec& unit : units) {
    (unit.frozen ? frozen : trained) += unit.count;
    EXPECT_EQ(unit.frozen, unit.kind != plan::UnitKind::kAdapter) << unit.name;
    if (unit.frozen) {
      std::vector<float> base(static_cast<size_t>(unit.count));
      ASSERT_TRUE(model->ReadUnit(unit.index, 0, base).ok());
      EXPECT_EQ(run.weights[static_cast<size_t>(unit.index)], base) << unit.name;
    }
  }
  const auto bytes = [](const std::string& direction, int64_t count) {
    return HasSubstr(
        fmt::format("shoal_client_{}_bytes_total{{transport=\"shm\"}} {}\n", direction, count));
  };
  EXPECT_THAT(run.worker_metrics, bytes("get", 4 * (job_.train.steps * trained + frozen)));
  EXPECT_THAT(run.worker_metrics, bytes("push", 4 * job_.train.steps * trained));

  // Where another worker is lost, this one may fetch again what trains, and nothing else.
  const ClusterRun left = Run({.servers = 2, .workers = 2, .lost_worker = 1});
  const std::string name = "shoal_client_get_bytes_total{transport=\"shm\"} ";
  const size_t at = left.worker_metrics.find(name);
  ASSERT_NE(at, std::string::npos);
  const int64_t more = std::stoll(left.worker_metrics.substr(at + name.size())) / 4 - frozen;
  EXPECT_GE(more, job_.train.steps * trained);
  EXPECT_LT(more, frozen) << "of which " << trained << " train";
}

// The loss of its first step is that of the step after the last of the run that left it.
TEST_F(LoraTest, GoesOnFromAnAdapter) {
  job_.train.minibatch_samples = 40;  // all of them
  job_.train.schedule = plan::LearningRateSchedule::kConstant;
  const ClusterRun five = [&] {
    job_.train.steps = 5;
    return Run({.servers = 2, .workers = 2});
  }();
  job_.train.steps = 4;
  const std::string folder = WriteAdapter(Run({.servers = 2, .workers = 2}));
  const plan::ModelSpec spec = plan::ReadJobModel(job_).value();
  job_.lora = {.from = folder};
  EXPECT_EQ(plan::ReadJobModel(job_).value(), spec);
  const ClusterRun more = Run({.servers = 1, .workers = 2});
  EXPECT_NEAR(more.steps[0].loss(), five.steps[4].loss(), 1e-5 * five.steps[4].loss());
  EXPECT_LT(more.steps[3].loss(), more.steps[0].loss());
}

TEST_F(LoraTest, IsScaledByItsRankOrTheRootOfItAndReadBackSo) {
  job_.train.steps = 1;
  const plan::LoraOptions plain = job_.lora;
  for (const bool root : {false, true}) {
    job_.lora = plain;
    job_.lora.rslora = root;
    const plan::ModelSpec spec = plan::ReadJobModel(job_).value();
    for (const plan::Adapter& adapter : spec.adapters) {
      EXPECT_EQ(adapter.scale, 8.0 / (root ? 2 : 4));  // alpha over a rank of 4
    }
    const ClusterRun run = Run({.servers = 1, .workers = 1});
    job_.lora = {.from = WriteAdapter(run, /*rank_stabilized=*/root)};
    EXPECT_EQ(plan::ReadJobModel(job_).value(), spec);
  }
}

// A list of patterns says what could be said module by module.
TEST_F(LoraTest, PatternsSayTheRankAndTheScaleOfTheirMatrices) {
  job_.service.accumulate = plan::Accumulate::kExact;
  const plan::ModelSpec base = plan::WithoutAdapters(plan::ReadJobModel(job_).value());
  job_.lora.patterns = {{.match = "*.1.mlp.down_proj", .rank = 16, .alpha = 4},
                        {.match = "mlp", .rank = 8, .alpha = {}},
                        {.match = "q_proj", .rank = {}, .alpha = 32}};
  const plan::ModelSpec spec = plan::ReadJobModel(job_).value();
  plan::ModuleAdapters modules;
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    modules[layer + "self_attn.q_proj"] = {.rank = 4, .scale = 8};
    for (const std::string name : {"k_proj", "v_proj", "o_proj"}) {
      modules[layer + "self_attn." + name] = {.rank = 4, .scale = 2};
    }
  }
  modules["model.layers.1.mlp.gate_proj"] = {.rank = 8, .scale = 1};
  modules["model.layers.1.mlp.up_proj"] = {.rank = 8, .scale = 1};
  modules["model.layers.1.mlp.down_proj"] = {.rank = 16, .scale = 0.25};
  EXPECT_EQ(spec, plan::WithModuleAdapters(base, modules).value());

  const auto reference = TrainReference(job_, tokens_);
  ASSERT_TRUE(reference.ok()) << reference.status();
  const ClusterRun one = Run({.servers = 1, .workers = 1});
  ExpectSame(one, *reference);
  const ClusterRun three = Run({.servers = 3, .workers = 2});
  ExpectSameBits(three, one);
  EXPECT_EQ(three.weights, one.weights);
  job_.lora = {.from = WriteAdapter(three)};
  EXPECT_EQ(plan::ReadJobModel(job_).value(), spec);
}

// What is dropped of a sample does not depend on who computes it, with what, or how often.
TEST_F(LoraTest, DropoutIsTheSameAnywhere) {
  job_.lora.dropout = 0.25;
  const auto reference = TrainReference(job_, tokens_);
  ASSERT_TRUE(reference.ok()) << reference.status();
  for (const int workers : {1, 2}) {
    ExpectSame(Run({.servers = 2, .workers = workers}), *reference);
  }
  job_.service.accumulate = plan::Accumulate::kExact;
  const ClusterRun alone = Run({.servers = 1, .workers = 1});
  for (const auto& [servers, workers] : {std::pair(1, 2), std::pair(3, 1), std::pair(3, 4)}) {
    SCOPED_TRACE(fmt::format("{} servers, {} workers", servers, workers));
    const ClusterRun run = Run({.servers = servers, .workers = workers});
    ExpectSameBits(run, alone);
    EXPECT_EQ(run.weights, alone.weights);
  }
  const ClusterRun lost = Run({.servers = 2, .workers = 3, .lost_worker = 1});
  EXPECT_EQ(lost.checksums, alone.checksums);
  job_.lora.dropout = 0;
  EXPECT_NE(Run({.servers = 1, .workers = 1}).weights, alone.weights);
}

// The validation after the last step has the loss of the next step, with the same weights and
// samples, of a run without dropout.
TEST_F(LoraTest, DropoutIsOfTrainingAlone) {
  job_.train.minibatch_samples = 40;  // all of them
  job_.data.validation.path = tokens_;
  job_.lora.dropout = 0.5;
  const ClusterRun run = Run({.servers = 1, .workers = 1, .validation_file = tokens_});
  ASSERT_EQ(run.validations.size(), 1U);
  job_.lora = {.from = WriteAdapter(run)};
  job_.data.validation.path.clear();
  job_.train.steps = 1;
  const ClusterRun more = Run({.servers = 1, .workers = 1});
  EXPECT_NEAR(run.validations[0].loss(), more.steps[0].loss(), 1e-6 * more.steps[0].loss());
}

TEST_F(LoraTest, APipelineHasTheBitsOfSingleWorkers) {
  plan::ModelSpec spec = *plan::NamedShape("tiny");
  spec.layers = 6;
  MakeModel(spec);
  job_.lora.dropout = 0.25;
  job_.service.accumulate = plan::Accumulate::kExact;
  const ClusterRun single = Run({.servers = 2, .workers = 2});
  for (const std::string schedule : {"1F1B", "ZB-V"}) {
    SCOPED_TRACE(schedule);
    job_.cluster.pipeline = {.stages = 2,
                             .chunks = schedule == "ZB-V" ? 2 : 1,
                             .schedule = schedule,
                             .pace = {.forward_flops = 2e10,
                                      .backward_input_flops = 2e10,
                                      .backward_weights_flops = 2e10,
                                      .offload_bytes_per_second = 2e9,
                                      .reload_bytes_per_second = 2e9}};
    ExpectSameBits(Run({.servers = 2, .workers = 4}), single);
  }
}

}  // namespace
}  // namespace shoal::testing
