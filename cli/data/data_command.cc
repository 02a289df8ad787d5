#include "cli/data/data_command.h"

#include <memory>

#include "CLI/CLI.hpp"
#include "cli/data/data_inspect.h"
#include "cli/data/data_preview.h"
#include "cli/data/data_source.h"
#include "cli/run/temporary_folder.h"
#include "cli/terminal/progress_bar.h"
#include "core/base/file.h"
#include "core/base/flag_checks.h"
#include "core/base/status.h"
#include "core/data/jsonl.h"
#include "core/data/synthetic/synth.h"
#include "core/data/synthetic/train_tokenizer.h"
#include "core/data/token_file.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

nlohmann::json SummaryJson(const worker::PrepareSummary& summary) {
  return {{"samples", summary.samples},
          {"tokens", summary.tokens},
          {"target_tokens", summary.targets},
          {"longest", summary.longest},
          {"truncated", summary.truncated},
          {"skipped_oversize", summary.skipped_oversize},
          {"skipped_no_target", summary.skipped_no_target}};
}

// Whether the command line, or the job, says all that is needed.
absl::Status CheckSource(const DataSourceOptions& source) {
  return source.input.empty() ? InvalidArgument("file is required, or --job") : absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExitCode> RunDataSynth(const DataSynthOptions& options, Streams& streams) {
  worker::SynthOptions synth{.samples = options.samples, .seed = options.seed};
  SHOAL_ASSIGN_OR_RETURN(synth.kind, worker::ParseSynthKind(options.kind));
  if (!options.lengths.empty()) {
    SHOAL_ASSIGN_OR_RETURN(synth.lengths, plan::ParseLengths(options.lengths));
  }
  SHOAL_RETURN_IF_ERROR(worker::WriteSynth(synth, options.output));
  if (options.json) {
    PrintJson(streams.out,
              {{"event", "synth"}, {"path", options.output}, {"samples", options.samples}});
  } else {
    streams.out << fmt::format("{}: {} samples of {}, seed {}\n", options.output,
                               WithThousands(options.samples), options.kind, options.seed);
  }
  return ExitCode::kDone;
}

absl::StatusOr<ExitCode> RunDataTokenizer(const DataTokenizerOptions& options, Streams& streams) {
  worker::TrainTokenizerOptions train{.vocabulary = options.vocabulary};
  SHOAL_ASSIGN_OR_RETURN(train.fields, ParseFields(options.fields));
  SHOAL_RETURN_IF_ERROR(worker::CheckFields(train.fields));
  SHOAL_RETURN_IF_ERROR(CreateDirectories(options.output));
  SHOAL_RETURN_IF_ERROR(worker::WriteTrainedTokenizer(options.input, train, options.output));
  SHOAL_ASSIGN_OR_RETURN(const auto tokenizer, worker::Tokenizer::Load(options.output));
  if (options.json) {
    PrintJson(streams.out, {{"event", "tokenizer"},
                            {"folder", options.output},
                            {"vocabulary", tokenizer->vocabulary()}});
  } else {
    streams.out << fmt::format("{}: a tokenizer of {} tokens\n", options.output,
                               tokenizer->vocabulary());
  }
  return ExitCode::kDone;
}

absl::StatusOr<ExitCode> RunDataPrepare(const DataPrepareOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(OpenedSource opened, OpenSource(options.source));
  ProgressBar bar(streams.err, streams.err_terminal, RealClock());
  if (streams.err_terminal.interactive) {
    opened.prepare.progress = [&bar](int64_t done, int64_t total) {
      bar.Items("tokenising, bytes", done, total);
    };
  }
  SHOAL_ASSIGN_OR_RETURN(const worker::PrepareSummary summary,
                         worker::Prepare(options.source.input, options.output,
                                         *opened.encoder.encoder, opened.prepare));
  bar.Clear();
  if (options.json) {
    nlohmann::json line = SummaryJson(summary);
    line["event"] = "prepared";
    line["path"] = options.output;
    PrintJson(streams.out, line);
  } else {
    streams.out << options.output << ": " << worker::Describe(summary) << "\n";
  }
  return ExitCode::kDone;
}

absl::StatusOr<ExitCode> RunDataInspect(const DataInspectOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const OpenedSource opened, OpenSource(options.source));
  SHOAL_ASSIGN_OR_RETURN(const auto folder, TemporaryFolder::Create());
  SHOAL_ASSIGN_OR_RETURN(const worker::PreparedData prepared,
                         worker::PrepareCached(options.source.input, folder->path(),
                                               *opened.encoder.encoder, opened.prepare));
  SHOAL_ASSIGN_OR_RETURN(const auto file, formats::TokenFile::Open(prepared.path));
  if (options.sample < 0 || options.sample >= file->samples()) {
    return InvalidArgument("--sample {}: {} has samples 0 to {}", options.sample,
                           options.source.input, file->samples() - 1);
  }
  SHOAL_ASSIGN_OR_RETURN(const formats::TokenSample sample, file->Sample(options.sample));
  const LengthSummary lengths = SummariseLengths(*file);
  SHOAL_ASSIGN_OR_RETURN(
      const PackingSummary packing,
      SummarisePacking(*file, options.microbatch_tokens, options.minibatch_samples));
  const worker::Tokenizer* tokenizer = opened.encoder.tokenizer.get();
  if (options.json) {
    nlohmann::json line = SummaryJson(prepared.summary);
    line["event"] = "data";
    line["path"] = options.source.input;
    line.update(ToJson(lengths));
    line.update(ToJson(packing));
    PrintJson(streams.out, line);
    PrintJson(streams.out, SampleJson(options.sample, sample, tokenizer));
    return ExitCode::kDone;
  }
  streams.out << worker::Describe(prepared.summary) << "\n\n"
              << RenderHistogram(lengths, streams.out_terminal) << "\n"
              << RenderPacking(packing) << "\n"
              << RenderSample(options.sample, sample, tokenizer, streams.out_terminal);
  return ExitCode::kDone;
}

