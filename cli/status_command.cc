#include "cli/status_command.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "CLI/CLI.hpp"
#include "cli/record/run_history.h"
#include "cli/run/run_access.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/time_kind.h"
#include "core/rpc/channel.h"
#include "core/rpc/coordinator_service.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "server/coordinator/record/event_json.h"

namespace shoal::cli {
namespace {

constexpr absl::Duration kBetweenLooks = absl::Seconds(1);

std::string_view RoleName(proto::Role role) {
  return role == proto::ROLE_SERVER ? "server"
                                    : (role == proto::ROLE_WORKER ? "worker" : "unknown");
}

// Only where it is known.
void AddMfu(double mfu, nlohmann::json& line) {
  if (mfu > 0) {
    line["mfu"] = mfu;
  }
}

// How the last run in that directory ended, as its record says.
absl::StatusOr<ExitCode> ShowLastRun(const RunHistory& run, bool json, Streams& streams) {
  const RunHistory::Step& last = run.steps.back();
  const auto loss = last.values.find("loss");
  const auto mfu = last.values.find("mfu");
  const double known_mfu = mfu == last.values.end() ? 0 : mfu->second;
  const std::string state = run.end.empty() ? "killed" : run.end;
  if (json) {
    nlohmann::json line = {{"event", "status"},
                           {"state", state},
                           {"step", last.step},
                           {"members", nlohmann::json::array()}};
    AddMfu(known_mfu, line);
    PrintJson(streams.out, line);
    return ExitCode::kDone;
  }
  streams.out << fmt::format(
      "no shoal train runs here; the last one: {}, step {}{}{} (shoal plot {})\n", state, last.step,
      loss == last.values.end() ? "" : fmt::format(", loss {:.4f}", loss->second),
      FormatMfu(known_mfu), run.name);
  return ExitCode::kDone;
}

nlohmann::json LastStepJson(const proto::LastStep& last) {
  nlohmann::json json = {
      {"step", last.step()}, {"seconds", last.seconds()}, {"waited_for", last.waited_for()}};
  for (const auto& [name, share] : server::kTimeShares) {
    json[std::string(name)] = (last.*share)();
  }
  return json;
}

std::string Percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

// As its log and the lines of other members call it.
std::string NameOf(const proto::MemberStatus& member) {
  return fmt::format("{}-{}", RoleName(member.role()), member.index());
}

nlohmann::json ConnectionsJson(const proto::LastStep& last) {
  nlohmann::json connections = nlohmann::json::array();
  for (const proto::DataConnection& connection : last.connections()) {
    connections.push_back({{"peer", connection.peer()},
                           {"transport", connection.transport()},
                           {"reason", connection.reason()}});
  }
  return connections;
}

// Which transport each worker's connections took: a row for those alike.
Table Connections(const proto::GetStatusReply& status) {
  Table table({{"worker"}, {"over"}, {"connected to"}, {"not over the job's first because"}});
  for (const proto::MemberStatus& member : status.members()) {
    std::map<std::pair<std::string, std::string>, std::string> peers;  // by transport and reason
    for (const proto::DataConnection& connection : member.last_step().connections()) {
      std::string& names = peers[{connection.transport(), connection.reason()}];
      names += (names.empty() ? "" : ", ") + connection.peer();
    }
    for (const auto& [how, names] : peers) {
      table.Add({NameOf(member), MakePrintable(how.first), MakePrintable(names),
                 MakePrintable(how.second)});
    }
  }
  return table;
}

// Where each worker's last step went, and for whom it waited.
Table LastSteps(const proto::GetStatusReply& status) {
  const bool pipeline = std::ranges::any_of(status.members(), [](const auto& member) {
    return member.last_step().neighbour_wait() > 0 || member.last_step().transfer_wait() > 0;
  });
  const auto shown = [pipeline](std::string_view share) {
    return pipeline ||
           (share != Name(TimeKind::kNeighbourWait) && share != Name(TimeKind::kTransferWait));
  };
  std::vector<Table::Column> columns = {
      {"worker"}, {"step", Table::Align::kRight}, {"took", Table::Align::kRight}};
  for (const auto& [name, share] : server::kTimeShares) {
    if (shown(name)) {
      columns.push_back({std::string(name), Table::Align::kRight});
    }
  }
  columns.push_back({"waited most for"});
  Table table(columns);
  for (const proto::MemberStatus& member : status.members()) {
    if (!member.has_last_step()) {
      continue;
    }
    const proto::LastStep& last = member.last_step();
    std::vector<std::string> row = {NameOf(member), std::to_string(last.step()),
                                    FormatSeconds(last.seconds())};
    for (const auto& [name, share] : server::kTimeShares) {
      if (shown(name)) {
        row.push_back(Percent((last.*share)()));
      }
    }
    row.push_back(MakePrintable(last.waited_for()));
    table.Add(row);
  }
  return table;
}

}  // namespace

absl::StatusOr<ExitCode> ShowStatus(const CoordinatorAddress& coordinator, bool json,
                                    Streams& streams) {
  const auto channel = coordinator.Connect();
  SHOAL_ASSIGN_OR_RETURN(const proto::GetStatusReply status,
                         channel->Call(&rpc::CoordinatorService::GetStatus, {}));
  if (json) {
    nlohmann::json members = nlohmann::json::array();
    for (const proto::MemberStatus& member : status.members()) {
      members.push_back({{"role", RoleName(member.role())},
                         {"index", member.index()},
                         {"host", member.host()},
                         {"pid", member.pid()},
                         {"address", member.address()},
                         {"seconds_since_renewal", member.seconds_since_renewal()}});
      if (!member.place().empty()) {
        members.back()["place"] = member.place();
      }
      if (member.leaving()) {
        members.back()["leaving"] = true;
      }
      if (member.has_last_step()) {
        members.back()["last_step"] = LastStepJson(member.last_step());
        members.back()["connections"] = ConnectionsJson(member.last_step());
      }
    }
    nlohmann::json line = {{"event", "status"},
                           {"state", status.state()},
                           {"step", status.step()},
                           {"total_steps", status.total_steps()},
                           {"members", members}};
    AddMfu(status.mfu(), line);
    PrintJson(streams.out, line);
    return ExitCode::kDone;
  }
  streams.out << fmt::format("{}, step {} of {}{}\n", status.state(), status.step(),
                             status.total_steps(), FormatMfu(status.mfu()));
  Table table({{"member"},
               {"host"},
               {"pid", Table::Align::kRight},
               {"address"},
               {"last seen", Table::Align::kRight}});
  for (const proto::MemberStatus& member : status.members()) {
    table.Add({fmt::format("{}{}{}{}", NameOf(member), member.place().empty() ? "" : ", ",
                           MakePrintable(member.place()), member.leaving() ? ", leaving" : ""),
               MakePrintable(member.host()), std::to_string(member.pid()),
               MakePrintable(member.address()),
               FormatSeconds(member.seconds_since_renewal()) + " ago"});
  }
  if (status.members_size() > 0) {
    streams.out << "\n" << table.Render(streams.out_terminal);
  }
  if (std::ranges::any_of(status.members(),
                          [](const auto& member) { return member.has_last_step(); })) {
    streams.out << "\nlast step, as shares of its time:\n"
                << LastSteps(status).Render(streams.out_terminal) << "\nconnections:\n"
                << Connections(status).Render(streams.out_terminal);
  }
  return ExitCode::kDone;
}

namespace {

absl::StatusOr<ExitCode> ShowOnce(const StatusOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const std::string run, LocalRunOf(options.access));
  const auto coordinator = FindCoordinator(options.access);
  if (absl::IsNotFound(coordinator.status()) && !run.empty()) {
    const auto last = ReadRunHistory(run);
    return last.ok() ? ShowLastRun(*last, options.json, streams) : coordinator.status();
  }
  SHOAL_RETURN_IF_ERROR(coordinator.status());
  auto code = ShowStatus(*coordinator, options.json, streams);
  if (absl::IsUnavailable(code.status()) && !run.empty()) {
    return Unavailable("{}; if its shoal train was killed, {} is what it left",
                       Message(code.status()), AddressFileIn(LogFolderOf(run)));
  }
  return code;
}

}  // namespace

absl::StatusOr<ExitCode> RunStatus(const StatusOptions& options, Streams& streams) {
  auto code = ShowOnce(options, streams);
  while (options.watch && code.ok() && streams.out.good()) {
    RealClock().SleepFor(kBetweenLooks);
    if (streams.out_terminal.interactive) {
      streams.out << "\033[H\033[J";
    }
    code = ShowOnce(options, streams);
    streams.out.flush();
  }
  return code;
}

void AddStatus(CLI::App& app, CommandAction& action) {
  auto options = std::make_shared<StatusOptions>();
  CLI::App* command = AddCommand(app, "status", "State and members of a running job",
                                 "shoal status job.yaml\n"
                                 "  shoal status --coordinator 127.0.0.1:7000 --token-file token");
  AddJobAccess(*command, options->access);
  command->add_flag("--json", options->json, "A JSON line instead of a table");
  command->add_flag("--watch", options->watch, "Look again every second, until Ctrl-C");
  command->callback([options, &action] {
    action = [options](Streams& streams) { return RunStatus(*options, streams); };
  });
}

}  // namespace shoal::cli
