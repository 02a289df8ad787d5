#include "cli/app.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "core/base/nearest.h"
#include "core/base/status.h"
#include "core/rpc/member_session.h"
#include "fmt/ranges.h"

namespace shoal::cli {
namespace {

std::string VersionText() { return fmt::format("shoal {}", rpc::ProgramVersion()); }

int Fail(Streams& streams, std::string_view message, ExitCode code) {
  streams.err << Paint(streams.err_terminal, Colour::kRed, "shoal: error:") << " " << message
              << std::endl;
  return static_cast<int>(code);
}

// The deepest command that was named.
const CLI::App& Deepest(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
  }
  return *at;
}

// For "see ... --help".
std::string PathOf(const CLI::App& command) {
  return command.get_parent() == nullptr ? "shoal"
                                         : PathOf(*command.get_parent()) + " " + command.get_name();
}

std::vector<std::string> SubcommandsOf(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* known : command.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(known->get_name());
  }
  return names;
}

// What was typed that is no command or option here, and what may have been meant; empty: that is
// not what is wrong.
std::string Misspelt(const CLI::App& command) {
  const std::vector<std::string> unknown = command.remaining();
  const auto option = std::find_if(unknown.begin(), unknown.end(),
                                   [](const std::string& text) { return text.starts_with("-"); });
  if (option != unknown.end()) {
    if (!option->starts_with("--")) {  // nothing is like one letter
      return "unknown option " + *option;
    }
    std::vector<std::string> names;
    for (const CLI::Option* known : command.get_options()) {
      for (const std::string& name : known->get_lnames()) {
        names.push_back(name);
      }
    }
    const std::string nearest = Nearest(option->substr(2, option->find('=') - 2), names);
    return fmt::format("unknown option {}{}", *option,
                       nearest.empty() ? "" : fmt::format("; did you mean --{}?", nearest));
  }
  const std::vector<std::string> subcommands = SubcommandsOf(command);
  return unknown.empty() || subcommands.empty()
             ? ""
             : fmt::format("unknown command '{}'; {}", unknown.front(),
                           DidYouMean(unknown.front(), subcommands));
}

std::string Explain(const CLI::App& command, const CLI::ParseError& error) {
  std::string misspelt = Misspelt(command);
  if (!misspelt.empty()) {
    return misspelt;
  }
  const std::vector<std::string> subcommands = SubcommandsOf(command);
  return subcommands.empty() || error.get_name() != "RequiredError"
             ? error.what()
             : fmt::format("{} what? say {}", PathOf(command), fmt::join(subcommands, ", "));
}

void AddVersion(CLI::App& app, CommandAction& action) {
  AddCommand(app, "version", "The version of this program", "shoal version")->callback([&action] {
    action = [](Streams& streams) {
      streams.out << VersionText() << "\n";
      return ExitCode::kDone;
    };
  });
}

}  // namespace

int RunShoal(const std::vector<std::string>& arguments, Streams& streams) {
  CLI::App app("Post-trains language models with sharded parameter servers.", "shoal");
  app.set_version_flag("--version", VersionText());
  app.require_subcommand(1);
  app.footer("`shoal COMMAND --help` shows a command's options and an example.");
  CommandAction action;
  AddTrain(app, action);
  AddGenerate(app, action);
  AddEval(app, action);
  AddModel(app, action);
  AddData(app, action);
  AddCheckpoint(app, action);
  AddPlan(app, action);
  AddSimulate(app, action);
  AddStatus(app, action);
  AddJobs(app, action);
  AddScale(app, action);
  AddDrain(app, action);
  AddLogs(app, action);
  AddPlot(app, action);
  AddCompare(app, action);
  AddTls(app, action);
  AddDoctor(app, action);
  AddBench(app, action);
  AddVersion(app, action);
  AddCompletion(app, action);
  if (arguments.empty()) {
    streams.err << app.help();
    return static_cast<int>(ExitCode::kUsage);
  }
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
    if (reversed.back() == "help") {  // `shoal help COMMAND` as `shoal COMMAND --help`
      reversed.pop_back();
      reversed.insert(reversed.begin(), "--help");
    }
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    streams.out << app.help();
    return static_cast<int>(ExitCode::kDone);
  } catch (const CLI::CallForVersion& version) {
    streams.out << version.what() << "\n";
    return static_cast<int>(ExitCode::kDone);
  } catch (const CLI::ParseError& error) {
    const CLI::App& command = Deepest(app);
    return Fail(streams,
                fmt::format("{} (see {} --help)", Explain(command, error), PathOf(command)),
                ExitCode::kUsage);
  }
  const absl::StatusOr<ExitCode> code = action(streams);
  streams.out.flush();
  if (!code.ok()) {
    return Fail(streams, Message(code.status()), ExitCodeFor(code.status()));
  }
  return static_cast<int>(*code);
}

}  // namespace shoal::cli