void AddData(CLI::App& app, CommandAction& action) {
  CLI::App* parent = AddCommand(app, "data", "Make, tokenise or look at training data",
                                "shoal data inspect train.jsonl --model path/to/model");
  parent->require_subcommand(1);

  auto synth = std::make_shared<DataSynthOptions>();
  CLI::App* synth_command =
      AddCommand(*parent, "synth", "Seeded conversations whose answers can be checked",
                 "shoal data synth --kind mixed --samples 2000 --seed 1 --output train.jsonl");
  synth_command->add_option("--kind", synth->kind, "arithmetic, sort, extract or mixed")
      ->capture_default_str();
  synth_command->add_option("--samples", synth->samples, "How many")
      ->check(AtLeast(1))
      ->capture_default_str();
  synth_command->add_option("--lengths", synth->lengths,
                            fmt::format("Tokens of a sample: {} (default: short and heavy-tailed)",
                                        fmt::join(plan::LengthForms(), "; ")));
  synth_command->add_option("--seed", synth->seed, "The same seed gives the same bytes")
      ->capture_default_str();
  synth_command->add_option("--output", synth->output, "JSONL file to write")->required();
  synth_command->add_flag("--json", synth->json, "A JSON line instead of text");
  synth_command->callback([synth, &action] {
    action = [synth](Streams& streams) { return RunDataSynth(*synth, streams); };
  });

  auto tokenizer = std::make_shared<DataTokenizerOptions>();
  CLI::App* tokenizer_command =
      AddCommand(*parent, "tokenizer", "Train a small byte-level BPE tokenizer on a file",
                 "shoal data tokenizer train.jsonl --vocabulary 512 --output tokenizer");
  tokenizer_command->add_option("file", tokenizer->input, std::string(kSamplesHelp))->required();
  tokenizer_command->add_option("--vocabulary", tokenizer->vocabulary, "At most this many tokens")
      ->capture_default_str();
  tokenizer_command
      ->add_option("--field", tokenizer->fields, "The file's name of a field: prompt=question")
      ->allow_extra_args(false);
  tokenizer_command->add_option("--output", tokenizer->output, "Folder to make")->required();
  tokenizer_command->add_flag("--json", tokenizer->json, "A JSON line instead of text");
  tokenizer_command->callback([tokenizer, &action] {
    action = [tokenizer](Streams& streams) { return RunDataTokenizer(*tokenizer, streams); };
  });

  auto prepare = std::make_shared<DataPrepareOptions>();
  CLI::App* prepare_command =
      AddCommand(*parent, "prepare", "Tokenise once into the file that training maps",
                 "shoal data prepare train.jsonl --model path/to/model --output train.tokens");
  prepare_command->add_option("file", prepare->source.input, std::string(kSamplesHelp));
  AddSourceOptions(*prepare_command, prepare->source);
  AddJobOption(*prepare_command, prepare->source);
  prepare_command->add_option("--output", prepare->output, "Token file to write")->required();
  prepare_command->add_flag("--json", prepare->json, "A JSON line instead of text");
  prepare_command->callback([prepare, prepare_command, &action] {
    action = [prepare, prepare_command](Streams& streams) -> absl::StatusOr<ExitCode> {
      SHOAL_ASSIGN_OR_RETURN(const auto job, TakeJob(*prepare_command, prepare->source));
      if (job.has_value() && prepare->source.input.empty()) {
        prepare->source.input = job->data.train;
      }
      SHOAL_RETURN_IF_ERROR(CheckSource(prepare->source));
      return RunDataPrepare(*prepare, streams);
    };
  });

  auto inspect = std::make_shared<DataInspectOptions>();
  CLI::App* inspect_command = AddCommand(
      *parent, "inspect", "Lengths, what packing makes of them, and a sample with its loss mask",
      "shoal data inspect --job job.yaml --sample 3");
  inspect_command->add_option("file", inspect->source.input,
                              std::string(kSamplesHelp) + "; or a token file");
  AddSourceOptions(*inspect_command, inspect->source);
  AddJobOption(*inspect_command, inspect->source);
  inspect_command
      ->add_option("--microbatch-tokens", inspect->microbatch_tokens,
                   "Tokens that go through the model together")
      ->check(AtLeast(1))
      ->capture_default_str();
  inspect_command
      ->add_option("--minibatch-samples", inspect->minibatch_samples, "Samples of a step")
      ->check(AtLeast(1))
      ->capture_default_str();
  inspect_command->add_option("--sample", inspect->sample, "The one to show, counted from 0")
      ->capture_default_str();
  inspect_command->add_flag("--json", inspect->json, "JSON lines instead of text");
  inspect_command->callback([inspect, inspect_command, &action] {
    action = [inspect, inspect_command](Streams& streams) -> absl::StatusOr<ExitCode> {
      SHOAL_ASSIGN_OR_RETURN(const auto job, TakeJob(*inspect_command, inspect->source));
      if (job.has_value()) {
        const CLI::App& command = *inspect_command;
        TakeUnlessGiven(command, "file", inspect->source.input, job->data.train);
        TakeUnlessGiven(command, "--microbatch-tokens", inspect->microbatch_tokens,
                        job->data.microbatch_tokens);
        TakeUnlessGiven(command, "--minibatch-samples", inspect->minibatch_samples,
                        job->train.minibatch_samples);
      }
      SHOAL_RETURN_IF_ERROR(CheckSource(inspect->source));
      return RunDataInspect(*inspect, streams);
    };
  });

  AddDataPreview(*parent, action);
}

}  // namespace shoal::cli
