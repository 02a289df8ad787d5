// Adapters of a model whose blocks are in NF4 (lora.quantize): they learn what they learn on the
// values that those stand for, wherever servers and workers are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/job/job_model.h"
#include "core/job/job_units.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/nf4_partition.h"
#include "core/model/partition.h"
#include "fmt/format.h"
#include "server/checkpoint/checkpoint.h"
#include "tests/in_process/tiny_job.h"

namespace shoal::testing {
namespace {

using ::testing::HasSubstr;

class Nf4Test : public TinyJobTest {
 protected:
  Nf4Test() {
    job_.train.steps = 4;
    job_.train.minibatch_samples = 12;
    job_.service.accumulate = plan::Accumulate::kExact;
    job_.lora = {.rank = 4,
                 .alpha = 8,
                 .targets = {"attention", "*.1.mlp.*"},
                 .quantize = plan::Quantize::kNf4};
  }

  std::vector<plan::UnitSpec> Units() const {
    return plan::JobUnits(plan::ReadJobModel(job_).value(), job_.train);
  }
  // By unit: the model's weights.
  std::vector<std::vector<float>> Weights() const {
    const auto model = formats::HfModel::Open(job_.model).value();
    std::vector<std::vector<float>> weights;
    for (const plan::UnitSpec& unit : Units()) {
      weights.emplace_back(static_cast<size_t>(unit.count));
      if (unit.kind != plan::UnitKind::kAdapter) {
        EXPECT_TRUE(model->ReadUnit(unit.index, 0, weights.back()).ok());
      }
    }
    return weights;
  }
  // With blocks as NF4 gives them back.
  std::vector<std::vector<float>> Dequantised() const {
    std::vector<std::vector<float>> weights = Weights();
    const auto read = [&weights](int unit, int64_t offset, std::span<float> out) {
      const std::vector<float>& from = weights[static_cast<size_t>(unit)];
      std::copy_n(from.begin() + offset, out.size(), out.begin());
      return absl::OkStatus();
    };
    std::vector<std::vector<float>> given = weights;
    for (const plan::UnitSpec& unit : Units()) {
      if (unit.kind == plan::UnitKind::kBlock) {
        const plan::Nf4Partition whole(unit, 0, unit.count);
        std::vector<std::byte> wire(static_cast<size_t>(whole.bytes()));
        EXPECT_TRUE(whole.Encode(read, wire.data()).ok());
        whole.Decode(wire.data(), DType::kF32,
                     reinterpret_cast<std::byte*>(given[static_cast<size_t>(unit.index)].data()));
      }
    }
    return given;
  }
  // The same job on a model with those weights, which is in no NF4.
  plan::Job OnDequantisedModel() const {
    plan::Job job = job_;
    job.model = folder_ / "dequantised";
    job.lora.quantize = plan::Quantize::kNone;
    const auto read = [weights = Dequantised()](int unit, int64_t offset, std::span<float> out) {
      const std::vector<float>& from = weights[static_cast<size_t>(unit)];
      std::copy_n(from.begin() + offset, out.size(), out.begin());
      return absl::OkStatus();
    };
    EXPECT_TRUE(formats::WriteHfModel(job.model, formats::ReadModelSpec(job_.model).value(), read,
                                      {.dtype = DType::kF32})
                    .ok());
    return job;
  }
  static std::vector<double> Losses(const ClusterRun& run) {
    std::vector<double> losses;
    for (const proto::StepEvent& step : run.steps) {
      losses.push_back(step.loss());
    }
    return losses;
  }
  // What worker 0 has fetched.
  static int64_t BytesFetched(const ClusterRun& run) {
    const std::string name = "shoal_client_get_bytes_total{transport=\"shm\"} ";
    const size_t at = run.worker_metrics.find(name);
    return at == std::string::npos ? -1 : std::stoll(run.worker_metrics.substr(at + name.size()));
  }
};

TEST_F(Nf4Test, LearnsWhatIsLearntOnTheDequantisedModel) {
  const plan::Job dequantised = OnDequantisedModel();
  plan::Job original = job_;
  original.lora.quantize = plan::Quantize::kNone;
  for (const plan::Job& other : {dequantised, original}) {
    const ClusterRun run = Run({.servers = 2, .workers = 2});
    const ClusterRun expected = TrainToEnd(other, tokens_, {.servers = 2, .workers = 2});
    const bool same = other.model == dequantised.model;
    EXPECT_EQ(Losses(run) == Losses(expected), same);
    for (const plan::UnitSpec& unit : Units()) {
      const auto index = static_cast<size_t>(unit.index);
      const bool differs =
          !same && unit.kind != plan::UnitKind::kEmbedding && unit.kind != plan::UnitKind::kHead;
      EXPECT_EQ(run.weights[index] != expected.weights[index], differs) << unit.name;
    }
  }
}

TEST_F(Nf4Test, ExactModeGivesTheSameBitsAnywhere) {
  const ClusterRun alone = Run({.servers = 1, .workers = 1});
  for (const auto& [servers, workers] :
       {std::pair(1, 2), std::pair(2, 4), std::pair(3, 1), std::pair(3, 2)}) {
    SCOPED_TRACE(fmt::format("{} servers, {} workers", servers, workers));
    const ClusterRun run = Run({.servers = servers, .workers = workers});
    ExpectSameBits(run, alone);
    EXPECT_EQ(run.weights, alone.weights);
  }
  EXPECT_EQ(Run({.servers = 2, .workers = 3, .lost_worker = 1}).checksums, alone.checksums);
  // A block of 64 has the same values where partitions end within it.
  job_.service.partition_bytes = 1 << 10;
  const ClusterRun cut = Run({.servers = 2, .workers = 2});
  EXPECT_EQ(Losses(cut), Losses(alone));
  EXPECT_EQ(cut.weights, alone.weights);
}

// With two views for six blocks, too: each use waits for one.
TEST_F(Nf4Test, HowItIsFetchedDoesNotMatter) {
  plan::ModelSpec spec = *plan::NamedShape("tiny");
  spec.layers = 6;
  MakeModel(spec);
  job_.train.prefetch_units = 0;
  for (const plan::Synchronization synchronization :
       {plan::Synchronization::kStep, plan::Synchronization::kLayer}) {
    job_.train.synchronization = synchronization;
    const plan::Job dequantised = OnDequantisedModel();
    const ClusterRun expected = TrainToEnd(dequantised, tokens_, {.servers = 2, .workers = 2});
    for (const plan::Residency residency : {plan::Residency::kLayer, plan::Residency::kStep}) {
      job_.train.residency = residency;
      const ClusterRun run = Run({.servers = 2, .workers = 2});
      EXPECT_EQ(Losses(run), Losses(expected));
      EXPECT_EQ(run.weights, expected.weights);
    }
  }
}

TEST_F(Nf4Test, APipelineHasTheBitsOfSingleWorkers) {
  plan::ModelSpec spec = *plan::NamedShape("tiny");
  spec.layers = 6;
  MakeModel(spec);
  const ClusterRun single = Run({.servers = 2, .workers = 2});
  job_.cluster.pipeline = {.stages = 2,
                           .schedule = "1F1B",
                           .pace = {.forward_flops = 2e10,
                                    .backward_input_flops = 2e10,
                                    .backward_weights_flops = 2e10,
                                    .offload_bytes_per_second = 2e9,
                                    .reload_bytes_per_second = 2e9}};
  ExpectSameBits(Run({.servers = 2, .workers = 4}), single);
}

TEST_F(Nf4Test, IsFetchedOnceInFewerBytes) {
  job_.train.residency = plan::Residency::kStep;
  const std::vector<plan::UnitSpec> units = Units();
  const auto partitions = plan::BuildPartitions(units, job_.service.partition_bytes);
  const std::vector<int64_t> wire = plan::WireBytes(units, partitions, DType::kF32);
  int64_t blocks = 0;
  int64_t elements = 0;  // of blocks
  int64_t rest = 0;
  int64_t trained = 0;
  for (const plan::UnitSpec& unit : units) {
    const int64_t bytes = wire[static_cast<size_t>(unit.index)];
    if (unit.kind == plan::UnitKind::kBlock) {
      blocks += bytes;
      elements += unit.count;
    } else {
      (unit.frozen ? rest : trained) += bytes;
    }
  }
  EXPECT_LT(blocks, elements) << "a byte an element is more than NF4 and norms take";
  const ClusterRun run = Run({.servers = 2, .workers = 1});
  EXPECT_EQ(BytesFetched(run), blocks + rest + job_.train.steps * trained);
  EXPECT_EQ(run.weights[1], Dequantised()[1]);
}

TEST_F(Nf4Test, MovesWithItsServers) {
  job_.train.steps = 70;  // a wish has at most 64 waves
  job_.train.minibatch_samples = 1;
  const ClusterRun alone = Run({.servers = 1, .workers = 1});
  EXPECT_EQ(Losses(Run({.servers = 1, .workers = 2, .wanted_servers = 3})), Losses(alone));
  EXPECT_EQ(Losses(Run({.servers = 3, .workers = 2, .wanted_servers = 1})), Losses(alone));
}

TEST_F(Nf4Test, HasTheSameBitsOfReplicasWhereAServerIsLost) {
  const ClusterRun alone = Run({.servers = 1, .workers = 1});
  job_.service.replicas = 2;
  for (const bool read : {false, true}) {
    job_.service.read_replicas = read;
    const ClusterRun whole = Run({.servers = 3, .workers = 2});
    ExpectSameBits(whole, alone);
    EXPECT_EQ(whole.weights, alone.weights);
    for (const plan::Residency residency : {plan::Residency::kLayer, plan::Residency::kStep}) {
      job_.train.residency = residency;
      ExpectSameBits(Run({.servers = 3, .workers = 2, .lost_server = 1}), alone);
    }
  }
}

TEST_F(Nf4Test, ACheckpointHasTheModelAsItWas) {
  job_.checkpoint.every_steps = 4;
  Run({.servers = 2, .workers = 2});
  const auto newest = server::NewestCheckpoint(job_.checkpoint.directory);
  ASSERT_TRUE(newest.ok() && newest->has_value());
  const auto checkpoint = server::Checkpoint::Open((*newest)->path).value();
  EXPECT_EQ(checkpoint->manifest().spec, plan::ReadJobModel(job_).value());
  const std::vector<std::vector<float>> weights = Weights();
  for (const plan::UnitSpec& unit : Units()) {
    std::vector<float> saved(static_cast<size_t>(unit.count));
    ASSERT_TRUE(checkpoint->Read(server::Section::kMaster, unit.index, 0, saved).ok());
    if (unit.frozen) {
      EXPECT_EQ(saved, weights[static_cast<size_t>(unit.index)]) << unit.name;
    }
  }
}

}  // namespace
}  // namespace shoal::testing
