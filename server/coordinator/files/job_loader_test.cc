// A job read from real files: model folder, token file, checkpoint folder.
#include "server/coordinator/files/job_loader.h"

#include <filesystem>
#include <set>

#include "core/base/file.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/data/token_file.h"
#include "core/job/job_model.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/partition.h"
#include "core/plan/step/emulation.h"
#include "gmock/gmock.h"
#include "server/checkpoint/shard_file.h"

namespace shoal::server {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSamples = 40;

class JobLoaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(formats::InitHfModel(folder_ / "model", spec_, 1, {}));
    WriteTokens(spec_.vocabulary);
    job_.model = folder_ / "model";
    job_.data.train = folder_ / "train.jsonl";
    job_.data.max_sequence_tokens = 64;
    job_.data.microbatch_tokens = 64;
    job_.train.steps = 20;
    job_.train.minibatch_samples = 8;
    job_.checkpoint.directory = folder_ / "checkpoints";
    job_.checkpoint.keep = 2;
  }

  void WriteTokens(int64_t vocabulary, bool pairs = false) {
    auto writer = formats::TokenFileWriter::Create(folder_ / "tokens", vocabulary, 7);
    ASSERT_OK(writer.status());
    Random random(3);
    for (int64_t sample = 0; sample < kSamples; ++sample) {
      formats::TokenSample one;
      one.tokens.resize(static_cast<size_t>(random.Between(4, 60)), 1);
      one.labels.resize(one.tokens.size(), 1);
      one.labels.back() = formats::kIgnoredLabel;
      if (pairs) {
        one.labels[1] = formats::kIgnoredLabel;
        one.chosen = {.tokens = 2, .targets = 1};
      }
      ASSERT_OK((*writer)->Add(one));
    }
    ASSERT_OK((*writer)->Finish());
  }

  absl::StatusOr<LoadedJob> Load(int64_t stop_after = 0,
                                 const std::optional<proto::PipelinePlan>& pipeline = {}) {
    proto::SubmitJobRequest request;
    *request.mutable_job() = plan::ToMessage(job_);
    request.set_token_file(folder_ / "tokens");
    request.set_stop_after_step(stop_after);
    if (pipeline.has_value()) {
      *request.mutable_pipeline() = *pipeline;
    }
    return LoadJob(request, workers_);
  }

  // Of zeros, in the folder of a checkpoint.
  static proto::CheckpointShard WriteShard(const std::string& path, int64_t step,
                                           const std::vector<plan::PartitionSpec>& partitions) {
    const auto writer = ShardWriter::Create(path, 0, step, partitions).value();
    for (const plan::PartitionSpec& partition : partitions) {
      const std::vector<float> zeros(static_cast<size_t>(partition.count), 0.0F);
      const auto moments = std::span(zeros).first(static_cast<size_t>(partition.trained()));
      EXPECT_TRUE(writer->Add(zeros, moments, moments).ok());
    }
    const ShardEntry entry = writer->Finish().value();
    proto::CheckpointShard shard;
    shard.set_file(entry.file);
    shard.set_bytes(entry.bytes);
    shard.set_hash(entry.hash);
    shard.mutable_partitions()->Assign(entry.partitions.begin(), entry.partitions.end());
    return shard;
  }
  void WriteCheckpoint() {
    const LoadedJob loaded = Load().value();
    ASSERT_OK(loaded.checkpoints->Take({}, false));
    const std::string path = loaded.checkpoints->Create(1).value();
    ASSERT_OK(
        loaded.checkpoints->Finish({.step = 1}, {WriteShard(path, 1, loaded.pushes.partitions)})
            .status());
  }
  // What is wrong with the job's going on from its newest checkpoint; empty: nothing.
  std::string Refusal() {
    const auto newest = Load().value().checkpoints->Newest();
    EXPECT_TRUE(!newest.ok() || (newest->has_value() && (*newest)->step == 1));
    return std::string(Message(newest.status()));
  }

  const TemporaryFolder folder_;
  const plan::ModelSpec spec_ = *plan::NamedShape("tiny");
  plan::Job job_;
  int64_t workers_ = 0;  // registered
};

