// `shoal scale`: how many servers a job is to have, while it trains; `shoal drain`: which one is to
// go.
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "cli/run/command.h"
#include "cli/run/job_access.h"
#include "core/base/bytes.h"
#include "core/base/clock.h"
#include "core/base/flag_checks.h"
#include "core/base/status.h"
#include "core/job/job_values.h"
#include "core/rpc/channel.h"
#include "core/rpc/coordinator_service.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

constexpr absl::Duration kBetweenQuestions = absl::Milliseconds(100);

struct ScaleOptions {
  JobAccess access;
  std::string id;  // of the job; empty: the one submitted last
  int64_t servers = 0;
  std::optional<std::string> rate;  // "200MB/s"
  std::string drained;              // "server-3"
  bool wait = false;
  bool dry_run = false;
  bool cancel = false;
  bool json = false;
};

void Print(const proto::ScaleReply& reply, bool json, Streams& streams) {
  if (json) {
    nlohmann::json waves = nlohmann::json::array();
    for (const proto::Wave& wave : reply.waves()) {
      waves.push_back({{"step", wave.step()},
                       {"bytes", wave.bytes()},
                       {"pause_seconds", wave.pause_seconds()}});
    }
    PrintJson(streams.out, {{"event", "scale"},
                            {"job_id", reply.job_id()},
                            {"servers", reply.servers()},
                            {"wanted", reply.wanted()},
                            {"moving", reply.moving()},
                            {"draining", reply.draining()},
                            {"bytes_moved", reply.bytes_moved()},
                            {"bytes_left", reply.bytes_left()},
                            {"least_bytes", reply.least_bytes()},
                            {"partitions_moved", reply.partitions_moved()},
                            {"rollbacks", reply.rollbacks()},
                            {"refusal", reply.refusal()},
                            {"imbalance", reply.imbalance()},
                            {"waves", waves}});
    return;
  }
  streams.out << fmt::format(
      "{}: {} servers{}", MakePrintable(reply.job_id()), reply.servers(),
      reply.wanted() == reply.servers() ? "" : fmt::format(", {} wanted", reply.wanted()));
  streams.out << fmt::format(
      "; {} of state in {} partitions moved ({} at least){}\n", FormatBytes(reply.bytes_moved()),
      reply.partitions_moved(), FormatBytes(reply.least_bytes()),
      reply.bytes_left() == 0 ? "" : fmt::format(", {} left", FormatBytes(reply.bytes_left())));
  for (const int server : reply.draining()) {
    streams.out << fmt::format("  server-{} is to go\n", server);
  }
  for (const proto::Wave& wave : reply.waves()) {
    streams.out << fmt::format("  before step {}: {} in a pause of {:.2f} s\n", wave.step(),
                               FormatBytes(wave.bytes()), wave.pause_seconds());
  }
  if (!reply.refusal().empty()) {
    streams.out << "  given up: " << MakePrintable(reply.refusal()) << "\n";
  }
}

// Bytes a second.
absl::StatusOr<int64_t> RateOf(const std::string& text) {
  const absl::StatusOr<double> rate = plan::ParseRate(text);
  if (!rate.ok() || *rate < 1 || *rate > 1e18) {
    return InvalidArgument("--rate: is '{}', expected a rate like 200MB/s", MakePrintable(text));
  }
  return static_cast<int64_t>(*rate);
}

absl::StatusOr<proto::ScaleReply> Ask(const ScaleOptions& options, rpc::Channel& coordinator,
                                      bool with_wish) {
  proto::ScaleRequest request;
  request.set_job_id(options.id);
  if (with_wish && options.rate.has_value()) {
    SHOAL_ASSIGN_OR_RETURN(const int64_t rate, RateOf(*options.rate));
    request.set_rate(rate);
  }
  if (with_wish) {
    request.set_servers(options.servers);
    request.set_dry_run(options.dry_run);
    request.set_cancel(options.cancel);
  }
  return coordinator.Call(&rpc::CoordinatorService::Scale, request);
}

