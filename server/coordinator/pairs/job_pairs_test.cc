#include "server/coordinator/pairs/job_pairs.h"

#include <cmath>
#include <limits>

#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Loss = plan::PreferenceLoss;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// Two packs: of pairs 1 and 0, and of pair 2, each with 10 tokens and 3 targets.
plan::StepPlan TwoPacks() {
  plan::StepPlan plan;
  plan.workers = {{{.samples = {2}, .tokens = 10, .targets = 3, .number = 1}},
                  {{.samples = {1, 0}, .tokens = 20, .targets = 6, .number = 0}}};
  return plan;
}

plan::PackLedger Done(const plan::StepPlan& plan, std::vector<double> first,
                      std::vector<double> second) {
  plan::PackLedger ledger(plan, 1);
  ledger.Give(0, 1);
  ledger.Give(1, 0);
  EXPECT_TRUE(
      ledger.Done(1, 0, {.number = 0, .tokens = 20, .targets = 6, .log_probabilities = first})
          .ok());
  EXPECT_TRUE(
      ledger.Done(0, 0, {.number = 1, .tokens = 10, .targets = 3, .log_probabilities = second})
          .ok());
  return ledger;
}

JobPairs ThreePairs(const plan::PreferenceOptions& options, int validation = 0) {
  return JobPairs(options, {{1, 2}, {2, 1}, {1, 2}},
                  std::vector<ReplyTargets>(static_cast<size_t>(validation), {1, 2}));
}

TEST(JobPairs, MeasuresByLengthWithoutAReference) {
  const JobPairs pairs = ThreePairs({.loss = Loss::kSimpo, .beta = 2});
  EXPECT_FALSE(pairs.WithoutReference().has_value());
  const plan::StepPlan plan = TwoPacks();
  const plan::PackLedger ledger = Done(plan, {-4, -3, -1, -4}, {-5, -8});
  const proto::PreferenceMetrics means = pairs.Measure(plan, ledger, /*of_validation=*/false);
  EXPECT_DOUBLE_EQ(means.chosen_log_probability(), (-4. - 1 - 5) / 3);
  EXPECT_DOUBLE_EQ(means.rejected_log_probability(), (-3. - 4 - 8) / 3);
  EXPECT_DOUBLE_EQ(means.chosen_reward(), 2 * (-4. / 2 - 1 - 5) / 3);
  EXPECT_DOUBLE_EQ(means.rejected_reward(), 2 * (-3. - 4. / 2 - 8. / 2) / 3);
  EXPECT_DOUBLE_EQ(means.accuracy(), 2. / 3) << "-2 > -3, -1 > -2, and not -5 > -4";
  proto::MicrobatchWork work;
  work.add_samples(1);
  pairs.AddReferences(false, work);
  EXPECT_EQ(work.references_size(), 0);
}

TEST(JobPairs, ComparesWithWhatWasBeforeStepOne) {
  JobPairs pairs = ThreePairs({.beta = 0.5});
  EXPECT_EQ(pairs.WithoutReference(), (PairPart{.first = 0, .count = 3}));
  const plan::StepPlan plan = TwoPacks();
  proto::MicrobatchWork work;
  work.add_samples(2);
  work.add_samples(1);
  pairs.AddReferences(false, work);
  EXPECT_EQ(work.references_size(), 0) << "not all are known";
  ASSERT_OK(pairs.TakeReferences(plan, Done(plan, {-4, -3, -1, -4}, {-5, -8})));
  EXPECT_THAT(pairs.references(), ElementsAre(-1, -4, -4, -3, -5, -8));
  EXPECT_FALSE(pairs.WithoutReference().has_value());
  pairs.AddReferences(false, work);
  EXPECT_THAT(work.references(), ElementsAre(-5, -8, -4, -3));
  const proto::PreferenceMetrics means =
      pairs.Measure(plan, Done(plan, {-2, -5, -1, -4}, {-6, -8}), false);
  EXPECT_DOUBLE_EQ(means.chosen_reward(), 0.5 * (2. + 0 - 1) / 3);
  EXPECT_DOUBLE_EQ(means.rejected_reward(), 0.5 * -2. / 3);
  EXPECT_DOUBLE_EQ(means.accuracy(), 1. / 3) << "equal ones are not right";
}

