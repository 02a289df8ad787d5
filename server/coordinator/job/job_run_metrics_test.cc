// What a job's life shows in the coordinator's metrics.
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/sim_world.h"

namespace shoal::server {
namespace {

using simulation::SimWorld;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Of a series, in the text of metrics; -1 where it is not there.
double ValueOf(const std::string& text, const std::string& series) {
  const size_t at = text.find("\n" + series + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + series.size() + 2));
}

TEST(JobRunMetricsTest, SayWhatJobItIsSinceWhenAndWhereItsTimeWent) {
  SimWorld world({.steps = 3, .slow_worker = 0.2});
  EXPECT_THAT(world.metrics.Text(), Not(HasSubstr("shoal_job_info{")));
  EXPECT_THAT(world.metrics.Text(), Not(HasSubstr("shoal_train_start_timestamp_seconds")));
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  const std::string text = world.metrics.Text();
  EXPECT_THAT(text, HasSubstr("shoal_job_info{assignment=\""));
  EXPECT_THAT(text, ContainsRegex("\nshoal_train_start_timestamp_seconds [0-9]"));
  double phases = 0;
  for (const char* phase : {"plan", "compute", "prepare", "commit"}) {
    const double seconds =
        ValueOf(text, fmt::format("shoal_train_step_phase_seconds_total{{phase=\"{}\"}}", phase));
    EXPECT_GE(seconds, 0) << phase;
    phases += seconds;
  }
  const double steps = ValueOf(text, "shoal_train_step_duration_seconds_sum");
  EXPECT_GT(steps, 0);
  EXPECT_NEAR(phases, steps, 1e-6 * steps);
}

TEST(JobRunMetricsTest, CountMembersThatAreRefusedForTheirVersion) {
  SimWorld world({.steps = 1});
  world.At("work", 1, [&] {
    proto::RegisterRequest request;
    request.set_role(proto::ROLE_WORKER);
    request.set_version("another");
    EXPECT_FALSE(world.core().Register(request).ok());
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_EQ(ValueOf(world.metrics.Text(), "shoal_coordinator_refused_versions_total"), 1);
}

TEST(JobRunTest, StepsWhoseGradientsAreNotFiniteAreSkippedWhereAskedFor) {
  SimWorld world({.steps = 6, .checkpoint_every = 0, .skip_nonfinite = true});
  world.servers.non_finite_at_step = 3;
  world.servers.non_finite_steps = 2;
  ASSERT_TRUE(world.Run());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_EQ(world.servers.server(0).version(), 6);
  EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_skipped_steps_total 2"));
  std::vector<int64_t> skipped;
  for (const proto::StepEvent& step : world.step_events()) {
    if (!step.skipped().empty()) {
      EXPECT_EQ(step.skipped(), "4 gradient elements are not finite");
      skipped.push_back(step.step());
    }
  }
  EXPECT_THAT(skipped, ElementsAre(3, 4));
}

TEST(JobRunTest, TheThirdInARowIsNotSkipped) {
  SimWorld world({.steps = 9, .skip_nonfinite = true});
  world.servers.non_finite_at_step = 3;
  world.servers.non_finite_steps = 3;
  ASSERT_TRUE(world.Run());
  ASSERT_TRUE(world.failed().has_value());
  EXPECT_TRUE(world.failed()->non_finite());
  EXPECT_EQ(world.failed()->step(), 5);
  EXPECT_THAT(world.failure(), HasSubstr("step 5 was not committed: 4 gradient elements are not "
                                         "finite, as in the two before it, which were skipped"));
}

}  // namespace
}  // namespace shoal::server
