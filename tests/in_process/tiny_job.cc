#include "tests/in_process/tiny_job.h"

#include "core/base/bytes.h"
#include "core/model/huggingface/hf_model.h"

namespace shoal::testing {

TinyJobTest::TinyJobTest()
    : folder_(std::filesystem::path(::testing::TempDir()) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name()),
      tokens_(folder_ / "tokens") {
  std::filesystem::remove_all(folder_);
  std::filesystem::create_directories(folder_);
  job_.model = folder_ / "model";
  job_.data.train = tokens_;
  job_.train.learning_rate = 1e-2;
  // Where a gradient is all rounding its sign is chance, and without this so would the update be.
  job_.train.epsilon = 1e-4;
  job_.train.compute = plan::ComputeType::kFp32;
  job_.service.wire_type_auto = false;
  job_.service.partition_bytes = 16 << 10;
  job_.checkpoint.directory = folder_ / "checkpoints";
  job_.checkpoint.export_huggingface = false;
  MakeModel(*plan::NamedShape("tiny"));
  MakeSamples(40, 120);
}

TinyJobTest::~TinyJobTest() { std::filesystem::remove_all(folder_); }

void TinyJobTest::MakeModel(const plan::ModelSpec& spec) {
  std::filesystem::remove_all(job_.model);
  EXPECT_TRUE(formats::InitHfModel(job_.model, spec, /*seed=*/3, {}).ok());
  vocabulary_ = spec.vocabulary;
}

void TinyJobTest::MakeSamples(int64_t samples, int64_t max_tokens) {
  EXPECT_TRUE(WriteSyntheticTokens(tokens_, vocabulary_, samples, max_tokens, /*seed=*/5).ok());
  job_.data.max_sequence_tokens = RoundUp(max_tokens, 64);
  job_.data.microbatch_tokens = job_.data.max_sequence_tokens;
}

void TinyJobTest::ExpectSameBits(const ClusterRun& run, const ClusterRun& other) {
  ASSERT_FALSE(other.checksums.empty());
  EXPECT_EQ(run.checksums, other.checksums);
  ASSERT_EQ(run.steps.size(), other.steps.size());
  for (size_t i = 0; i < run.steps.size(); ++i) {
    EXPECT_EQ(run.steps[i].loss(), other.steps[i].loss()) << "step " << i + 1;
    EXPECT_EQ(run.steps[i].grad_norm(), other.steps[i].grad_norm()) << "step " << i + 1;
    EXPECT_EQ(run.steps[i].tokens(), other.steps[i].tokens());
    EXPECT_EQ(run.steps[i].target_tokens(), other.steps[i].target_tokens());
  }
}

void TinyJobTest::ExpectSame(const ClusterRun& run, const ReferenceRun& reference) {
  ASSERT_EQ(run.steps.size(), reference.losses.size());
  for (size_t i = 0; i < run.steps.size(); ++i) {
    EXPECT_NEAR(run.steps[i].loss(), reference.losses[i], 1e-5 * reference.losses[i]);
    EXPECT_NEAR(run.steps[i].grad_norm(), reference.grad_norms[i], 1e-4 * reference.grad_norms[i]);
  }
  ASSERT_EQ(run.weights.size(), reference.weights.size());
  for (size_t unit = 0; unit < run.weights.size(); ++unit) {
    ASSERT_EQ(run.weights[unit].size(), reference.weights[unit].size());
    for (size_t i = 0; i < run.weights[unit].size(); ++i) {
      ASSERT_NEAR(run.weights[unit][i], reference.weights[unit][i], 2e-5)
          << "unit " << unit << " element " << i;
    }
  }
}

}  // namespace shoal::testing
