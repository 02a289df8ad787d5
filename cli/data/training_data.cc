#include "cli/data/training_data.h"

#include <algorithm>
#include <utility>

#include "cli/data/data_source.h"
#include "core/base/status.h"
#include "core/data/held_out.h"
#include "core/data/mixture.h"
#include "core/data/rendering.h"

namespace shoal::cli {

namespace {

std::string NameOf(const worker::ChatTemplate& chat, plan::Template kind) {
  return chat.own() != nullptr ? chat.own()->name() : std::string(plan::Name(kind));
}

absl::StatusOr<DataEncoder> OpenEncoder(const plan::Job& job, const std::string& cache_folder,
                                        const TrainingDataOptions& options) {
  std::optional<worker::Rendering> earlier;
  if (options.resumes) {
    SHOAL_ASSIGN_OR_RETURN(earlier, worker::ReadRendering(cache_folder));
  }
  SHOAL_ASSIGN_OR_RETURN(
      DataEncoder encoder,
      OpenDataEncoder(job.model, {job.data.chat_template, job.data.template_arguments,
                                  earlier.has_value() ? earlier->day : ""}));
  const auto& chat = encoder.encoder->chat();
  if (earlier.has_value() && chat.has_value() && !options.accept_changes &&
      chat->Signature() != earlier->chat_template) {
    return FailedPrecondition(
        "--resume would go on with other tokens: the chat template ({}) is another than the run "
        "began with; take that back, or say --accept-changes",
        NameOf(*chat, encoder.encoder->kind()));
  }
  return encoder;
}

}  // namespace

absl::StatusOr<TrainingData> PrepareTrainingData(const plan::Job& job,
                                                 const std::string& cache_folder,
                                                 TrainingDataOptions how) {
  const plan::DataOptions& options = job.data;
  SHOAL_ASSIGN_OR_RETURN(const DataEncoder encoder, OpenEncoder(job, cache_folder, how));
  worker::PrepareOptions prepare = worker::PrepareOptionsOf(options);
  prepare.progress = std::move(how.progress);
  TrainingData data;
  std::vector<worker::PreparedData> sources;
  for (const std::string& path : options.paths()) {
    SHOAL_ASSIGN_OR_RETURN(sources.emplace_back(),
                           worker::PrepareCached(path, cache_folder, *encoder.encoder, prepare));
  }
  const bool renders = std::ranges::any_of(sources, [&](const worker::PreparedData& source) {
    return source.path.starts_with(cache_folder);
  });
  if (const auto& chat = encoder.encoder->chat(); renders && chat.has_value()) {
    SHOAL_RETURN_IF_ERROR(worker::WriteRendering(cache_folder, {chat->Signature(), chat->day()}));
  }
  data.train = sources.front();
  if (!options.mixture.empty()) {
    SHOAL_ASSIGN_OR_RETURN(data.train,
                           worker::Mix(sources, !options.weights().empty(), cache_folder));
  }
  if (!options.validation.path.empty()) {
    auto validation =
        worker::PrepareCached(options.validation.path, cache_folder, *encoder.encoder, prepare);
    SHOAL_RETURN_IF_ERROR(Annotate(validation.status(), "data.validation.path"));
    data.validation = *std::move(validation);
  } else if (options.validation.fraction > 0) {
    auto split = worker::HoldOut(data.train, options.validation.fraction, cache_folder);
    SHOAL_RETURN_IF_ERROR(Annotate(split.status(), "data.validation.fraction"));
    data = {.train = std::move(split->train), .validation = std::move(split->validation)};
  }
  return data;
}

}  // namespace shoal::cli
