#include "core/data/held_out.h"

#include <cmath>
#include <filesystem>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/data/data_files.h"
#include "core/data/token_file.h"
#include "xxhash.h"

namespace shoal::worker {
namespace {

using formats::TokenFile;
using formats::TokenFileWriter;

// From 0 to 1, by what is in the sample.
double PlaceOf(const formats::TokenSample& sample) {
  const uint64_t hash = XXH3_64bits_withSeed(
      sample.labels.data(), sample.labels.size() * sizeof(int32_t),
      XXH3_64bits(sample.tokens.data(), sample.tokens.size() * sizeof(int32_t)));
  return std::ldexp(static_cast<double>(hash >> 11), -53);
}

absl::StatusOr<std::string> CacheName(const std::string& path, double fraction) {
  SHOAL_ASSIGN_OR_RETURN(const std::string version, VersionOf({path}));
  const std::string key = fmt::format("1{}|{}", version, fraction);
  return fmt::format("{}-{:016x}", std::filesystem::path(path).stem().string(),
                     XXH3_64bits(key.data(), key.size()));
}

absl::Status Split(const TokenFile& file, double fraction, const std::string& train,
                   const std::string& validation) {
  SHOAL_ASSIGN_OR_RETURN(const auto to_train,
                         TokenFileWriter::Create(train, file.vocabulary(), file.tokenizer_hash()));
  SHOAL_ASSIGN_OR_RETURN(const auto held_out, TokenFileWriter::Create(validation, file.vocabulary(),
                                                                      file.tokenizer_hash()));
  int64_t held = 0;
  auto source = file.source_samples().begin();
  int64_t next_source = 0;
  for (int64_t i = 0; i < file.samples(); ++i) {
    if (i == next_source && source != file.source_samples().end()) {
      to_train->BeginSource();
      next_source += *source++;
    }
    SHOAL_ASSIGN_OR_RETURN(const formats::TokenSample sample, file.Sample(i));
    const bool holds = PlaceOf(sample) < fraction;
    held += holds ? 1 : 0;
    SHOAL_RETURN_IF_ERROR((holds ? held_out : to_train)->Add(sample));
  }
  if (held == 0 || held == file.samples()) {
    return InvalidArgument("{} of {} samples is {}; at least 1 is needed to {}", fraction,
                           file.samples(), held == 0 ? "none" : "all",
                           held == 0 ? "validate on" : "train on");
  }
  SHOAL_RETURN_IF_ERROR(to_train->Finish());
  return held_out->Finish();
}

}  // namespace

absl::StatusOr<HeldOut> HoldOut(const PreparedData& data, double fraction,
                                const std::string& cache_directory) {
  SHOAL_ASSIGN_OR_RETURN(const auto file, TokenFile::Open(data.path));
  SHOAL_ASSIGN_OR_RETURN(const std::string name, CacheName(data.path, fraction));
  const std::string stem = fmt::format("{}/{}", cache_directory, name);
  HeldOut split;
  split.train.path = stem + ".train.tokens";
  split.validation.path = stem + ".validation.tokens";
  const auto open = [&]() -> absl::Status {
    SHOAL_ASSIGN_OR_RETURN(const auto train, TokenFile::Open(split.train.path));
    SHOAL_ASSIGN_OR_RETURN(const auto validation, TokenFile::Open(split.validation.path));
    if (train->samples() + validation->samples() != file->samples()) {
      return DataLoss("{}: not the whole of {}", stem, data.path);
    }
    split.train.summary = SummaryOf(*train);
    split.validation.summary = SummaryOf(*validation);
    return absl::OkStatus();
  };
  split.train.from_cache = split.validation.from_cache = open().ok();
  if (!split.train.from_cache) {
    SHOAL_RETURN_IF_ERROR(CreateDirectories(cache_directory));
    SHOAL_RETURN_IF_ERROR(Split(*file, fraction, split.train.path, split.validation.path));
    SHOAL_RETURN_IF_ERROR(open());
  }
  // What was left out or cut belongs to the whole.
  const PrepareSummary part = split.train.summary;
  split.train.summary = data.summary;
  split.train.summary.samples = part.samples;
  split.train.summary.tokens = part.tokens;
  split.train.summary.targets = part.targets;
  split.train.summary.longest = part.longest;
  split.train.summary.weighted = part.weighted;
  return split;
}

}  // namespace shoal::worker
