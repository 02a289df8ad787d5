#include "cli/data/training_data.h"

#include <algorithm>
#include <utility>

#include "cli/data/data_source.h"
#include "core/base/status.h"
#include "core/data/held_out.h"
#include "core/data/mixture.h"

namespace shoal::cli {

namespace {

// What is written around what is learnt, and where from.
std::string NameOf(const plan::Job& job, const worker::SampleEncoder& encoder) {
  if (!encoder.chat().has_value()) {
    return fmt::format("what documents begin or end with (eos_token_id of {})", job.model);
  }
  const worker::OwnTemplate* const own = encoder.chat()->own();
  return fmt::format("the chat template ({})",
                     own != nullptr ? own->name() : std::string(plan::Name(encoder.kind())));
}

absl::Status OtherSamples(const std::string& of, const std::string& what) {
  return FailedPrecondition(
      "--resume would go on with other {}: {}; take that back, or say "
      "--accept-changes",
      of, what);
}

// On the job's own day, if it says one.
absl::StatusOr<DataEncoder> OpenOnDay(const std::string& day, plan::Job job) {
  if (job.data.date.empty()) {
    job.data.date = day;
  }
  return OpenDataEncoder(job);
}

worker::Rendering RenderingOf(const worker::SampleEncoder& encoder,
                              const std::vector<worker::PreparedData>& sources) {
  const worker::Tokenizer* tokenizer = encoder.tokenizer();
  return {.chat_template = encoder.Signature(),
          .tokenizer = tokenizer == nullptr ? "" : fmt::format("{:016x}", tokenizer->hash()),
          .day = encoder.chat().has_value() ? encoder.chat()->day() : "",
          .weights = std::ranges::any_of(
              sources, [](const auto& source) { return source.summary.weighted > 0; })};
}

// Whether a run that began with `before` has the same samples with `now`. What is not known of it
// is no other.
absl::Status CheckTokens(const plan::Job& job, const worker::SampleEncoder& encoder,
                         const worker::Rendering& before, const worker::Rendering& now) {
  const auto differ = [](const std::string& one, const std::string& other) {
    return !one.empty() && !other.empty() && one != other;
  };
  if (differ(before.tokenizer, now.tokenizer)) {
    return OtherSamples("tokens", fmt::format("{}/tokenizer.json is another than the run began "
                                              "with",
                                              job.model));
  }
  if (differ(before.chat_template, now.chat_template)) {
    return OtherSamples("tokens", NameOf(job, encoder) + " is another than the run began with");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TrainingData> PrepareTrainingData(const plan::Job& job,
                                                 const std::string& cache_folder,
                                                 TrainingDataOptions how) {
  const plan::DataOptions& options = job.data;
  worker::Rendering earlier;
  if (how.resumes) {
    SHOAL_ASSIGN_OR_RETURN(const auto kept, worker::ReadRendering(cache_folder));
    earlier = kept.value_or(worker::Rendering());
  }
  SHOAL_ASSIGN_OR_RETURN(const DataEncoder encoder, OpenOnDay(earlier.day, job));
  const bool checks = how.resumes && !how.accept_changes;
  if (checks) {
    SHOAL_RETURN_IF_ERROR(
        CheckTokens(job, *encoder.encoder, earlier, RenderingOf(*encoder.encoder, {})));
  }
  const auto at_key = [&how](const char* key, const absl::Status& status) {
    return how.at_key ? how.at_key(key, status) : Annotate(status, key);
  };
  worker::PrepareOptions prepare = worker::PrepareOptionsOf(options);
  prepare.progress = std::move(how.progress);
  TrainingData data;
  std::vector<worker::PreparedData> sources;
  for (const std::string& path : options.paths()) {
    SHOAL_ASSIGN_OR_RETURN(sources.emplace_back(),
                           worker::PrepareCached(path, cache_folder, *encoder.encoder, prepare));
  }
  data.rendering = RenderingOf(*encoder.encoder, sources);
  if (checks && earlier.weights.has_value() && data.rendering.weights != earlier.weights) {
    return OtherSamples("weights", *earlier.weights ? "the run began with weights of samples, and "
                                                      "they have none"
                                                    : "the run began without weights of samples, "
                                                      "and some have one (weight, weights)");
  }
  data.date = data.rendering.day;
  data.train = sources.front();
  if (!options.mixture.empty()) {
    SHOAL_ASSIGN_OR_RETURN(data.train,
                           worker::Mix(sources, !options.weights().empty(), cache_folder));
  }
  if (!options.validation.path.empty()) {
    auto validation =
        worker::PrepareCached(options.validation.path, cache_folder, *encoder.encoder, prepare);
    SHOAL_RETURN_IF_ERROR(at_key("data.validation.path", validation.status()));
    data.validation = *std::move(validation);
  } else if (options.validation.fraction > 0) {
    auto split = worker::HoldOut(data.train, options.validation.fraction, cache_folder);
    SHOAL_RETURN_IF_ERROR(at_key("data.validation.fraction", split.status()));
    data.train = std::move(split->train);
    data.validation = std::move(split->validation);
  }
  return data;
}

}  // namespace shoal::cli