absl::Status CheckJobGoesOn(const std::string& id, rpc::Channel& coordinator) {
  proto::GetStatusRequest request;
  request.set_job_id(id);
  SHOAL_ASSIGN_OR_RETURN(const proto::GetStatusReply status,
                         coordinator.Call(&rpc::CoordinatorService::GetStatus, request));
  for (const char* over : {"done", "failed", "interrupted"}) {
    if (status.state() == over) {
      return Unavailable("{} is {}: its servers stay as they are", id, over);
    }
  }
  return absl::OkStatus();
}

// Until the job has them, or the coordinator has given that up.
absl::StatusOr<proto::ScaleReply> Await(ScaleOptions options, proto::ScaleReply reply,
                                        rpc::Channel& coordinator) {
  options.id = reply.job_id();
  const int64_t rollbacks = reply.rollbacks();
  while (reply.servers() != options.servers || reply.moving() || reply.bytes_left() > 0 ||
         (reply.waves_size() > 0 && reply.waves().rbegin()->pause_seconds() == 0)) {
    if (reply.rollbacks() > rollbacks) {
      return Unavailable("{} keeps {} servers: {}", options.id, reply.servers(), reply.refusal());
    }
    if (reply.wanted() != options.servers) {
      return FailedPrecondition("{} is to have {} servers by now: a later wish counts", options.id,
                                reply.wanted());
    }
    RealClock().SleepFor(kBetweenQuestions);
    SHOAL_ASSIGN_OR_RETURN(reply, Ask(options, coordinator, /*with_wish=*/false));
    SHOAL_RETURN_IF_ERROR(CheckJobGoesOn(options.id, coordinator));
  }
  return reply;
}

absl::StatusOr<ExitCode> RunScale(const ScaleOptions& options, bool with_wish, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const CoordinatorAddress address, FindCoordinator(options.access));
  const auto coordinator = address.Connect();
  SHOAL_ASSIGN_OR_RETURN(proto::ScaleReply reply, Ask(options, *coordinator, with_wish));
  if (options.wait) {
    SHOAL_ASSIGN_OR_RETURN(reply, Await(options, std::move(reply), *coordinator));
  }
  Print(reply, options.json, streams);
  return ExitCode::kDone;
}

void AddAccess(CLI::App& command, ScaleOptions& options) {
  AddJobAccess(command, options.access);
  command.add_option("--id", options.id, "The job's id; without, the one submitted last");
  command.add_flag("--json", options.json, "A JSON line instead of text");
}

absl::StatusOr<int> IndexOf(const std::string& server) {
  constexpr std::string_view kServer = "server-";
  int index = 0;
  if (!server.starts_with(kServer) || !absl::SimpleAtoi(server.substr(kServer.size()), &index) ||
      index < 0) {
    return InvalidArgument("'{}' is no server: say server-3, as `shoal status` shows it",
                           MakePrintable(server));
  }
  return index;
}

absl::StatusOr<std::optional<proto::MemberStatus>> FindServer(int index,
                                                              rpc::Channel& coordinator) {
  SHOAL_ASSIGN_OR_RETURN(const proto::GetStatusReply status,
                         coordinator.Call(&rpc::CoordinatorService::GetStatus, {}));
  for (const proto::MemberStatus& member : status.members()) {
    if (member.role() == proto::ROLE_SERVER && member.index() == index) {
      return member;
    }
  }
  return std::nullopt;
}

// Until the process is a member no more, or stays.
absl::Status AwaitGone(const proto::MemberStatus& drained, ScaleOptions options,
                       const std::string& job_id, rpc::Channel& coordinator) {
  options.id = job_id;
  while (true) {
    SHOAL_ASSIGN_OR_RETURN(const auto there, FindServer(drained.index(), coordinator));
    if (!there.has_value() || there->pid() != drained.pid() || there->host() != drained.host()) {
      return absl::OkStatus();
    }
    if (!there->leaving()) {
      SHOAL_ASSIGN_OR_RETURN(const proto::ScaleReply reply,
                             Ask(options, coordinator, /*with_wish=*/false));
      return Unavailable("{} stays: {}", options.drained, MakePrintable(reply.refusal()));
    }
    RealClock().SleepFor(kBetweenQuestions);
  }
}

