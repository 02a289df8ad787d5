#include "server/coordinator/job/worker_kind.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;

Member WorkerOn(const std::string& instructions, const std::string& gpu) {
  Member worker;
  worker.role = proto::ROLE_WORKER;
  worker.facts.set_instructions(instructions);
  worker.facts.set_gpu(gpu);
  return worker;
}

TEST(WorkerKind, IsWhatItComputesOn) {
  plan::Job job;
  EXPECT_EQ(WorkerKind(WorkerOn("v4", ""), job), "CPU v4");
  EXPECT_EQ(WorkerKind(WorkerOn("", "H200"), job), "GPU H200");
  EXPECT_EQ(WorkerKind(WorkerOn("v4", "H200"), job), "GPU H200") << "as the job says";
  EXPECT_EQ(WorkerKind(WorkerOn("", ""), job), "");
  job.train.device = plan::DeviceKind::kCpu;
  EXPECT_EQ(WorkerKind(WorkerOn("v4", "H200"), job), "CPU v4");
  EXPECT_EQ(WorkerKind(WorkerOn("", "H200"), job), "GPU H200") << "it has no other";
  job.emulate.shape = "tiny";
  EXPECT_EQ(WorkerKind(WorkerOn("v4", ""), job), "");
}

TEST(CheckWorker, DropoutIsNotForGpus) {
  plan::Job job;
  job.lora.rank = 4;
  EXPECT_TRUE(CheckWorker(WorkerOn("v4", "H200"), job).ok());
  job.lora.dropout = 0.1;
  EXPECT_TRUE(CheckWorker(WorkerOn("v4", ""), job).ok());
  EXPECT_THAT(std::string(CheckWorker(WorkerOn("v4", "H200"), job).message()),
              EndsWith("computes on GPU H200, and lora.dropout is not for GPUs yet: leave it out, "
                       "or compute on CPUs"));
  job.train.device = plan::DeviceKind::kCpu;
  EXPECT_TRUE(CheckWorker(WorkerOn("v4", "H200"), job).ok());
  EXPECT_FALSE(CheckWorker(WorkerOn("", "H200"), job).ok()) << "it has no other";
}

// Of workers on CPUs: what is left.
std::vector<std::string> Kept(const std::vector<std::string>& instructions,
                              const std::string& kind = "") {
  std::vector<Member> workers;
  for (const std::string& of_one : instructions) {
    workers.push_back(WorkerOn(of_one, ""));
  }
  KeepOneKind({}, kind, workers);
  std::vector<std::string> kept;
  for (const Member& worker : workers) {
    kept.push_back(worker.facts.instructions());
  }
  return kept;
}

TEST(KeepOneKind, KeepsThatWhichMostHave) {
  EXPECT_THAT(Kept({"a", "b", "b"}), ElementsAre("b", "b"));
  EXPECT_THAT(Kept({"b", "a", "a", "b"}), ElementsAre("b", "b")) << "the first of those alike";
  EXPECT_THAT(Kept({"a", "", "b", "b"}), ElementsAre("", "b", "b")) << "who does not say";
  EXPECT_THAT(Kept({"a", "b", "b"}, "CPU a"), ElementsAre("a"));
  EXPECT_THAT(Kept({"b"}, "CPU a"), ElementsAre());
  EXPECT_THAT(Kept({}), ElementsAre());
}

}  // namespace
}  // namespace shoal::server