// What the model without its adapters gives comes with the results, in place of a file.
TEST(JobPairs, ComparesWithWhatPacksSay) {
  const JobPairs pairs =
      ThreePairs({.beta = 0.5, .reference = plan::Reference::kAdapterOff}, /*validation=*/3);
  EXPECT_FALSE(pairs.WithoutReference().has_value());
  const plan::StepPlan plan = TwoPacks();
  plan::PackLedger ledger(plan, 1);
  ledger.Give(0, 1);
  ledger.Give(1, 0);
  ASSERT_OK(ledger.Done(1, 0,
                        {.number = 0,
                         .tokens = 20,
                         .targets = 6,
                         .log_probabilities = {-2, -5, -1, -4},
                         .references = {-4, -3, -1, -4}}));
  ASSERT_OK(ledger.Done(0, 0,
                        {.number = 1,
                         .tokens = 10,
                         .targets = 3,
                         .log_probabilities = {-6, -8},
                         .references = {-5, -8}}));
  for (const bool of_validation : {false, true}) {
    const proto::PreferenceMetrics means = pairs.Measure(plan, ledger, of_validation);
    EXPECT_DOUBLE_EQ(means.chosen_reward(), 0.5 * (2. + 0 - 1) / 3);
    EXPECT_DOUBLE_EQ(means.rejected_reward(), 0.5 * -2. / 3);
    EXPECT_DOUBLE_EQ(means.accuracy(), 1. / 3);
  }
  proto::MicrobatchWork work;
  work.add_samples(1);
  pairs.AddReferences(false, work);
  EXPECT_EQ(work.references_size(), 0);
}

TEST(JobPairs, GoOnWithThePartThatIsMissing) {
  JobPairs pairs = ThreePairs({}, /*validation=*/1);
  EXPECT_THAT(pairs.SetReferences({1, 2}).message(), HasSubstr("of 2 replies, not of 8"));
  ASSERT_OK(pairs.SetReferences({-1, -2, -3, -4, -5, -6, kUnknown, -8}));
  EXPECT_EQ(pairs.WithoutReference(), (PairPart{.of_validation = true, .first = 0, .count = 1}));
  EXPECT_EQ(pairs.Progress(), "3 of 4 pairs");
  ASSERT_OK(pairs.SetReferences({-1, -2, -3, -4, kUnknown, -6, -7, -8}));
  EXPECT_EQ(pairs.WithoutReference(), (PairPart{.first = 2, .count = 1}));
  ASSERT_OK(pairs.SetReferences({-1, -2, -3, -4, -5, -6, -7, -8}));
  EXPECT_FALSE(pairs.WithoutReference().has_value());
  proto::MicrobatchWork work;
  work.add_samples(0);
  pairs.AddReferences(/*of_validation=*/true, work);
  EXPECT_THAT(work.references(), ElementsAre(-7, -8)) << "of the validation";
}

TEST(JobPairs, HaveFewParts) {
  constexpr size_t kPairs = 200'000;
  JobPairs pairs({}, std::vector<ReplyTargets>(kPairs, {1, 1}), {{1, 1}});
  int parts = 0;
  std::vector<double> known(2 * (kPairs + 1), kUnknown);
  while (const auto part = pairs.WithoutReference()) {
    const size_t first = static_cast<size_t>(part->first) + (part->of_validation ? kPairs : 0);
    std::fill_n(known.begin() + static_cast<ptrdiff_t>(2 * first), 2 * part->count, -1.0);
    ASSERT_OK(pairs.SetReferences(known));
    ++parts;
  }
  EXPECT_EQ(parts, 65) << "and one of the validation";
}

TEST(JobPairs, WantAllOfAPart) {
  JobPairs pairs = ThreePairs({});
  const plan::StepPlan plan = TwoPacks();
  EXPECT_THAT(pairs.TakeReferences(plan, Done(plan, {-4, -3, -1, -4}, {})).message(),
              HasSubstr("the model gives pair 2 the log-probabilities nan and nan"));
  EXPECT_THAT(pairs.TakeReferences(plan, Done(plan, {-4, -3, -1, -HUGE_VAL}, {-1, -2})).message(),
              HasSubstr("pair 0 the log-probabilities -1 and -inf"));
  EXPECT_TRUE(pairs.WithoutReference().has_value());
}

TEST(UnlikeReference, SaysWhatIsNotLnTwo) {
  plan::Job job;
  job.train.objective = plan::Objective::kDpo;
  job.train.compute = plan::ComputeType::kFp32;
  proto::StepEvent step;
  step.set_step(1);
  step.set_loss(0.69310);
  EXPECT_EQ(UnlikeReference(job, step), "");
  step.set_loss(0.7);
  EXPECT_THAT(UnlikeReference(job, step), HasSubstr("the loss of step 1 is 0.700000, and ln 2"));
  job.train.compute = plan::ComputeType::kBf16;
  EXPECT_EQ(UnlikeReference(job, step), "");
  step.set_loss(0.5);
  EXPECT_NE(UnlikeReference(job, step), "");
  step.set_step(2);
  EXPECT_EQ(UnlikeReference(job, step), "");
}

TEST(PackLedger, TakesTwoLogProbabilitiesOfAPair) {
  const plan::StepPlan plan = TwoPacks();
  plan::PackLedger ledger(plan, 1);
  ledger.Give(1, 0);
  EXPECT_THAT(
      ledger.Done(0, 0, {.number = 1, .tokens = 10, .targets = 3, .log_probabilities = {-1}})
          .message(),
      HasSubstr("1 log-probabilities of pack 1"));
  EXPECT_THAT(
      ledger.Done(0, 0, {.number = 1, .tokens = 10, .targets = 3, .references = {-1}}).message(),
      HasSubstr("1 log-probabilities of pack 1"));
}

}  // namespace
}  // namespace shoal::server
