#include "cli/data/data_preview.h"

#include <memory>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/data/data_inspect.h"
#include "cli/data/data_source.h"
#include "cli/run/preflight.h"
#include "core/base/flag_checks.h"
#include "core/base/status.h"
#include "core/data/jsonl.h"
#include "core/data/sample_reader.h"
#include "nlohmann/json.hpp"
#include "worker/model/transformer.h"

namespace shoal::cli {
namespace {

// The file of the template that samples are written with, or the name of ours.
std::string TemplateOf(const worker::SampleEncoder& encoder) {
  const bool own = encoder.chat().has_value() && encoder.chat()->own() != nullptr;
  return own ? encoder.chat()->own()->name() : std::string(plan::Name(encoder.kind()));
}

nlohmann::json TokensJson(const worker::EncodedSample& sample) {
  std::vector<bool> learnt(sample.tokens.size(), false);
  for (size_t i = 0; i + 1 < sample.labels.size(); ++i) {
    learnt[i + 1] = sample.labels[i] != formats::kIgnoredLabel;
  }
  nlohmann::json json = {{"ids", sample.tokens}, {"learnt", learnt}};
  if (!sample.weights.empty()) {  // of what is learnt; others say 1
    std::vector<float> weights = {1};
    weights.insert(weights.end(), sample.weights.begin(), sample.weights.end() - 1);
    json["weights"] = weights;
  }
  return json;
}

// Shows the first samples of one source, the job's first with a title.
absl::Status Preview(const std::string& path, const DataEncoder& encoder,
                     const worker::JsonlOptions& jsonl, const DataPreviewOptions& options,
                     bool first, Streams& streams) {
  const std::string chat_template = TemplateOf(*encoder.encoder);
  SHOAL_ASSIGN_OR_RETURN(const auto reader, worker::SampleReader::Open(path));
  for (int64_t i = 0; i < options.samples; ++i) {
    SHOAL_ASSIGN_OR_RETURN(const auto line, reader->Next());
    if (!line.has_value()) {
      break;
    }
    SHOAL_ASSIGN_OR_RETURN(const worker::JsonlSample sample,
                           worker::ParseJsonlLine(*line, jsonl, reader->where()));
    SHOAL_ASSIGN_OR_RETURN(const worker::EncodedSample encoded,
                           encoder.encoder->Encode(sample, reader->where()));
    const formats::TokenSample shown{encoded.tokens, encoded.labels, encoded.targets,
                                     encoded.weights};
    if (options.json) {
      nlohmann::json out = SampleJson(i, shown, encoder.tokenizer.get());
      out["where"] = reader->where();
      out["template"] = chat_template;
      out.update(TokensJson(encoded));
      PrintJson(streams.out, out);
    } else {
      streams.out << (first && i == 0 ? "template: " + chat_template + "\n" : "") << "\n"
                  << reader->where() << ", "
                  << RenderSample(i, shown, encoder.tokenizer.get(), streams.out_terminal);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExitCode> RunDataPreview(const DataPreviewOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const plan::Job job,
                         ReadJob(options.job, {}, {.cpu_has_bf16 = worker::CpuHasFastBf16()}));
  SHOAL_ASSIGN_OR_RETURN(
      const DataEncoder encoder,
      OpenDataEncoder(job.model, {job.data.chat_template, job.data.template_arguments}));
  const worker::JsonlOptions jsonl{job.data.fields, encoder.encoder->vocabulary()};
  for (const std::string& path : job.data.paths()) {
    const bool first = path == job.data.paths().front();
    SHOAL_RETURN_IF_ERROR(Preview(path, encoder, jsonl, options, first, streams));
  }
  return ExitCode::kDone;
}

void AddDataPreview(CLI::App& data, CommandAction& action) {
  auto options = std::make_shared<DataPreviewOptions>();
  CLI::App* command =
      AddCommand(data, "preview", "A job's first samples as tokens, and what of them is learnt",
                 "shoal data preview job.yaml");
  command->add_option("job", options->job, "Job file (YAML)")->required();
  command->add_option("--samples", options->samples, "How many of each source")
      ->check(AtLeast(1))
      ->capture_default_str();
  command->add_flag("--json", options->json, "A JSON line for each sample instead of text");
  command->callback([options, &action] {
    action = [options](Streams& streams) { return RunDataPreview(*options, streams); };
  });
}

}  // namespace shoal::cli
