#include "cli/data/training_data.h"

#include <utility>

#include "cli/data/data_source.h"
#include "core/base/status.h"
#include "core/data/held_out.h"
#include "core/data/mixture.h"

namespace shoal::cli {

absl::StatusOr<TrainingData> PrepareTrainingData(const plan::Job& job,
                                                 const std::string& cache_folder,
                                                 std::function<void(int64_t, int64_t)> progress) {
  const plan::DataOptions& options = job.data;
  SHOAL_ASSIGN_OR_RETURN(const DataEncoder encoder,
                         OpenDataEncoder(job.model, options.chat_template));
  worker::PrepareOptions prepare = worker::PrepareOptionsOf(options);
  prepare.progress = std::move(progress);
  TrainingData data;
  std::vector<worker::PreparedData> sources;
  for (const std::string& path : options.paths()) {
    SHOAL_ASSIGN_OR_RETURN(sources.emplace_back(),
                           worker::PrepareCached(path, cache_folder, *encoder.encoder, prepare));
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
