#include "cli/doctor/gpu_checks.h"

#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

using ::testing::HasSubstr;

GpuSurvey GoodGpuMachine() {
  GpuSurvey survey{.driver_version = 13010, .runtime_version = 13000};
  survey.gpus.push_back(
      {.gpu = {.index = 0,
               .name = "NVIDIA Test",
               .memory_bytes = int64_t{80} << 30,
               .capability = 90,
               .pci_address = "0000:41:00.0"},
       .rates = worker::CopyRates{.to_device = 50e9, .to_host = 52e9, .both = 95e9}});
  survey.libraries = {{.name = "cuBLASLt", .path = "/lib/libcublasLt.so.13"}};
  return survey;
}

const Check& FindingOf(const std::vector<Check>& checks, const std::string& feature) {
  for (const Check& check : checks) {
    if (check.feature == feature) {
      return check;
    }
  }
  ADD_FAILURE() << "no check " << feature;
  return checks.front();
}

TEST(GpuChecks, AGoodMachineNeedsNothing) {
  const auto checks = JudgeGpus(GoodGpuMachine());
  EXPECT_EQ(checks.size(), 4u);
  for (const Check& check : checks) {
    EXPECT_EQ(check.health, Health::kOk) << check.feature;
    EXPECT_EQ(check.advice, "") << check.feature;
  }
  EXPECT_THAT(FindingOf(checks, "GPUs").detail, HasSubstr("train.device auto takes cuda:0"));
  EXPECT_THAT(FindingOf(checks, "GPUs").detail, HasSubstr("driver for CUDA 13.1"));
  EXPECT_THAT(FindingOf(checks, "GPU 0").detail, HasSubstr("NVIDIA Test, 80"));
  EXPECT_THAT(FindingOf(checks, "copies of GPU 0").detail, HasSubstr("50.0 GB/s to it"));
}

TEST(GpuChecks, WithoutADriverThereIsOneLine) {
  const GpuSurvey survey{.found = absl::NotFoundError("no driver of NVIDIA")};
  const auto checks = JudgeGpus(survey);
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].detail, "no driver of NVIDIA");
  EXPECT_EQ(checks[0].advice, "training runs on the CPU");
  EXPECT_FALSE(checks[0].required);
}

TEST(GpuChecks, GpusThatTheKernelAloneSeesAreTold) {
  const GpuSurvey survey{.found = absl::NotFoundError("no driver"), .devices = true};
  EXPECT_THAT(JudgeGpus(survey)[0].advice, HasSubstr("libcuda.so.1"));
}

TEST(GpuChecks, EveryShortcomingIsNamedWithAdvice) {
  GpuSurvey survey = GoodGpuMachine();
  survey.driver_version = 12080;
  survey.gpus[0].rates = worker::CopyRates{.to_device = 3e9, .to_host = 50e9, .both = 53e9};
  survey.gpus.push_back({.gpu = {.index = 1, .name = "NVIDIA Old", .capability = 61},
                         .usable = absl::FailedPreconditionError("too old")});
  survey.gpus.push_back(
      {.gpu = {.index = 2, .name = "NVIDIA Half", .capability = 90},
       .rates = worker::CopyRates{.to_device = 25e9, .to_host = 25e9, .both = 26e9}});
  survey.gpus.push_back({.gpu = {.index = 3, .name = "NVIDIA Full", .capability = 90},
                         .rates_problem = "no memory is free"});
  survey.libraries[0] = {.name = "cuBLASLt", .problem = "not found"};
  const auto checks = JudgeGpus(survey);
  EXPECT_THAT(FindingOf(checks, "GPUs").advice, HasSubstr("update the driver"));
  EXPECT_THAT(FindingOf(checks, "copies of GPU 0").advice, HasSubstr("cross this bus"));
  EXPECT_EQ(FindingOf(checks, "GPU 1").advice, "too old");
  EXPECT_THAT(FindingOf(checks, "copies of GPU 2").advice, HasSubstr("do not overlap"));
  EXPECT_THAT(FindingOf(checks, "copies of GPU 3").detail, HasSubstr("no memory is free"));
  EXPECT_THAT(FindingOf(checks, "cuBLASLt").advice, HasSubstr("SHOAL_CUDA_LIBRARIES"));
}

TEST(GpuChecks, WhereNoneIsFitTheCpuIsTaken) {
  GpuSurvey survey = GoodGpuMachine();
  survey.gpus[0].usable = absl::FailedPreconditionError("too old");
  EXPECT_THAT(FindingOf(JudgeGpus(survey), "GPUs").advice, HasSubstr("takes the CPU"));
}

