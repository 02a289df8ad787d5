#include "bench/on_demand/train_run.h"

#include <filesystem>
#include <sstream>

#include "absl/time/clock.h"
#include "core/base/file.h"
#include "core/base/process/subprocess.h"
#include "core/base/status.h"
#include "nlohmann/json.hpp"

namespace shoal::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kTailLines = 12;
constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr absl::Duration kStatusLimit = absl::Seconds(10);
// For a killed process to free its memory.
constexpr absl::Duration kEndLimit = absl::Seconds(10);

// Skips the messages for people between the events.
std::vector<nlohmann::json> EventsIn(const std::string& output, std::string_view name) {
  std::vector<nlohmann::json> events;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    nlohmann::json event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (event.is_object() && event.value("event", "") == name) {
      events.push_back(std::move(event));
    }
  }
  return events;
}

// False for a zombie too.
bool HasProgram(int64_t pid) {
  std::error_code error;
  return !fs::read_symlink(fmt::format("/proc/{}/exe", pid), error).empty();
}

void AwaitEnd(const nlohmann::json& status) {
  const absl::Time deadline = absl::Now() + kEndLimit;
  for (const nlohmann::json& member : status.value("members", nlohmann::json::array())) {
    while (HasProgram(member.value("pid", int64_t{0})) && absl::Now() < deadline) {
      absl::SleepFor(kPoll);
    }
  }
}

// DataLoss if the steps are not 1, 2, ...
absl::StatusOr<std::vector<MeasuredStep>> ParseStepsSoFar(const std::string& output) {
  std::vector<MeasuredStep> measured;
  for (const nlohmann::json& event : EventsIn(output, "step")) {
    measured.push_back({.step = event.value("step", int64_t{0}),
                        .seconds = event.value("step_seconds", 0.0),
                        .idle_share = event.value("idle_share", 0.0),
                        .predicted_idle_share = event.value("predicted_idle_share", 0.0),
                        .grad_norm = event.value("grad_norm", 0.0),
                        .loss = event.value("loss", 0.0)});
    if (measured.back().step != static_cast<int64_t>(measured.size())) {
      return DataLoss("step {} was reported after {} others", measured.back().step,
                      measured.size() - 1);
    }
  }
  return measured;
}

}  // namespace

absl::StatusOr<std::vector<MeasuredStep>> ParseSteps(const std::string& output, int64_t steps) {
  SHOAL_ASSIGN_OR_RETURN(std::vector<MeasuredStep> measured, ParseStepsSoFar(output));
  if (static_cast<int64_t>(measured.size()) != steps) {
    return DataLoss("{} of {} steps were reported", measured.size(), steps);
  }
  return measured;
}

absl::StatusOr<std::string> TrainRunner::Run(std::vector<std::string> arguments,
                                             absl::Duration limit) const {
  const std::string log = folder_ + "/output.log";
  std::error_code ignored;
  fs::remove(log, ignored);
  arguments.insert(arguments.begin(), program_);
  ProcessGroup group;
  SHOAL_RETURN_IF_ERROR(
      group.Start({.name = "shoal", .arguments = std::move(arguments), .log_file = log}));
  const std::vector<ChildEnd> ends = group.WaitForAll(limit);
  if (ends.empty()) {
    return DeadlineExceeded("shoal did not end within {} s:\n{}", absl::ToInt64Seconds(limit),
                            TailOf(log, kTailLines));
  }
  if (!ends.front().clean()) {
    return Unavailable("{}:\n{}", shoal::Describe(ends.front()), TailOf(log, kTailLines));
  }
  return ReadFile(log);
}

absl::StatusOr<std::string> TrainRunner::WriteJob(plan::Job& job) const {
  job.checkpoint.directory = folder_ + "/checkpoints";
  job.checkpoint.export_huggingface = false;
  std::error_code ignored;
  fs::remove_all(job.checkpoint.directory, ignored);
  std::string job_file = folder_ + "/job.yaml";
  SHOAL_RETURN_IF_ERROR(WriteFileAtomically(job_file, plan::ToYaml(job)));
  return job_file;
}

absl::StatusOr<std::vector<MeasuredStep>> TrainRunner::Train(plan::Job job,
                                                             absl::Duration limit) const {
  SHOAL_ASSIGN_OR_RETURN(const std::string job_file, WriteJob(job));
  SHOAL_ASSIGN_OR_RETURN(const std::string output, Run({"train", job_file, "--json"}, limit));
  std::error_code ignored;
  fs::remove_all(job.checkpoint.directory, ignored);
  return ParseSteps(output, job.train.steps);
}

absl::StatusOr<ObservedRun> TrainRunner::Observe(plan::Job job, int64_t steps,
                                                 absl::Duration limit) const {
  SHOAL_ASSIGN_OR_RETURN(const std::string job_file, WriteJob(job));
  const std::string log = folder_ + "/output.log";
  std::error_code ignored;
  fs::remove(log, ignored);
  ProcessGroup group;
  SHOAL_RETURN_IF_ERROR(group.Start(
      {.name = "shoal", .arguments = {program_, "train", job_file, "--json"}, .log_file = log}));
  const absl::Time deadline = absl::Now() + limit;
  ObservedRun run;
  while (static_cast<int64_t>(run.steps.size()) < steps) {
    if (absl::Now() > deadline) {
      return DeadlineExceeded("{} of {} steps were done within {:.0f} s:\n{}", run.steps.size(),
                              steps, absl::ToDoubleSeconds(limit), TailOf(log, kTailLines));
    }
    const std::vector<ChildEnd> ends = group.WaitForAll(kPoll);
    SHOAL_ASSIGN_OR_RETURN(run.steps, ParseStepsSoFar(ReadFile(log).value_or("")));
    if (!ends.empty() && static_cast<int64_t>(run.steps.size()) < steps) {
      return Unavailable("{}:\n{}", shoal::Describe(ends.front()), TailOf(log, kTailLines));
    }
  }
  // Uses its own folder: the run still writes its log.
  const std::string status_folder = folder_ + "/status";
  SHOAL_RETURN_IF_ERROR(CreateDirectories(status_folder));
  const absl::StatusOr<std::string> status =
      TrainRunner(program_, status_folder)
          .Run({"status", "--run", job.checkpoint.directory, "--json"}, kStatusLimit);
  const auto events = EventsIn(status.value_or(""), "status");
  run.status = events.empty() ? nlohmann::json::object() : events.front();
  group.Kill();
  AwaitEnd(run.status);
  return run;
}

}  // namespace shoal::bench
