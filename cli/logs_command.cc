// `shoal logs`: what the processes of a job have logged. Of a local run from their files, which
// stay; of a cluster from its coordinator, which remembers the newest lines of the jobs that it
// remembers.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/log_folder.h"
#include "cli/run/command.h"
#include "cli/run/job_access.h"
#include "cli/run/run_access.h"
#include "cli/terminal/terminal.h"
#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/rpc/channel.h"
#include "core/rpc/coordinator_service.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

constexpr absl::Duration kBetweenReads = absl::Seconds(1);

struct LogsOptions {
  JobAccess access;
  std::string id;
  bool json = false;
  bool follow = false;
};

struct NewLines {
  std::vector<LoggedLine> lines;
  bool over = false;  // no more will come
};
using LineSource = std::function<absl::StatusOr<NewLines>()>;

LineSource LinesOfFolder(const std::string& run) {
  return
      [run, folder = std::make_shared<LogFolder>(LogFolderOf(run))]() -> absl::StatusOr<NewLines> {
        const bool over = !FindRun(run).ok();  // first: whatever is logged before the end is read
        SHOAL_ASSIGN_OR_RETURN(std::vector<LoggedLine> lines, folder->Read());
        return NewLines{.lines = std::move(lines), .over = over};
      };
}

// Waits `patience` for a coordinator that is away.
LineSource LinesOfCoordinator(const std::shared_ptr<rpc::Channel>& coordinator,
                              const std::string& id, absl::Duration patience) {
  auto after = std::make_shared<int64_t>(0);
  return [coordinator, id, patience, after]() -> absl::StatusOr<NewLines> {
    proto::ReadLogRequest request;
    request.set_job_id(id);
    request.set_after_line(*after);
    proto::ReadLogReply reply;
    bool was_away = false;
    SHOAL_RETURN_IF_ERROR(rpc::CallPatiently(
        patience,
        [&](const rpc::CallOptions& call) -> absl::Status {
          SHOAL_ASSIGN_OR_RETURN(
              reply, coordinator->Call(&rpc::CoordinatorService::ReadLog, request, call));
          return absl::OkStatus();
        },
        [&was_away](const absl::Status& failure, absl::Duration left) {
          LogWarning("{}; waiting for it for {} at most", Message(failure),
                     FormatSeconds(absl::ToDoubleSeconds(left)));
          was_away = true;
        }));
    if (was_away) {
      LogWarning("the coordinator answers again");
    }
    *after = reply.last_line();
    if (reply.forgotten() > 0) {
      LogWarning("the coordinator has forgotten {} older lines of the job", reply.forgotten());
    }
    std::ranges::stable_sort(*reply.mutable_lines(), {}, &proto::LogLine::time);
    NewLines lines{.over = reply.over()};
    for (const proto::LogLine& line : reply.lines()) {
      lines.lines.push_back(
          {.time = absl::FormatTime("%Y-%m-%d %H:%M:%E3S",
                                    absl::UnixEpoch() + absl::Seconds(line.time()),
                                    absl::LocalTimeZone()),
           .level = line.level(),
           .process = line.process(),
           .message = line.message()});
    }
    return lines;
  };
}

absl::StatusOr<LineSource> OpenLog(const LogsOptions& options) {
  SHOAL_ASSIGN_OR_RETURN(const std::string run, LocalRunOf(options.access));
  if (!run.empty()) {
    if (!options.id.empty()) {
      return InvalidArgument("a local run has one job: leave {} away", options.id);
    }
    return LinesOfFolder(run);
  }
  SHOAL_ASSIGN_OR_RETURN(const CoordinatorAddress coordinator, FindCoordinator(options.access));
  const auto channel = coordinator.Connect();
  proto::GetStatusRequest request;
  request.set_job_id(options.id);
  SHOAL_ASSIGN_OR_RETURN(const proto::GetStatusReply status,
                         channel->Call(&rpc::CoordinatorService::GetStatus, request));
  // Without an id the newest job now, whatever is submitted while it is followed.
  return LinesOfCoordinator(
      channel, status.job_id(),
      options.follow ? absl::Seconds(status.coordinator_patience_seconds()) : absl::ZeroDuration());
}

absl::StatusOr<ExitCode> RunLogs(const LogsOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const LineSource next, OpenLog(options));
  while (true) {
    SHOAL_ASSIGN_OR_RETURN(const NewLines lines, next());
    for (const LoggedLine& line : lines.lines) {
      if (options.json) {
        PrintJson(streams.out, {{"event", "log"},
                                {"time", line.time},
                                {"level", line.level},
                                {"process", line.process},
                                {"message", line.message}});
      } else {
        streams.out << fmt::format("{} {:<5} {}: {}\n", line.time, MakePrintable(line.level),
                                   MakePrintable(line.process), MakePrintable(line.message));
      }
    }
    streams.out.flush();
    if (!options.follow || lines.over || !streams.out.good()) {
      return ExitCode::kDone;
    }
    RealClock().SleepFor(kBetweenReads);
  }
}

}  // namespace

void AddLogs(CLI::App& app, CommandAction& action) {
  auto options = std::make_shared<LogsOptions>();
  CLI::App* command =
      AddCommand(app, "logs", "What the processes of a job have logged",
                 "shoal logs job-7f3a09c4d21b --coordinator head:4000 --token-file token\n"
                 "  shoal logs job.yaml");
  command->validate_positionals();  // so that a job file alone is not taken for an id
  command->add_option("id", options->id, "Its id, as shoal jobs shows it (default: the newest job)")
      ->check([](const std::string& id) {
        return id.starts_with("job-") ? "" : "not a job's id, as shoal jobs shows it";
      });
  AddJobAccess(*command, options->access);
  command->add_flag("--follow", options->follow, "Go on until the job is over, or Ctrl-C");
  command->add_flag("--json", options->json, "A JSON line for each");
  command->callback([options, &action] {
    action = [options](Streams& streams) { return RunLogs(*options, streams); };
  });
}

}  // namespace shoal::cli