TEST(GpuChecks, LocalServersAreCountedOnTheGpusThatTheyTakeTurnsOver) {
  GpuSurvey survey = GoodGpuMachine();
  survey.gpus[0].free_bytes = int64_t{72} << 30;
  survey.gpus[0].budget_bytes = int64_t{70} << 30;
  survey.gpus.push_back({.gpu = {.index = 1, .name = "NVIDIA Old", .capability = 61},
                         .usable = absl::FailedPreconditionError("too old")});
  survey.gpus.push_back({.gpu = {.index = 2, .name = "NVIDIA Test", .capability = 90},
                         .free_bytes = int64_t{20} << 30,
                         .budget_bytes = int64_t{19} << 30,
                         .rates = survey.gpus[0].rates});
  const GpuNeeds needs{.servers = {int64_t{10} << 30, int64_t{21} << 30, int64_t{30} << 30},
                       .local = true,
                       .workers = 3};
  const auto checks = JudgeGpus(survey, needs);
  const Check& first = FindingOf(checks, "servers on GPU 0");
  EXPECT_EQ(first.health, Health::kOk);
  EXPECT_EQ(first.detail,
            "servers 0, 2 take 40.0 GiB of its memory; 72.0 GiB are free, which leaves 30.0 GiB to "
            "2 workers");
  const Check& second = FindingOf(checks, "servers on GPU 2");
  EXPECT_EQ(second.health, Health::kMissing);
  EXPECT_TRUE(second.required);
  EXPECT_THAT(second.detail, HasSubstr("server 1 takes 21.0 GiB of its memory; 20.0 GiB are free"));
  EXPECT_THAT(second.advice, HasSubstr("service.memory: host"));
  // Servers take all free memory: unlike workers they reserve nothing.
  survey.gpus[2].free_bytes = int64_t{21} << 30;
  survey.gpus[2].budget_bytes = int64_t{20} << 30;
  const Check tight = FindingOf(JudgeGpus(survey, needs), "servers on GPU 2");
  EXPECT_EQ(tight.health, Health::kLimited);
  EXPECT_THAT(tight.detail, HasSubstr("21.0 GiB are free, which leaves 0 B to 1 worker"));
  EXPECT_THAT(tight.advice, HasSubstr("nothing is left to workers"));
  GpuNeeds no_worker_there = needs;
  no_worker_there.workers = 1;
  EXPECT_EQ(FindingOf(JudgeGpus(survey, no_worker_there), "servers on GPU 2").health, Health::kOk);
  survey.gpus[2].free_bytes = 0;
  survey.gpus[2].budget_bytes = 0;
  const Check full = FindingOf(JudgeGpus(survey, needs), "servers on GPU 2");
  EXPECT_EQ(full.health, Health::kMissing);
  EXPECT_THAT(full.detail, HasSubstr("; 0 B are free"));
  survey.gpus[2].free_bytes = std::nullopt;
  EXPECT_THAT(FindingOf(JudgeGpus(survey, needs), "servers on GPU 2").advice,
              HasSubstr("cannot be told"));
  EXPECT_EQ(FindingOf(JudgeGpus(GpuSurvey{.found = absl::NotFoundError("no driver")}, needs),
                      "servers on GPUs")
                .health,
            Health::kMissing);
}

TEST(GpuChecks, OfServersElsewhereItIsSaidWhatTheLargestTakes) {
  GpuSurvey survey = GoodGpuMachine();
  survey.gpus[0].free_bytes = int64_t{70} << 30;
  survey.gpus[0].budget_bytes = int64_t{55} << 30;
  GpuNeeds needs{.servers = {int64_t{10} << 30, int64_t{60} << 30}};
  const Check fits = FindingOf(JudgeGpus(survey, needs), "GPUs of servers");
  EXPECT_EQ(fits.health, Health::kOk);
  EXPECT_EQ(fits.detail, "a server takes up to 60.0 GiB of its GPU; here 70.0 GiB are free");
  needs.servers[0] = int64_t{71} << 30;
  const Check large = FindingOf(JudgeGpus(survey, needs), "GPUs of servers");
  EXPECT_EQ(large.health, Health::kLimited);
  EXPECT_FALSE(large.required) << "they may be on other machines";
  survey.gpus[0].free_bytes = std::nullopt;
  EXPECT_THAT(FindingOf(JudgeGpus(survey, needs), "GPUs of servers").detail,
              HasSubstr("cannot be told"));
}

TEST(GpuChecks, JsonHasTheFacts) {
  GpuSurvey survey = GoodGpuMachine();
  EXPECT_TRUE(GpusJson(survey)["gpus"][0]["free_bytes"].is_null());
  survey.gpus[0].free_bytes = 12;
  const nlohmann::json json = GpusJson(survey);
  EXPECT_EQ(json["gpus"][0]["free_bytes"], 12);
  EXPECT_EQ(json["gpus"][0]["capability"], 90);
  EXPECT_EQ(json["gpus"][0]["copies"]["to_host_bytes_per_second"], 52e9);
  EXPECT_EQ(json["libraries"][0]["path"], "/lib/libcublasLt.so.13");
  EXPECT_EQ(GpusJson(GoodGpuMachine(), {.servers = {7, 8}})["servers_bytes"][1], 8);
}

}  // namespace
}  // namespace shoal::cli
