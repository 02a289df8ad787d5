#include "client/cli/app.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "common/status.h"

namespace shoal::cli {
namespace {

int Fail(Streams& streams, std::string_view message, ExitCode code) {
  streams.err << Paint(streams.err_terminal, Colour::kRed, "shoal: error:") << " " << message
              << std::endl;
  return static_cast<int>(code);
}

// The deepest verb that was named, for "see ... --help".
std::string VerbPath(const CLI::App& app) {
  std::string path = "shoal";
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
  }
  return path;
}

}  // namespace

int RunShoal(const std::vector<std::string>& arguments, Streams& streams) {
  CLI::App app("Post-trains language models with sharded parameter servers.", "shoal");
  app.set_version_flag("--version", "shoal " SHOAL_VERSION);
  app.require_subcommand(1);
  app.footer("`shoal VERB --help` shows a verb's options and an example.");
  VerbAction action;
  AddTrain(app, action);
  AddGenerate(app, action);
  AddEval(app, action);
  AddModel(app, action);
  AddData(app, action);
  AddCheckpoint(app, action);
  AddPlan(app, action);
  AddSimulate(app, action);
  AddStatus(app, action);
  AddDoctor(app, action);
  AddBench(app, action);
  if (arguments.empty()) {
    streams.err << app.help();
    return static_cast<int>(ExitCode::kUsage);
  }
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    streams.out << app.help();
    return static_cast<int>(ExitCode::kDone);
  } catch (const CLI::CallForVersion& version) {
    streams.out << version.what() << "\n";
    return static_cast<int>(ExitCode::kDone);
  } catch (const CLI::ParseError& error) {
    return Fail(streams, fmt::format("{} (see {} --help)", error.what(), VerbPath(app)),
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
