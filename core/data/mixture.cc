#include "core/data/mixture.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "core/data/data_files.h"
#include "core/data/token_file.h"
#include "xxhash.h"

namespace shoal::worker {
namespace {

using formats::TokenFile;
using formats::TokenFileWriter;

absl::Status Append(const TokenFile& file, TokenFileWriter& writer) {
  for (int64_t i = 0; i < file.samples(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const formats::TokenSample sample, file.Sample(i));
    SHOAL_RETURN_IF_ERROR(writer.Add(sample));
  }
  return absl::OkStatus();
}

absl::Status WriteMixture(const std::vector<PreparedData>& sources, bool keeps_sources,
                          const std::string& path) {
  SHOAL_ASSIGN_OR_RETURN(const auto first, TokenFile::Open(sources.front().path));
  SHOAL_ASSIGN_OR_RETURN(const auto writer, TokenFileWriter::Create(path, first->vocabulary(),
                                                                    first->tokenizer_hash()));
  for (const PreparedData& source : sources) {
    SHOAL_ASSIGN_OR_RETURN(const auto file, TokenFile::Open(source.path));
    if (keeps_sources) {
      writer->BeginSource();
    }
    SHOAL_RETURN_IF_ERROR(Append(*file, *writer));
  }
  return writer->Finish();
}

PrepareSummary SumOf(const std::vector<PreparedData>& sources) {
  PrepareSummary all;
  const auto take_first = [](std::string& into, const std::string& place) {
    into = into.empty() ? place : into;
  };
  for (const PreparedData& source : sources) {
    const PrepareSummary& one = source.summary;
    all.samples += one.samples;
    all.documents += one.documents;
    all.tokens += one.tokens;
    all.targets += one.targets;
    all.longest = std::max(all.longest, one.longest);
    all.weighted += one.weighted;
    all.truncated += one.truncated;
    all.skipped_oversize += one.skipped_oversize;
    all.skipped_no_target += one.skipped_no_target;
    all.silent_messages += one.silent_messages;
    all.rewritten += one.rewritten;
    take_first(all.first_truncated, one.first_truncated);
    take_first(all.first_oversize, one.first_oversize);
    take_first(all.first_no_target, one.first_no_target);
    take_first(all.first_silent, one.first_silent);
    take_first(all.first_rewritten, one.first_rewritten);
  }
  return all;
}

}  // namespace

absl::StatusOr<PreparedData> Mix(const std::vector<PreparedData>& sources, bool keeps_sources,
                                 const std::string& cache_directory) {
  SHOAL_CHECK(!sources.empty());
  std::vector<std::string> paths;
  std::ranges::transform(sources, std::back_inserter(paths), &PreparedData::path);
  SHOAL_ASSIGN_OR_RETURN(const std::string version, VersionOf(paths));
  const std::string key = fmt::format("1|{}{}", keeps_sources, version);
  PreparedData mixed = {.path = fmt::format("{}/mixture-{:016x}.tokens", cache_directory,
                                            XXH3_64bits(key.data(), key.size())),
                        .summary = SumOf(sources)};
  const auto cached = TokenFile::Open(mixed.path);
  mixed.from_cache = cached.ok() && (*cached)->samples() == mixed.summary.samples;
  if (!mixed.from_cache) {
    SHOAL_RETURN_IF_ERROR(CreateDirectories(cache_directory));
    SHOAL_RETURN_IF_ERROR(WriteMixture(sources, keeps_sources, mixed.path));
  }
  return mixed;
}

}  // namespace shoal::worker