// Expects the first step's first microbatch to cost what `expected` says.
void ExpectCost(const LoadedJob& loaded, const PlanInputs& inputs,
                const plan::CostModel& expected) {
  const auto plan = loaded.steps->Plan(1, inputs);
  ASSERT_OK(plan.status());
  const plan::Microbatch& first = plan->workers.at(0).at(0);
  EXPECT_DOUBLE_EQ(first.cost, expected.Microbatch(first.tokens, first.squared_tokens));
}

TEST_F(JobLoaderTest, PlansAsTheJobAndTheMeasurementsSay) {
  ExpectCost(*Load(), {.groups = 3}, plan::FlopCost(spec_));
  const plan::CostModel fitted = {.per_microbatch = 2, .per_token = 3};
  ExpectCost(*Load(), {.groups = 3, .cost = fitted}, fitted);
  job_.emulate.shape = "1.5b";
  ExpectCost(*Load(), {.groups = 3}, plan::DevicePace(job_.emulate).cost());
  job_.plan.cost = plan::CostSource::kTokens;
  ExpectCost(*Load(), {.groups = 3}, plan::TokenCost());
  job_.plan.assignment = plan::Assignment::kNative;
  job_.train.synchronization = plan::Synchronization::kLayer;
  const auto loaded = Load();
  const auto plan = loaded->steps->Plan(1, {.groups = 3});
  ASSERT_OK(plan.status());
  for (const auto& worker : plan->workers) {
    EXPECT_EQ(worker.size(), 3U);  // 8 samples dealt to 3 workers, the last one padded
    EXPECT_LE(worker[0].samples.size(), 1U);
  }
  EXPECT_TRUE(plan->workers[2].back().empty());
}

TEST_F(JobLoaderTest, PlansPairsWithTheForwardPassThatTheyAreComparedWith) {
  job_.train.objective = plan::Objective::kDpo;
  job_.preference.reference = plan::Reference::kAdapterOff;
  job_.lora.rank = 4;
  WriteTokens(spec_.vocabulary, /*pairs=*/true);
  const plan::ModelSpec adapted = *plan::WithJobAdapters(spec_, job_);
  const plan::CostModel cost = plan::FlopCost(job_, adapted);
  EXPECT_GT(cost.per_token, plan::FlopCost(adapted).per_token);
  const auto loaded = Load();
  ASSERT_OK(loaded.status());
  ExpectCost(*loaded, {.groups = 3}, cost);
  EXPECT_EQ(loaded->flops, cost);
}

TEST_F(JobLoaderTest, ChoosesAPipelineForTheWorkersThatTakePart) {
  EXPECT_FALSE(Load()->pipeline.has_value());
  job_.cluster.local = false;
  job_.cluster.coordinator = "reef:4000";
  job_.cluster.workers = 0;
  job_.cluster.pipeline.stages = 2;
  EXPECT_THAT(Describe(Load().status()), testing::HasSubstr("cluster.pipeline.pace"));
  job_.cluster.pipeline.pace = {
      .forward_flops = 1e9, .backward_input_flops = 1e9, .backward_weights_flops = 1e9};
  workers_ = 2;
  const auto one_group = Load();
  ASSERT_OK(one_group.status());
  EXPECT_EQ(one_group->pipeline->split_size(), 2 * one_group->pipeline->chunks());
  EXPECT_EQ(one_group->pipeline->tokens(), job_.data.microbatch_tokens);
  workers_ = 9;  // four groups, one left over
  const auto four_groups = Load();
  ASSERT_OK(four_groups.status());
  EXPECT_LT(four_groups->pipeline->microbatches(), one_group->pipeline->microbatches());
  job_.cluster.workers = 2;  // as the job says
  EXPECT_EQ(Load()->pipeline->microbatches(), one_group->pipeline->microbatches());
  // The submitter may have planned it.
  proto::PipelinePlan submitted = *one_group->pipeline;
  submitted.set_microbatches(1);
  EXPECT_EQ(Load(0, submitted)->pipeline->microbatches(), 1);
  submitted.mutable_split()->RemoveLast();
  EXPECT_THAT(Describe(Load(0, submitted).status()), testing::HasSubstr("the split has"));
}

