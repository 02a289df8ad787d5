#include "core/plan/pipeline/least_recompute.h"

#include <string>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

using ::testing::HasSubstr;

class SettleRecomputeTest : public testing::Test {
 protected:
  SettleRecomputeTest() {
    job_.data.microbatch_tokens = 8192;
    job_.train.device = DeviceKind::kCpu;
    job_.train.compute = ComputeType::kFp32;
    job_.cluster.workers = 2;
  }

  // Of all processes, with the steps of single workers.
  int64_t Needed() const { return PlanMemory(spec_, job_, 1, 2, {})->total(); }
  int64_t NeededOfAGpu() const {
    return PlanMemory(spec_, job_, 1, 2, {})->stages.front().gpu.total();
  }
  absl::Status Settle(const MemoryBudget& budget) {
    const Job before = job_;
    const absl::StatusOr<std::string> line = SettleRecompute(spec_, job_, budget);
    line_ = line.ok() ? *line : "";
    EXPECT_EQ(line_.empty(), job_ == before) << line_;
    return line.status();
  }

  const ModelSpec spec_ = *NamedShape("25m");
  Job job_;
  std::string line_;
};

TEST_F(SettleRecomputeTest, LeavesAJobThatFits) {
  ASSERT_TRUE(Settle({}).ok());
  ASSERT_TRUE(Settle({.machine_bytes = Needed()}).ok());
  EXPECT_EQ(line_, "");
  EXPECT_FALSE(job_.cluster.pipeline.enabled());
}

// The less memory there is, the more is recomputed, until nothing helps.
TEST_F(SettleRecomputeTest, TakesTheLeastOnCpusThatFits) {
  const Job open = job_;
  const int64_t all = Needed();
  const auto of = [&](double share) {
    job_ = open;
    return Settle({.machine_bytes = static_cast<int64_t>(share * static_cast<double>(all))});
  };
  ASSERT_TRUE(of(0.95).ok());
  EXPECT_EQ(job_.cluster.pipeline.recompute, Recompute::kLight);
  EXPECT_EQ(job_.cluster.pipeline.offload.value, 0);
  EXPECT_THAT(line_, HasSubstr("train.recompute: light, the least that fits"));
  ASSERT_TRUE(of(0.6).ok());
  EXPECT_EQ(job_.cluster.pipeline.recompute, Recompute::kFull);
  EXPECT_TRUE(job_.cluster.pipeline.enabled());
  const absl::Status none = of(0.2);
  EXPECT_TRUE(absl::IsResourceExhausted(none));
  EXPECT_THAT(Message(none), HasSubstr("even with train.recompute: full: the job needs"));
}

TEST_F(SettleRecomputeTest, KeepsToWhatTheJobSays) {
  const Job open = job_;
  const int64_t less = Needed() * 6 / 10;
  const auto refused = [&] {
    const bool kept = absl::IsResourceExhausted(Settle({.machine_bytes = less}));
    job_ = open;
    return kept;
  };
  job_.cluster.pipeline.recompute = Recompute::kNone;
  EXPECT_TRUE(refused());
  job_.plan.assignment = Assignment::kDynamic;
  EXPECT_TRUE(refused());
  job_.train.synchronization = Synchronization::kLayer;
  EXPECT_TRUE(refused());
  EXPECT_TRUE(Settle({.machine_bytes = less}).ok());
}

TEST_F(SettleRecomputeTest, LeavesTheChoiceOnAGpuToABudget) {
  job_.train.device = DeviceKind::kCuda;
  const int64_t all = NeededOfAGpu();
  ASSERT_TRUE(Settle({.gpu_bytes = all}).ok());
  EXPECT_FALSE(job_.cluster.pipeline.enabled());
  EXPECT_TRUE(absl::IsResourceExhausted(Settle({.machine_bytes = kMiB, .gpu_bytes = all / 2})))
      << "of the host's memory it takes nothing";
  ASSERT_TRUE(Settle({.gpu_bytes = all / 2}).ok());
  EXPECT_GT(job_.cluster.pipeline.device_memory, 0);
  EXPECT_LT(job_.cluster.pipeline.device_memory, all / 2);
  EXPECT_FALSE(job_.cluster.pipeline.recompute.has_value());
  EXPECT_TRUE(absl::IsResourceExhausted([&] {
    job_.cluster.pipeline = {};
    return Settle({.gpu_bytes = kMiB});
  }()));
}

}  // namespace
}  // namespace shoal::plan
