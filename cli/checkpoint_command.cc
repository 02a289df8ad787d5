#include "cli/checkpoint_command.h"

#include <filesystem>
#include <memory>

#include "CLI/CLI.hpp"
#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/job/job.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/checkpoint.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

bool IsOneCheckpoint(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::path(path) / server::kManifestFile, error);
}

absl::StatusOr<std::vector<server::CheckpointInfo>> AllIn(const std::string& directory) {
  SHOAL_ASSIGN_OR_RETURN(auto found, server::ListCheckpoints(directory));
  if (found.empty()) {
    return NotFound("{}: no complete checkpoint there", directory);
  }
  return found;
}

absl::StatusOr<std::vector<std::string>> ToVerify(const std::string& path) {
  if (IsOneCheckpoint(path)) {
    return std::vector<std::string>{path};
  }
  SHOAL_ASSIGN_OR_RETURN(const auto found, AllIn(path));
  std::vector<std::string> folders;
  for (const server::CheckpointInfo& info : found) {
    folders.push_back(info.path);
  }
  return folders;
}

}  // namespace

absl::StatusOr<std::string> FindCheckpoint(const std::string& path) {
  if (IsOneCheckpoint(path)) {
    return path;
  }
  SHOAL_ASSIGN_OR_RETURN(const auto found, AllIn(path));
  return found.back().path;
}

// What is known of the job that wrote it.
server::ExportOptions ExportOptionsOf(const server::Checkpoint& checkpoint) {
  server::ExportOptions options;
  const auto yaml = checkpoint.JobYaml();
  const auto job = yaml.ok() ? plan::ParseJob(*yaml, checkpoint.folder() + "/" + server::kJobFile)
                             : absl::StatusOr<plan::Job>(yaml.status());
  if (job.ok()) {
    options.chat_template = job->data.chat_template;
    options.rslora = job->lora.rslora;
    options.lora_dropout = job->lora.dropout;
    std::error_code error;
    options.config_folder = fs::exists(job->model + "/config.json", error) ? job->model : "";
    options.tokenizer_folder = options.config_folder;
  }
  return options;
}

absl::StatusOr<ExitCode> RunCheckpointList(const CheckpointOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const auto found, server::ListCheckpoints(options.path));
  std::error_code error;
  if (!fs::is_directory(options.path, error)) {
    return NotFound("{}: no such directory", options.path);
  }
  Table table({{"step", Table::Align::kRight}, {"size", Table::Align::kRight}, {"folder"}});
  for (const server::CheckpointInfo& info : found) {
    if (options.json) {
      PrintJson(streams.out, {{"event", "checkpoint"},
                              {"step", info.step},
                              {"path", info.path},
                              {"bytes", info.bytes}});
    } else {
      table.Add({WithThousands(info.step), FormatBytes(info.bytes), info.path});
    }
  }
  if (!options.json) {
    streams.out << (found.empty() ? "no complete checkpoint\n"
                                  : table.Render(streams.out_terminal));
  }
  return ExitCode::kDone;
}

absl::StatusOr<ExitCode> RunCheckpointVerify(const CheckpointOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<std::string> folders, ToVerify(options.path));
  int64_t damaged = 0;
  for (const std::string& folder : folders) {
    const std::vector<absl::Status> problems = server::VerifyCheckpoint(folder);
    damaged += static_cast<int64_t>(problems.size());
    if (options.json) {
      nlohmann::json list = nlohmann::json::array();
      for (const absl::Status& problem : problems) {
        list.push_back(std::string(Message(problem)));
      }
      PrintJson(
          streams.out,
          {{"event", "verified"}, {"path", folder}, {"ok", problems.empty()}, {"problems", list}});
      continue;
    }
    streams.out << folder << ": "
                << (problems.empty() ? Paint(streams.out_terminal, Colour::kGreen, "ok")
                                     : Paint(streams.out_terminal, Colour::kRed, "damaged"))
                << "\n";
    for (const absl::Status& problem : problems) {
      streams.out << "  " << Message(problem) << "\n";
    }
  }
  if (damaged > 0) {
    return DataLoss("{} damaged file(s) under {}: resume from an older checkpoint or a copy",
                    damaged, options.path);
  }
  return ExitCode::kDone;
}

absl::StatusOr<ExitCode> RunCheckpointHash(const CheckpointOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const std::string folder, FindCheckpoint(options.path));
  SHOAL_ASSIGN_OR_RETURN(const auto checkpoint, server::Checkpoint::Open(folder));
  SHOAL_ASSIGN_OR_RETURN(const std::string hash, server::HashOfState(*checkpoint));
  streams.out << hash << "\n";
  return ExitCode::kDone;
}

