// Workers that read the model beside their adapters from its files (service.frozen): they learn,
// bit for bit, what they learn with a model from servers, which then have none of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/job/job_model.h"
#include "core/job/job_units.h"
#include "core/job/model_files_message.h"
#include "core/model/huggingface/hf_model.h"
#include "fmt/format.h"
#include "server/checkpoint/checkpoint.h"
#include "tests/in_process/tiny_job.h"
#include "worker/job/job_context.h"

namespace shoal::testing {
namespace {

using ::testing::HasSubstr;

class FrozenFilesTest : public TinyJobTest {
 protected:
  FrozenFilesTest() {
    job_.train.steps = 4;
    job_.train.minibatch_samples = 12;
    job_.service.accumulate = plan::Accumulate::kExact;
    job_.service.frozen = plan::Frozen::kFiles;
    job_.lora = {.rank = 4, .alpha = 8, .targets = {"attention", "*.1.mlp.*"}};
  }

  std::vector<plan::UnitSpec> Units() const {
    return plan::JobUnits(plan::ReadJobModel(job_).value(), job_.train);
  }
  ClusterRun RunWithModelFromServers(const ClusterOptions& options) const {
    plan::Job job = job_;
    job.service.frozen = plan::Frozen::kServers;
    return TrainToEnd(job, tokens_, options);
  }
  static void ExpectRefused(const absl::Status& status, const std::string& text) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(Message(status)), HasSubstr(text));
  }
  static void ExpectSameTraining(const ClusterRun& run, const ClusterRun& other) {
    ASSERT_EQ(run.steps.size(), other.steps.size());
    for (size_t i = 0; i < run.steps.size(); ++i) {
      EXPECT_EQ(run.steps[i].loss(), other.steps[i].loss()) << "step " << i + 1;
      EXPECT_EQ(run.steps[i].grad_norm(), other.steps[i].grad_norm()) << "step " << i + 1;
    }
    EXPECT_EQ(run.weights, other.weights);
  }
};

TEST_F(FrozenFilesTest, GiveTheBitsThatServersGive) {
  for (const DType wire : {DType::kF32, DType::kBF16}) {
    job_.service.wire_type = wire;
    const ClusterRun expected = RunWithModelFromServers({.servers = 1, .workers = 1});
    for (const plan::Residency residency : {plan::Residency::kLayer, plan::Residency::kStep}) {
      job_.train.residency = residency;
      for (const auto& [servers, workers] : {std::pair(1, 1), std::pair(2, 2), std::pair(3, 2)}) {
        SCOPED_TRACE(fmt::format("{}, {} servers, {} workers", Name(wire), servers, workers));
        ExpectSameTraining(Run({.servers = servers, .workers = workers}), expected);
      }
    }
  }
}

TEST_F(FrozenFilesTest, GiveTheBitsThatServersGiveInBf16) {
  job_.train.compute = plan::ComputeType::kBf16;
  for (const DType wire : {DType::kF32, DType::kBF16}) {
    job_.service.wire_type = wire;
    ExpectSameTraining(Run({.servers = 2, .workers = 1}),
                       RunWithModelFromServers({.servers = 2, .workers = 1}));
  }
}

TEST_F(FrozenFilesTest, AreReadAtEachLayerOfABaselineAndByStages) {
  const auto expect_same = [this] {
    ExpectSameTraining(Run({.servers = 2, .workers = 2}),
                       RunWithModelFromServers({.servers = 2, .workers = 2}));
  };
  job_.train.synchronization = plan::Synchronization::kLayer;
  expect_same();
  job_.train.synchronization = plan::Synchronization::kStep;
  job_.cluster.pipeline = {.stages = 2,
                           .schedule = "1F1B",
                           .pace = {.forward_flops = 2e10,
                                    .backward_input_flops = 2e10,
                                    .backward_weights_flops = 2e10,
                                    .offload_bytes_per_second = 2e9,
                                    .reload_bytes_per_second = 2e9}};
  expect_same();
}

TEST_F(FrozenFilesTest, NothingOfThemIsFetched) {
  int64_t trained = 0;
  for (const plan::UnitSpec& unit : Units()) {
    EXPECT_EQ(unit.from_files, unit.kind != plan::UnitKind::kAdapter) << unit.name;
    trained += unit.from_files ? 0 : unit.count;
  }
  job_.train.residency = plan::Residency::kStep;
  const ClusterRun run = Run({.servers = 2, .workers = 1});
  EXPECT_THAT(run.worker_metrics,
              HasSubstr(fmt::format("shoal_client_get_bytes_total{{transport=\"shm\"}} {}\n",
                                    4 * job_.train.steps * trained)));
}