absl::StatusOr<ExitCode> RunDrain(const ScaleOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const int index, IndexOf(options.drained));
  SHOAL_ASSIGN_OR_RETURN(const CoordinatorAddress address, FindCoordinator(options.access));
  const auto coordinator = address.Connect();
  SHOAL_ASSIGN_OR_RETURN(const auto there, FindServer(index, *coordinator));
  proto::ScaleRequest request;
  request.set_drain(index);
  SHOAL_ASSIGN_OR_RETURN(const proto::ScaleReply reply,
                         coordinator->Call(&rpc::CoordinatorService::Scale, request));
  if (options.wait && there.has_value()) {
    SHOAL_RETURN_IF_ERROR(AwaitGone(*there, options, reply.job_id(), *coordinator));
  }
  if (options.json) {
    PrintJson(streams.out, {{"event", "drain"},
                            {"server", index},
                            {"job_id", reply.job_id()},
                            {"gone", options.wait}});
  } else {
    streams.out << fmt::format("{} {}\n", options.drained,
                               options.wait             ? "is gone"
                               : reply.job_id().empty() ? "is told to go"
                                                        : "goes once others have what it holds");
  }
  return ExitCode::kDone;
}

}  // namespace

void AddDrain(CLI::App& app, CommandAction& action) {
  auto options = std::make_shared<ScaleOptions>();
  CLI::App* command =
      AddCommand(app, "drain", "A server goes for good, once others have what it holds",
                 "shoal drain server-3 job.yaml --wait\n"
                 "  shoal drain server-3 --coordinator head:4000 --token-file token");
  command->add_option("server", options->drained, "As `shoal status` shows it: server-3")
      ->required();
  AddJobAccess(*command, options->access);
  command->add_flag("--wait", options->wait, "Until it is gone, or that was given up");
  command->add_flag("--json", options->json, "A JSON line instead of text");
  command->callback([options, &action] {
    action = [options](Streams& streams) { return RunDrain(*options, streams); };
  });
}

void AddScale(CLI::App& app, CommandAction& action) {
  auto options = std::make_shared<ScaleOptions>();
  const auto run = [options, &action](bool with_wish) {
    action = [options, with_wish](Streams& streams) {
      return RunScale(*options, with_wish, streams);
    };
  };
  CLI::App* command = AddCommand(app, "scale", "More servers, or fewer, while a job trains",
                                 "shoal scale job.yaml --servers 8 --wait\n"
                                 "  shoal scale status job.yaml");
  AddAccess(*command, *options);
  command->add_option("--servers", options->servers, "How many the job is to have")
      ->check(AtLeast(1));
  command->add_option("--rate", options->rate,
                      "State moves no faster than that, as 200MB/s: waves are so far apart");
  CLI::Option* wait =
      command->add_flag("--wait", options->wait, "Until it has them, or that was given up");
  command->add_flag("--dry-run", options->dry_run, "Only say what would move")->excludes(wait);
  CLI::App* status = AddCommand(*command, "status", "Where the last wish stands",
                                "shoal scale status job.yaml --json");
  AddAccess(*status, *options);
  status->callback([run] { run(/*with_wish=*/false); });
  CLI::App* cancel = AddCommand(*command, "cancel", "The servers that the job has are wanted",
                                "shoal scale cancel job.yaml");
  AddAccess(*cancel, *options);
  cancel->callback([run, options] {
    options->cancel = true;
    run(/*with_wish=*/true);
  });
  command->callback([run, options, command] {
    if (!command->get_subcommands().empty()) {
      return;
    }
    if (options->servers == 0) {
      throw CLI::ValidationError("--servers", "is needed: how many the job is to have");
    }
    run(/*with_wish=*/true);
  });
}

}  // namespace shoal::cli
