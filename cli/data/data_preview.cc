#include "cli/data/data_preview.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/data/data_inspect.h"
#include "cli/data/data_source.h"
#include "cli/run/preflight.h"
#include "core/base/flag_checks.h"
#include "core/base/status.h"
#include "core/data/documents/cutter.h"
#include "core/data/jsonl.h"
#include "core/data/prepare.h"
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

nlohmann::json TokensJson(const formats::TokenSample& sample) {
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

// Shows samples of one source after the other, the first of each.
class Preview {
 public:
  Preview(const plan::Job& job, const DataEncoder& encoder, const DataPreviewOptions& options,
          Streams& streams)
      : job_(job), encoder_(encoder), options_(options), streams_(streams) {
    const bool documents = job.train.objective == plan::Objective::kPretrain;
    template_ = documents ? "none, of documents" : TemplateOf(*encoder.encoder);
  }

  absl::Status Show(const std::string& path) {
    shown_ = 0;
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error)) {
      SHOAL_ASSIGN_OR_RETURN(const bool is_token_file, worker::IsTokenFile(path));
      if (is_token_file) {
        return ShowTokenFile(path);
      }
    }
    const bool documents = job_.train.objective == plan::Objective::kPretrain;
    SHOAL_ASSIGN_OR_RETURN(const auto reader, worker::SampleReader::Open(path, documents));
    worker::DocumentCutter cutter(
        job_.data.documents, job_.data.max_sequence_tokens, [&](auto tokens, auto weights) {
          ShowSample(worker::SampleOfText(tokens, weights), reader->where());
          return absl::OkStatus();
        });
    while (shown_ < options_.samples) {
      SHOAL_ASSIGN_OR_RETURN(const auto line, reader->Next());
      if (!line.has_value()) {
        return documents ? cutter.Finish() : absl::OkStatus();
      }
      SHOAL_ASSIGN_OR_RETURN(const auto samples, Encode(*line, *reader));
      for (const worker::EncodedSample& sample : samples) {
        if (!documents) {
          ShowSample(sample, reader->where());
        } else if (sample.targets > 0) {
          SHOAL_RETURN_IF_ERROR(
              cutter.Add(sample.tokens, sample.weights.empty() ? 1 : sample.weights.front()));
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<std::vector<worker::EncodedSample>> Encode(std::string_view line,
                                                            const worker::SampleReader& reader) {
    worker::JsonlSample sample;
    if (reader.is_text()) {
      sample.text = line;
    } else {
      SHOAL_ASSIGN_OR_RETURN(
          sample,
          worker::ParseJsonlLine(
              line, {job_.data.fields, encoder_.encoder->vocabulary(), job_.train.objective},
              reader.where()));
    }
    return encoder_.encoder->Encode(sample, reader.where());
  }

  absl::Status ShowTokenFile(const std::string& path) {
    SHOAL_ASSIGN_OR_RETURN(const auto file, formats::TokenFile::Open(path));
    for (int64_t i = 0; i < std::min(options_.samples, file->samples()); ++i) {
      SHOAL_ASSIGN_OR_RETURN(const formats::TokenSample sample, file->Sample(i));
      ShowSample(sample, path);
    }
    return absl::OkStatus();
  }

  void ShowSample(const worker::EncodedSample& of, const std::string& where) {
    ShowSample(formats::TokenSample{of.tokens, of.labels, of.targets, of.weights, of.chosen},
               where);
  }
  void ShowSample(const formats::TokenSample& sample, const std::string& where) {
    if (shown_ == options_.samples) {
      return;
    }
    const worker::Tokenizer* tokenizer = encoder_.tokenizer.get();
    if (options_.json) {
      nlohmann::json out = SampleJson(shown_, sample, tokenizer);
      out["where"] = where;
      out["template"] = template_;
      out.update(TokensJson(sample));
      PrintJson(streams_.out, out);
    } else {
      streams_.out << (titled_ ? "" : "template: " + template_ + "\n") << "\n"
                   << where << ", "
                   << RenderSample(shown_, sample, tokenizer, streams_.out_terminal);
    }
    titled_ = true;
    ++shown_;
  }

  const plan::Job& job_;
  const DataEncoder& encoder_;
  const DataPreviewOptions& options_;
  Streams& streams_;
  std::string template_;
  bool titled_ = false;
  int64_t shown_ = 0;  // of the source at hand
};

}  // namespace

absl::StatusOr<ExitCode> RunDataPreview(const DataPreviewOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const plan::Job job,
                         ReadJob(options.job, {}, {.cpu_has_bf16 = worker::CpuHasFastBf16()}));
  SHOAL_ASSIGN_OR_RETURN(const DataEncoder encoder, OpenDataEncoder(job));
  Preview preview(job, encoder, options, streams);
  for (const std::string& path : job.data.paths()) {
    SHOAL_RETURN_IF_ERROR(preview.Show(path));
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
