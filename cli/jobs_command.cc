// `shoal jobs`, `attach` and `stop`: the jobs of a coordinator, without their job files.
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "cli/run/follow_job.h"
#include "cli/run/job_access.h"
#include "cli/run/train_report.h"
#include "core/base/status.h"
#include "core/rpc/channel.h"
#include "core/rpc/coordinator_service.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

struct JobsOptions {
  JobAccess access;
  std::string id;
  bool json = false;
};

absl::StatusOr<std::shared_ptr<rpc::Channel>> Connect(const JobsOptions& options) {
  SHOAL_ASSIGN_OR_RETURN(const CoordinatorAddress coordinator, FindCoordinator(options.access));
  return coordinator.Connect();
}

absl::StatusOr<ExitCode> RunJobs(const JobsOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const auto coordinator, Connect(options));
  SHOAL_ASSIGN_OR_RETURN(const proto::ListJobsReply reply,
                         coordinator->Call(&rpc::CoordinatorService::ListJobs, {}));
  Table table({{"job"},
               {"state"},
               {"step", Table::Align::kRight},
               {"since", Table::Align::kRight},
               {"model"},
               {"checkpoints"}});
  for (const proto::JobSummary& job : reply.jobs()) {
    if (options.json) {
      PrintJson(streams.out, {{"event", "job"},
                              {"job_id", job.job_id()},
                              {"state", job.state()},
                              {"step", job.step()},
                              {"total_steps", job.total_steps()},
                              {"seconds_in_state", job.seconds_in_state()},
                              {"model", job.model()},
                              {"checkpoint_directory", job.checkpoint_directory()},
                              {"over", job.over()}});
    }
    table.Add({MakePrintable(job.job_id()), MakePrintable(job.state()),
               fmt::format("{} of {}", job.step(), job.total_steps()),
               FormatSeconds(job.seconds_in_state()), MakePrintable(job.model()),
               MakePrintable(job.checkpoint_directory())});
  }
  if (!options.json) {
    streams.out << (reply.jobs_size() > 0 ? table.Render(streams.out_terminal) : "no jobs\n");
  }
  return ExitCode::kDone;
}

// Ctrl-C ends this command alone; the job goes on.
absl::StatusOr<ExitCode> RunAttach(const JobsOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const auto stream, Connect(options));
  SHOAL_ASSIGN_OR_RETURN(const auto calls, Connect(options));
  proto::GetStatusRequest request;
  request.set_job_id(options.id);
  SHOAL_RETURN_IF_ERROR(calls->Call(&rpc::CoordinatorService::GetStatus, request).status());
  SHOAL_ASSIGN_OR_RETURN(const std::string local, LocalRunOf(options.access));
  TrainReport report(streams, options.json);
  const RunEnd end = FollowJob(
      stream, calls,
      {.job_id = options.id, .stop_requests = [] { return 0; }, .as_told = local.empty()}, report);
  report.Clear();
  report.PrintEnd(end);
  if (!end.message.empty()) {
    streams.err << Paint(streams.err_terminal, Colour::kRed, "shoal: error:") << " " << end.message
                << std::endl;
  } else if (!options.json) {
    streams.out << fmt::format("{} after step {}, loss {:.4f}; checkpoint: {}\n",
                               end.kind == RunEnd::Kind::kReached ? "done" : "stopped", end.step,
                               end.loss, end.checkpoint.empty() ? "none" : end.checkpoint);
  }
  return ExitCodeOf(end);
}

absl::StatusOr<ExitCode> RunStop(const JobsOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const auto coordinator, Connect(options));
  proto::StopJobRequest request;
  request.set_job_id(options.id);
  request.set_reason("shoal stop");
  SHOAL_RETURN_IF_ERROR(coordinator->Call(&rpc::CoordinatorService::StopJob, request).status());
  if (options.json) {
    PrintJson(streams.out, {{"event", "stopping"}, {"job_id", options.id}});
  } else {
    streams.err << options.id << " ends with a checkpoint of its last step (shoal attach "
                << options.id << ")" << std::endl;
  }
  return ExitCode::kDone;
}

// A command about one job.
CLI::App* AddJobCommand(CLI::App& app, const std::string& name, const std::string& description,
                        JobsOptions& options) {
  CLI::App* command = AddCommand(
      app, name, description,
      fmt::format("shoal {} job-7f3a09c4d21b --coordinator head:4000 --token-file token", name));
  command->add_option("id", options.id, "Its id, as shoal jobs shows it")->required();
  AddJobAccess(*command, options.access);
  return command;
}

}  // namespace

void AddJobs(CLI::App& app, CommandAction& action) {
  auto options = std::make_shared<JobsOptions>();
  const auto run = [&action, options](auto body) {
    return [&action, options, body] {
      action = [options, body](Streams& streams) { return body(*options, streams); };
    };
  };
  CLI::App* jobs =
      AddCommand(app, "jobs", "Jobs of a coordinator: running, waiting, the last ended",
                 "shoal jobs --coordinator head:4000 --token-file token");
  AddJobAccess(*jobs, options->access);
  jobs->add_flag("--json", options->json, "A JSON line for each instead of a table");
  jobs->callback(run(RunJobs));
  CLI::App* attach =
      AddJobCommand(app, "attach", "Follow a job; Ctrl-C leaves it running", *options);
  attach->add_flag("--json", options->json, "JSON lines instead of a progress bar");
  attach->callback(run(RunAttach));
  CLI::App* stop =
      AddJobCommand(app, "stop", "End a job with a checkpoint, or one that waits", *options);
  stop->add_flag("--json", options->json, "A JSON line instead of a sentence");
  stop->callback(run(RunStop));
}

}  // namespace shoal::cli
