// `shoal completion bash`: a script that completes commands and options, made of what the
// command line knows of them.
#include <memory>

#include "CLI/CLI.hpp"
#include "cli/run/command.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace shoal::cli {
namespace {

// A line of the script's table for the command and each below it: "data prepare) words=...".
void AddCases(const CLI::App& command, const std::string& path, std::string& cases) {
  std::vector<std::string> words;
  for (const CLI::App* below : command.get_subcommands([](const CLI::App*) { return true; })) {
    words.push_back(below->get_name());
    AddCases(*below, path.empty() ? below->get_name() : path + " " + below->get_name(), cases);
  }
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) {
      continue;  // hidden
    }
    for (const std::string& name : option->get_lnames()) {
      words.push_back("--" + name);
    }
  }
  cases += fmt::format("    \"{}\") words=\"{}\" ;;\n", path, fmt::join(words, " "));
}

// Words that are no command are values: files are offered for them.
std::string BashScript(const CLI::App& app) {
  std::string cases;
  AddCases(app, "", cases);
  return R"(_shoal_words() {
  case "$1" in
)" + cases +
         R"(    *) return 1 ;;
  esac
}
_shoal() {
  local word=${COMP_WORDS[COMP_CWORD]} path= next words i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    next=${path:+$path }${COMP_WORDS[i]}
    _shoal_words "$next" && path=$next
  done
  _shoal_words "$path"
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  if [[ $word != -* ]]; then
    mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$word")
  fi
}
complete -o filenames -F _shoal shoal
)";
}

}  // namespace

void AddCompletion(CLI::App& app, CommandAction& action) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = AddCommand(app, "completion", "A script with which bash completes shoal",
                                 "shoal completion bash > "
                                 "~/.local/share/bash-completion/completions/shoal");
  command->add_option("shell", *shell, "bash")->required()->check(CLI::IsMember({"bash"}));
  command->callback([&app, shell, &action] {
    action = [&app, shell](Streams& streams) {
      streams.out << BashScript(app);
      return ExitCode::kDone;
    };
  });
}

}  // namespace shoal::cli