TEST_F(JobLoaderTest, PlansTheMinibatchesOfTheDataset) {
  const auto loaded = Load();
  ASSERT_OK(loaded.status());
  EXPECT_EQ(loaded->last_step, 20);
  std::multiset<int64_t> pass;
  for (int64_t step = 1; step <= 5; ++step) {  // one data pass
    const auto plan = loaded->steps->Plan(step, {.groups = 3});
    ASSERT_OK(plan.status());
    EXPECT_EQ(plan->workers.size(), 3U);
    EXPECT_EQ(*plan, *loaded->steps->Plan(step, {.groups = 3}));
    for (const auto& worker : plan->workers) {
      for (const plan::Microbatch& microbatch : worker) {
        EXPECT_LE(microbatch.tokens, 64);
        pass.insert(microbatch.samples.begin(), microbatch.samples.end());
      }
    }
    EXPECT_EQ(loaded->steps->LearningRate(step), plan::LearningRateAt(job_.train, step));
  }
  EXPECT_EQ(pass.size(), static_cast<size_t>(kSamples));
  EXPECT_EQ(std::set<int64_t>(pass.begin(), pass.end()).size(), static_cast<size_t>(kSamples));
}

TEST_F(JobLoaderTest, PlacesAllPartitionsForAnyNumberOfServers) {
  const auto loaded = Load();
  ASSERT_OK(loaded.status());
  const size_t partitions =
      plan::BuildPartitions(plan::BuildUnits(spec_), job_.service.partition_bytes).size();
  for (const int servers : {1, 2, 3}) {
    const plan::ShardMap map = loaded->place_shards(servers);
    EXPECT_EQ(map.generation, 1);
    EXPECT_EQ(map.servers.size(), partitions);
  }
}

TEST_F(JobLoaderTest, StopsWhereAskedWithinTheSchedule) {
  EXPECT_EQ(Load(7)->last_step, 7);
  EXPECT_THAT(std::string(Message(Load(21).status())), HasSubstr("train.steps is 20"));
  EXPECT_FALSE(Load(-1).ok());
}

TEST_F(JobLoaderTest, NamesWhatIsWrong) {
  WriteTokens(spec_.vocabulary + 1);
  EXPECT_THAT(std::string(Message(Load().status())),
              HasSubstr("prepare the data with the model's own tokenizer"));
  job_.model = folder_ / "absent";
  EXPECT_THAT(std::string(Message(Load().status())), HasSubstr(folder_ / "absent"));
}

TEST_F(JobLoaderTest, CheckpointsBecomeCompleteAndOldOnesGo) {
  auto loaded = Load();
  ASSERT_OK(loaded.status());
  CheckpointFiles& files = *loaded->checkpoints;
  EXPECT_FALSE(files.Newest()->has_value());
  ASSERT_OK(files.Take({}, false));
  const auto partitions =
      plan::BuildPartitions(plan::BuildUnits(spec_), job_.service.partition_bytes);
  for (int64_t step = 1; step <= 4; ++step) {
    const auto path = files.Create(step);
    ASSERT_OK(path.status());
    const proto::CheckpointShard shard = WriteShard(*path, step, partitions);
    EXPECT_EQ(files.Newest()->has_value(), step > 1);  // no manifest, no checkpoint
    const auto complete =
        files.Finish({.step = step, .loss = 0.5 * static_cast<double>(step), .base = 1}, {shard});
    ASSERT_OK(complete.status());
    EXPECT_EQ(*complete, (*files.Newest())->path);
    ASSERT_TRUE(files.Newest()->has_value());
    EXPECT_EQ((*files.Newest())->step, step);
    EXPECT_EQ((*files.Newest())->loss, 0.5 * static_cast<double>(step));
  }
  EXPECT_EQ(files.Find(3), folder_ / "checkpoints/step-00000003");
  EXPECT_EQ(files.Find(2), "");
  EXPECT_NE(files.Find(1), "") << "servers read what is frozen from it";
  EXPECT_FALSE(std::filesystem::exists(folder_ / "checkpoints/step-00000002"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "checkpoints/step-00000003/job.yaml"));
  // Refuses the same folder with another model.
  ASSERT_OK(formats::InitHfModel(folder_ / "other", *plan::NamedShape("6m"), 1, {}));
  job_.model = folder_ / "other";
  WriteTokens(10);
  const auto other = Load();
  ASSERT_OK(other.status());
  EXPECT_THAT(std::string(Message(other->checkpoints->Newest().status())),
              HasSubstr("another model"));
}

