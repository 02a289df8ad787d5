#include "worker/paced/emulated_stage.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/model/access/memory_unit_access.h"

namespace shoal::worker {
namespace {

// Sleeping advances it.
class TestClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void SleepFor(absl::Duration duration) override { now_ += duration; }

 private:
  absl::Time now_ = absl::UnixEpoch();
};

// Two stages with one chunk each, called in the order of a pipeline.
class EmulatedStageTest : public ::testing::Test {
 protected:
  static constexpr plan::ChunkBytes kBytes = {.activations = 192, .gradients = 100, .message = 64};

  EmulatedStageTest() {
    spec_.tied_embeddings = true;
    for (int stage = 0; stage < 2; ++stage) {
      stages_.push_back(MakeEmulatedStage(
          {.spec = spec_,
           .stage = stage,
           .shape = {.stages = 2},
           .split = {{0, 3}, {3, static_cast<int>(spec_.layers) - 1}},
           .cost =
               [](int, int, const PackedBatch& batch) {
                 return plan::ChunkCost{.forward = 1.0 * static_cast<double>(batch.token_count()),
                                        .backward_input = 10,
                                        .backward_weights = 100};
               },
           .bytes = [](int, int, const PackedBatch&) { return kBytes; }},
          clock_));
    }
    batches_.resize(2);
    batches_[0].AppendNextToken(std::vector<int32_t>{1, 2, 3});
    batches_[1].AppendNextToken(std::vector<int32_t>{4, 5});
    for (const auto& stage : stages_) {
      EXPECT_TRUE(stage->BeginStep(batches_, 0.25, source_, sink_).ok());
    }
  }

  absl::Status RunForwards() {
    if (absl::Status first = stages_[0]->Forward(0, 0, saved_[0].data(), nullptr, message_.data());
        !first.ok()) {
      return first;
    }
    return stages_[1]->Forward(0, 0, saved_[1].data(), message_.data(), nullptr);
  }
  absl::Status RunBackwards() {
    if (absl::Status last = stages_[1]->Backward(0, 0, saved_[1].data(), nullptr, gradient_.data());
        !last.ok()) {
      return last;
    }
    if (absl::Status input = stages_[0]->BackwardInput(0, 0, saved_[0].data(), left_.data(),
                                                       gradient_.data(), nullptr);
        !input.ok()) {
      return input;
    }
    return stages_[0]->BackwardWeights(0, 0, saved_[0].data(), left_.data());
  }

  plan::ModelSpec spec_ = *plan::NamedShape("tiny");
  const std::vector<plan::UnitSpec> units_ = plan::BuildUnits(spec_);
  TestClock clock_;
  MemoryUnitSource source_ = *MemoryUnitSource::Load(
      units_, DType::kF32, [](int, int64_t, std::span<float>) { return absl::OkStatus(); });
  MemoryGradientSink sink_{units_};
  std::vector<std::unique_ptr<StageModel>> stages_;
  std::vector<PackedBatch> batches_;
  std::vector<std::byte> saved_[2] = {std::vector<std::byte>(192), std::vector<std::byte>(192)};
  std::vector<std::byte> left_ = std::vector<std::byte>(100);
  std::vector<std::byte> message_ = std::vector<std::byte>(64);
  std::vector<std::byte> gradient_ = std::vector<std::byte>(64);
};

TEST_F(EmulatedStageTest, TakesTheTimeItIsGivenAndContributesEachUnit) {
  ASSERT_TRUE(RunForwards().ok());
  EXPECT_EQ(clock_.Now() - absl::UnixEpoch(), absl::Seconds(6));
  ASSERT_TRUE(RunBackwards().ok());
  EXPECT_EQ(clock_.Now() - absl::UnixEpoch(), absl::Seconds(226));
  EXPECT_EQ(source_.held(), 0);
  for (const plan::UnitSpec& unit : units_) {
    EXPECT_THAT(sink_.gradient(unit.index), testing::Each(0.25F * 2)) << unit.name;
  }
  // The embedding's matrix is also the head's.
  EXPECT_EQ(std::ranges::count(sink_.done(), 0), 2);
  EXPECT_EQ(sink_.done().size(), units_.size() + 1);
  EXPECT_EQ(stages_[1]->result(0).loss_sum, 2);
  EXPECT_EQ(stages_[0]->result(0).loss_sum, 0);
  EXPECT_EQ(stages_[0]->result(1).tokens, 2);
}

TEST_F(EmulatedStageTest, NoticesEveryByteThatIsNotAsItWasLeft) {
  const auto spoiled = [&](std::vector<std::byte>& memory, size_t at) {
    const std::byte before = memory[at];
    memory[at] ^= std::byte{4};
    const absl::Status status = RunBackwards();
    memory[at] = before;
    return status;
  };
  ASSERT_TRUE(RunForwards().ok());
  for (size_t at = 0; at < 192; at += 37) {
    EXPECT_TRUE(absl::IsDataLoss(spoiled(saved_[0], at)));
    EXPECT_TRUE(absl::IsDataLoss(spoiled(saved_[1], at)));
  }
  EXPECT_EQ(spoiled(saved_[1], 191).message(),
            "what its forward saved is not what was made: it differs from byte 184 of 192 on");
  ASSERT_TRUE(RunBackwards().ok());
  left_[99] ^= std::byte{1};
  EXPECT_TRUE(absl::IsDataLoss(stages_[0]->BackwardWeights(0, 0, saved_[0].data(), left_.data())));
  gradient_[3] ^= std::byte{1};
  EXPECT_TRUE(absl::IsDataLoss(
      stages_[0]->BackwardInput(0, 0, saved_[0].data(), left_.data(), gradient_.data(), nullptr)));
  // Another microbatch's message.
  EXPECT_TRUE(
      absl::IsDataLoss(stages_[1]->Forward(0, 1, saved_[1].data(), message_.data(), nullptr)));
}

}  // namespace
}  // namespace shoal::worker
