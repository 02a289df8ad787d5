#include "cli/run/next_commands.h"

#include <string_view>

#include "core/job/job.h"
#include "fmt/format.h"

namespace shoal::cli {
namespace {

// As a shell reads it back, whatever it contains.
std::string Quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
    return word;
  }
  std::string quoted = "'";
  for (const char letter : word) {
    quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  }
  return quoted + "'";
}

std::string Flags(const rpc::TlsOptions& tls) {
  std::string flags;
  if (!tls.folder.empty()) {
    flags += " --tls " + Quoted(tls.folder);
    if (tls.domain != rpc::kDefaultDomain) {
      flags += " --tls-domain " + Quoted(tls.domain);
    }
  }
  return flags;
}

std::string TemplateFlags(const plan::Job& job) {
  std::string flags = "--template " + Quoted(job.data.chat_template);
  for (const auto& [name, value] : job.data.template_arguments) {
    flags += " --template-argument " + Quoted(name + "=" + value);
  }
  return flags;
}

// `folder`: what the job left.
std::string ModelFlags(const std::string& folder, const plan::Job& job) {
  return job.lora.enabled()
             ? fmt::format("--model {} --adapter {}", Quoted(job.model), Quoted(folder))
             : "--model " + Quoted(folder);
}

}  // namespace

std::string StatusCommand(const std::string& directory, const rpc::TlsOptions& tls) {
  return "shoal status --run " + Quoted(directory) + Flags(tls);
}

std::string ResumeCommand(const RunArguments& run) {
  std::string command = "shoal train " + Quoted(run.job_file);
  for (const std::string& text : run.overrides) {
    command += " --set " + Quoted(text);
  }
  if (!run.token_file.empty()) {
    command += " --token-file " + Quoted(run.token_file);
  }
  return command + Flags(run.tls) + " --resume";
}

std::string HowToGoOn(RunArguments run, const std::string& checkpoint, const plan::Job& job,
                      bool non_finite) {
  if (checkpoint.empty()) {
    return non_finite ? "" : "there is no checkpoint yet to resume from\n";
  }
  if (non_finite) {
    run.overrides.push_back(fmt::format("train.learning_rate={:g}", job.train.learning_rate / 10));
  }
  return fmt::format("go on from {}{}: {}\n", checkpoint,
                     non_finite ? " with a lower learning rate, for example" : "",
                     ResumeCommand(run));
}

std::string GenerateCommand(const std::string& folder, const plan::Job& job) {
  const bool chats = job.train.objective != plan::Objective::kPretrain;
  return fmt::format("shoal generate {} {}--prompt \"...\"", ModelFlags(folder, job),
                     chats ? "--chat " + TemplateFlags(job) + " " : "");
}

std::string EvalCommand(const std::string& folder, const plan::Job& job) {
  const bool chats = job.train.objective != plan::Objective::kPretrain;
  std::string command = fmt::format("shoal eval {} {}", ModelFlags(folder, job),
                                    chats ? TemplateFlags(job) : "--objective pretrain");
  for (const auto& [ours, theirs] : job.data.fields) {
    command += " --field " + Quoted(ours + "=" + theirs);
  }
  return command + " --data FILE";
}

}  // namespace shoal::cli