TEST_F(JobLoaderTest, ACheckpointOfAdaptersGoesOnWithTheFilesThatItNames) {
  job_.lora = {.rank = 4, .alpha = 8, .targets = {"attention"}};
  job_.service.frozen = plan::Frozen::kAuto;  // of a local job
  WriteCheckpoint();
  EXPECT_EQ(Refusal(), "");
  const std::string path = folder_ / "checkpoints/step-00000001";
  EXPECT_THAT(ReadFile(path + "/job.yaml").value(), HasSubstr("frozen: files"));
  job_.service.frozen = plan::Frozen::kFiles;
  EXPECT_EQ(Refusal(), "");
  const auto of_another_model = [&](const std::string& file) {
    return fmt::format(
        "{} is of adapters beside another model: {}/{} is not the file that they were trained "
        "with; put that model there, or name another checkpoint.directory",
        path, job_.model, file);
  };

  job_.model = folder_ / "copy";  // the same files elsewhere
  std::filesystem::copy(folder_ / "model", job_.model);
  EXPECT_EQ(Refusal(), "");
  const std::string file = job_.model + "/model.safetensors";
  std::string content = ReadFile(file).value();
  content.back() ^= 1;
  ASSERT_OK(WriteFileAtomically(file, content));
  EXPECT_EQ(Refusal(), of_another_model("model.safetensors"));

  job_.model = folder_ / "pieces";  // the same weights in other files
  ASSERT_OK(formats::InitHfModel(job_.model, spec_, 1, {.max_file_bytes = 64 << 10}));
  EXPECT_THAT(Refusal(), HasSubstr(fmt::format("{}/model-00001-of-", job_.model)));

  job_.model = folder_ / "model";
  job_.lora.alpha = 16;
  EXPECT_EQ(Refusal(), path +
                           " is a checkpoint of other adapters than lora.* of the job says; take "
                           "back what its job.yaml says, or name another checkpoint.directory");
}

TEST_F(JobLoaderTest, GoesOnWithTheFilesThatItsEarlierLifeBeganWith) {
  const auto fingerprint = [](const LoadedJob& loaded) {
    return loaded.request.model_files(0).fingerprint();
  };
  EXPECT_TRUE(Load()->request.model_files().empty()) << "servers have the model";
  job_.lora = {.rank = 4, .alpha = 8, .targets = {"attention"}};
  job_.service.frozen = plan::Frozen::kFiles;
  const LoadedJob first = Load().value();
  ASSERT_OK(formats::InitHfModel(job_.model, spec_, 2, {}));
  EXPECT_EQ(fingerprint(LoadJob(first.request, workers_).value()), fingerprint(first));
  EXPECT_NE(fingerprint(Load().value()), fingerprint(first));
}

TEST_F(JobLoaderTest, ACheckpointGoesOnWithTheModelWhereItWas) {
  job_.lora = {.rank = 4, .alpha = 8, .targets = {"attention"}};
  for (const auto& [before, after, what, say] :
       {std::tuple(plan::Frozen::kServers, plan::Frozen::kFiles, "the model beside adapters",
                   "servers"),
        std::tuple(plan::Frozen::kFiles, plan::Frozen::kServers, "adapters without their model",
                   "files")}) {
    std::filesystem::remove_all(job_.checkpoint.directory);
    job_.service.frozen = before;
    WriteCheckpoint();
    EXPECT_EQ(Refusal(), "");
    job_.service.frozen = after;
    EXPECT_EQ(Refusal(), fmt::format("{}/step-00000001 has {}: say service.frozen: {}, as its "
                                     "job.yaml does, or name another checkpoint.directory",
                                     job_.checkpoint.directory, what, say));
  }
}

}  // namespace
}  // namespace shoal::server
