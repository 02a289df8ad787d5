// What the commands of `shoal` share. A command is a plain function Run<Command>(options, streams):
// options are what the command line said, streams are where it writes, so that tests call it as the
// program does. Data goes to `out`, everything meant for a person who watches goes to `err`. Each
// command has one file, <command>_command.cc, with its options and its Add<Command> that tells
// CLI11 about them.
//
// Failure: a command returns a status, and RunShoal (app.h) prints it as the one line "shoal:
// error: ..." and turns it into the exit code by ExitCodeFor.
#pragma once

#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/terminal/terminal.h"
#include "nlohmann/json_fwd.hpp"

namespace CLI {
class App;
}

namespace shoal::cli {

// Exit codes (docs/failure-and-recovery.md): 0 only if what was asked for was reached.
enum class ExitCode : int {
  kDone = 0,
  kFailure = 1,       // something went wrong while running
  kUsage = 2,         // command line, configuration or input files
  kInterrupted = 75,  // stopped on request, with a checkpoint to resume from
  kNonFinite = 76,    // stopped by non-finite loss or gradients
};

// A status that a command ends with: what the user gave (arguments, files, too small a machine) is
// kUsage, what happened along the way (a peer lost, a deadline, a bug) is kFailure.
ExitCode ExitCodeFor(const absl::Status& status);

struct Streams {
  std::ostream& out;
  std::ostream& err;
  Terminal out_terminal;  // what `out` and `err` are connected to
  Terminal err_terminal;
  std::istream& in = std::cin;
};

// What parsing the command line leaves behind: the command to run.
using CommandAction = std::function<absl::StatusOr<ExitCode>(Streams&)>;

// One JSON value as a line of its own.
void PrintJson(std::ostream& out, const nlohmann::json& value);

// Each adds its command to the app and, when the command is the one asked for, sets `action`.
void AddTrain(CLI::App& app, CommandAction& action);
void AddGenerate(CLI::App& app, CommandAction& action);
void AddEval(CLI::App& app, CommandAction& action);
void AddModel(CLI::App& app, CommandAction& action);
void AddData(CLI::App& app, CommandAction& action);
void AddCheckpoint(CLI::App& app, CommandAction& action);
void AddPlan(CLI::App& app, CommandAction& action);
void AddSimulate(CLI::App& app, CommandAction& action);
void AddStatus(CLI::App& app, CommandAction& action);
void AddJobs(CLI::App& app, CommandAction& action);
void AddScale(CLI::App& app, CommandAction& action);
void AddDrain(CLI::App& app, CommandAction& action);
void AddLogs(CLI::App& app, CommandAction& action);
void AddPlot(CLI::App& app, CommandAction& action);
void AddCompare(CLI::App& app, CommandAction& action);
void AddDoctor(CLI::App& app, CommandAction& action);
void AddTls(CLI::App& app, CommandAction& action);
void AddBench(CLI::App& app, CommandAction& action);
void AddCompletion(CLI::App& app, CommandAction& action);

// A command (or sub-command) with its example, shown at the end of its --help.
CLI::App* AddCommand(CLI::App& parent, const std::string& name, const std::string& description,
                     const std::string& example);

}  // namespace shoal::cli
