// `shoal completion`: a script for bash or zsh that completes commands and options, made of what
// the command line knows of them.
#include <memory>

#include "CLI/CLI.hpp"
#include "cli/run/command.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace shoal::cli {
namespace {

// A line of the script's table for the command and each below it: "data prepare) offered=...".
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
  cases += fmt::format("    \"{}\") offered=\"{}\" ;;\n", path, fmt::join(words, " "));
}

// Sets `offered` to what may follow the command "$1"; fails where that is none.
std::string WordsFunction(const CLI::App& app) {
  std::string cases;
  AddCases(app, "", cases);
  return "_shoal_words() {\n  case \"$1\" in\n" + cases + "    *) return 1 ;;\n  esac\n}\n";
}

// Words that are no command are values: files are offered for them.
constexpr char kBash[] = R"(_shoal() {
  local word=${COMP_WORDS[COMP_CWORD]} place= next offered i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    next=${place:+$place }${COMP_WORDS[i]}
    _shoal_words "$next" && place=$next
  done
  _shoal_words "$place"
  mapfile -t COMPREPLY < <(compgen -W "$offered" -- "$word")
  if [[ $word != -* ]]; then
    mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$word")
  fi
}
complete -o filenames -F _shoal shoal
)";

constexpr char kZsh[] = R"(_shoal() {
  local place= next offered i
  for ((i = 2; i < CURRENT; ++i)); do
    next=${place:+$place }${words[i]}
    _shoal_words "$next" && place=$next
  done
  _shoal_words "$place"
  compadd -- ${=offered}
  [[ $PREFIX == -* ]] || _files
}
compdef _shoal shoal
)";

}  // namespace

void AddCompletion(CLI::App& app, CommandAction& action) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command =
      AddCommand(app, "completion", "A script with which bash or zsh completes shoal",
                 "shoal completion bash > "
                 "~/.local/share/bash-completion/completions/shoal");
  command->add_option("shell", *shell, "bash or zsh")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  command->callback([&app, shell, &action] {
    action = [&app, shell](Streams& streams) {
      streams.out << WordsFunction(app) << (*shell == "zsh" ? kZsh : kBash);
      return ExitCode::kDone;
    };
  });
}

}  // namespace shoal::cli