TEST_F(FrozenFilesTest, ServersComeAndGo) {
  job_.train.steps = 70;  // a wish has at most 64 waves
  job_.train.minibatch_samples = 1;
  job_.service.partition_bytes = 1 << 10;  // adapters have several
  const ClusterRun alone = Run({.servers = 1, .workers = 1});
  for (const auto& [servers, wanted] : {std::pair(1, 3), std::pair(3, 1)}) {
    const ClusterRun run = Run({.servers = servers, .workers = 2, .wanted_servers = wanted});
    ASSERT_EQ(run.steps.size(), alone.steps.size());
    EXPECT_EQ(run.steps.back().loss(), alone.steps.back().loss());
  }
}

TEST_F(FrozenFilesTest, HaveTheSameBitsOfReplicasWhereAServerIsLost) {
  job_.service.partition_bytes = 1 << 10;  // all servers hold some of the adapters
  const ClusterRun expected = RunWithModelFromServers({.servers = 1, .workers = 1});
  const ClusterRun alone = Run({.servers = 1, .workers = 1});
  ExpectSameTraining(alone, expected);
  job_.service.replicas = 2;
  for (const bool read : {false, true}) {
    job_.service.read_replicas = read;
    const ClusterRun whole = Run({.servers = 3, .workers = 2});
    ExpectSameTraining(whole, expected);
    ExpectSameBits(whole, alone);
    ExpectSameBits(Run({.servers = 3, .workers = 2, .lost_server = 1}), alone);
  }
}

// A checkpoint has the adapters alone, and reads the rest from the model.
TEST_F(FrozenFilesTest, ACheckpointNamesTheModel) {
  job_.checkpoint.every_steps = 4;
  const ClusterRun run = Run({.servers = 2, .workers = 2});
  const auto newest = server::NewestCheckpoint(job_.checkpoint.directory).value();
  ASSERT_TRUE(newest.has_value());
  const auto read = [&](int unit, std::span<float> out) {
    return server::Checkpoint::Open(newest->path)
        .value()
        ->Read(server::Section::kMaster, unit, 0, out);
  };
  int64_t held = 0;
  for (const plan::UnitSpec& unit : Units()) {
    held += unit.from_files ? 0 : unit.count;
    std::vector<float> saved(static_cast<size_t>(unit.count));
    ASSERT_TRUE(read(unit.index, saved).ok());
    EXPECT_EQ(saved, run.weights[static_cast<size_t>(unit.index)]) << unit.name;
  }
  EXPECT_LT(newest->bytes, 12 * held + 64 * 1024);
  const std::string file = job_.model + "/model.safetensors";
  std::string content = ReadFile(file).value();
  content.back() ^= 1;
  ASSERT_TRUE(WriteFileAtomically(file, content).ok());
  std::vector<float> one(1);
  ExpectRefused(read(0, one), newest->path +
                                  " holds adapters alone, put the model that they were "
                                  "trained with back in its folder: " +
                                  file + " is another file than the job's");
}

TEST_F(FrozenFilesTest, GoOnFromACheckpoint) {
  job_.train.schedule = plan::LearningRateSchedule::kConstant;
  const ClusterRun undisturbed = Run({.servers = 2, .workers = 1});
  plan::Job first = job_;
  first.train.steps = 2;
  first.checkpoint.every_steps = 2;
  TrainToEnd(first, tokens_, {.servers = 2, .workers = 2});
  const auto rest = Train(job_, tokens_, {.servers = 3, .workers = 1, .resume = true});
  ASSERT_TRUE(rest.ok()) << rest.status();
  ASSERT_EQ(rest->steps.size(), 2U);
  EXPECT_EQ(rest->steps[0].loss(), undisturbed.steps[2].loss());
  EXPECT_EQ(rest->steps[1].loss(), undisturbed.steps[3].loss());
  EXPECT_EQ(rest->weights, undisturbed.weights);
}

TEST_F(FrozenFilesTest, AWorkerWithOthersIsRefused) {
  proto::JoinJobReply join;
  *join.mutable_job() = plan::ToMessage(job_);
  join.set_token_file(tokens_);
  join.set_workers(1);
  join.add_servers()->set_index(0);
  plan::AddTo(formats::ReadFiles(job_.model).value(), *join.mutable_model_files());
  const auto make = [&] {
    worker::OpenedDevice opened;
    return worker::MakeJobContext(join, {}, nullptr, nullptr, nullptr, &opened).status();
  };
  EXPECT_TRUE(make().ok());
  const std::string file = job_.model + "/model.safetensors";
  const std::string content = ReadFile(file).value();
  std::string other = content;
  other.back() ^= 1;
  ASSERT_TRUE(WriteFileAtomically(file, other).ok());
  const std::string what_to_do =
      "; with service.frozen: files workers read the job's model themselves: copy it to that path "
      "of this machine, or say service.frozen: servers";
  ExpectRefused(make(), file + " is another file than the job's of that name (of the same size)" +
                            what_to_do);
  std::filesystem::remove(file);
  ExpectRefused(make(), "cannot open " + file + ": No such file or directory" + what_to_do);
  ASSERT_TRUE(WriteFileAtomically(file, content).ok());
  EXPECT_TRUE(make().ok());
}

}  // namespace
}  // namespace shoal::testing