absl::StatusOr<ExitCode> RunCheckpointExport(const CheckpointExportOptions& options,
                                             Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const DType dtype, ParseDType(options.dtype));
  std::error_code error;
  if (fs::exists(options.output + "/config.json", error) ||
      fs::exists(options.output + "/adapter_config.json", error)) {
    return AlreadyExists("{} holds a model already: remove it or choose another --output",
                         options.output);
  }
  SHOAL_ASSIGN_OR_RETURN(const std::string folder, FindCheckpoint(options.path));
  SHOAL_ASSIGN_OR_RETURN(const auto checkpoint, server::Checkpoint::Open(folder));
  if (options.merge && checkpoint->manifest().spec.adapters.empty()) {
    return InvalidArgument("{} has no adapters: export it without --merge", folder);
  }
  server::ExportOptions as = ExportOptionsOf(*checkpoint);
  as.dtype = dtype;
  as.merge = options.merge;
  if (!options.tokenizer.empty()) {
    as.tokenizer_folder = options.tokenizer;
  }
  SHOAL_RETURN_IF_ERROR(server::ExportHuggingFace(*checkpoint, options.output, as));
  const int64_t step = checkpoint->manifest().step;
  if (options.json) {
    PrintJson(streams.out, {{"event", "exported"},
                            {"step", step},
                            {"checkpoint", folder},
                            {"output", options.output}});
  } else {
    streams.out << fmt::format(
        "{}: the weights after step {}{}\n", options.output, step,
        as.tokenizer_folder.empty() ? ", without a tokenizer (see --tokenizer)" : "");
  }
  return ExitCode::kDone;
}

void AddCheckpoint(CLI::App& app, CommandAction& action) {
  CLI::App* parent = AddCommand(app, "checkpoint", "List, verify, hash or export checkpoints",
                                "shoal checkpoint list checkpoints");
  parent->require_subcommand(1);

  auto list = std::make_shared<CheckpointOptions>();
  CLI::App* list_command = AddCommand(*parent, "list", "The complete checkpoints of a directory",
                                      "shoal checkpoint list checkpoints");
  list_command->add_option("directory", list->path, "A job's checkpoint.directory")->required();
  list_command->add_flag("--json", list->json, "JSON lines instead of a table");
  list_command->callback([list, &action] {
    action = [list](Streams& streams) { return RunCheckpointList(*list, streams); };
  });

  auto verify = std::make_shared<CheckpointOptions>();
  CLI::App* verify_command = AddCommand(*parent, "verify", "Read every byte and name damaged files",
                                        "shoal checkpoint verify checkpoints/step-00000050");
  verify_command
      ->add_option("checkpoint", verify->path,
                   "A checkpoint, or a directory of them (all are verified)")
      ->required();
  verify_command->add_flag("--json", verify->json, "JSON lines instead of text");
  verify_command->callback([verify, &action] {
    action = [verify](Streams& streams) { return RunCheckpointVerify(*verify, streams); };
  });

  auto hash = std::make_shared<CheckpointOptions>();
  CLI::App* hash_command =
      AddCommand(*parent, "hash", "Print a hash of weights and moments, the same however cut",
                 "shoal checkpoint hash checkpoints");
  hash_command
      ->add_option("checkpoint", hash->path,
                   "A checkpoint, or a directory of them (the newest is taken)")
      ->required();
  hash_command->callback([hash, &action] {
    action = [hash](Streams& streams) { return RunCheckpointHash(*hash, streams); };
  });

  auto exported = std::make_shared<CheckpointExportOptions>();
  CLI::App* export_command =
      AddCommand(*parent, "export", "Write a checkpoint's weights as a Hugging Face folder",
                 "shoal checkpoint export checkpoints/step-00000050 --output model");
  export_command
      ->add_option("checkpoint", exported->path,
                   "A checkpoint, or a directory of them (the newest is taken)")
      ->required();
  export_command->add_option("--output", exported->output, "Folder to make")->required();
  export_command->add_option("--tokenizer", exported->tokenizer,
                             "Folder of the tokenizer (default: the job's model)");
  export_command->add_option("--dtype", exported->dtype, "fp32 or bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  export_command->add_flag("--merge", exported->merge,
                           "Write the model with its adapters in it, not these alone");
  export_command->add_flag("--json", exported->json, "A JSON line instead of text");
  export_command->callback([exported, &action] {
    action = [exported](Streams& streams) { return RunCheckpointExport(*exported, streams); };
  });
}

}  // namespace shoal::cli
