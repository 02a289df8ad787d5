#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/base/file.h"
#include "core/base/json/json.h"
#include "core/base/status.h"
#include "core/data/data_files.h"
#include "core/data/prepare.h"
#include "core/data/token_file.h"
#include "xxhash.h"

namespace shoal::worker {
namespace {

// Part of every cache name: raise it when the same input gives other tokens.
constexpr int kCacheVersion = 6;

constexpr std::string_view kTokenFileMagic = "SHOALTOK";

// A token file from elsewhere must fit this model and job.
absl::StatusOr<PreparedData> UseTokenFile(const std::string& path, const SampleEncoder& encoder,
                                          const PrepareOptions& options) {
  SHOAL_ASSIGN_OR_RETURN(const auto file, formats::TokenFile::Open(path));
  if (file->vocabulary() > encoder.vocabulary()) {
    return InvalidArgument("{} was made for a vocabulary of {}, and the model has {} rows", path,
                           file->vocabulary(), encoder.vocabulary());
  }
  if (encoder.tokenizer() != nullptr && file->tokenizer_hash() != 0 &&
      file->tokenizer_hash() != encoder.tokenizer()->hash()) {
    return InvalidArgument(
        "{} was made with another tokenizer.json than the model's; make it again from the JSONL",
        path);
  }
  if (const bool pairs = encoder.learning().objective == plan::Objective::kDpo;
      pairs != file->pairs()) {
    return InvalidArgument("{} has {}pairs of replies, which train.objective: dpo takes", path,
                           pairs ? "no " : "");
  }
  for (int64_t i = 0; i < file->samples(); ++i) {
    if (file->longest(i) > options.max_sequence_tokens) {
      return InvalidArgument("{}: sample {} has {} tokens, more than max_sequence_tokens {}", path,
                             i, file->longest(i), options.max_sequence_tokens);
    }
    if (file->pairs() && options.microbatch_tokens > 0 &&
        file->tokens(i) > options.microbatch_tokens) {
      return InvalidArgument("{}: pair {} has {} tokens, more than microbatch_tokens {}", path, i,
                             file->tokens(i), options.microbatch_tokens);
    }
  }
  return PreparedData{path, true, SummaryOf(*file)};
}

absl::StatusOr<std::string> CacheName(const std::string& input,
                                      const std::vector<std::string>& files,
                                      const SampleEncoder& encoder, const PrepareOptions& options) {
  SHOAL_ASSIGN_OR_RETURN(const std::string version, VersionOf(files));
  std::string key = fmt::format("{}{}", kCacheVersion, version);
  key += fmt::format("|{:016x}|{}|{}|{}|{}",
                     encoder.tokenizer() == nullptr ? 0 : encoder.tokenizer()->hash(),
                     static_cast<int>(encoder.kind()), encoder.vocabulary(),
                     options.max_sequence_tokens, static_cast<int>(options.oversize));
  const Learning& learning = encoder.learning();
  key += fmt::format("|{}|{}|{}", static_cast<int>(learning.objective),
                     static_cast<int>(learning.train_on), static_cast<int>(options.documents));
  if (learning.objective == plan::Objective::kDpo) {
    key += fmt::format("|{}", options.microbatch_tokens);
  }
  key += fmt::format("|{}|{}", encoder.Signature(),
                     encoder.chat().has_value() ? encoder.chat()->day() : "");
  for (const auto& [ours, theirs] : options.fields) {
    key += fmt::format("|{}={}", ours, theirs);
  }
  // Of a folder the last name, of a pattern none that has a * in it.
  std::string stem = (std::filesystem::path(input) / "").parent_path().stem().string();
  std::ranges::replace_if(
      stem, [](char c) { return c == '*' || c == '?' || c == '['; }, '_');
  return fmt::format("{}-{:016x}.tokens", stem, XXH3_64bits(key.data(), key.size()));
}

constexpr std::pair<const char*, int64_t PrepareSummary::*> kCounts[] = {
    {"samples", &PrepareSummary::samples},
    {"documents", &PrepareSummary::documents},
    {"tokens", &PrepareSummary::tokens},
    {"targets", &PrepareSummary::targets},
    {"longest", &PrepareSummary::longest},
    {"weighted", &PrepareSummary::weighted},
    {"truncated", &PrepareSummary::truncated},
    {"skipped_oversize", &PrepareSummary::skipped_oversize},
    {"skipped_no_target", &PrepareSummary::skipped_no_target},
    {"silent_messages", &PrepareSummary::silent_messages},
    {"rewritten", &PrepareSummary::rewritten}};
constexpr std::pair<const char*, std::string PrepareSummary::*> kPlaces[] = {
    {"first_truncated", &PrepareSummary::first_truncated},
    {"first_oversize", &PrepareSummary::first_oversize},
    {"first_no_target", &PrepareSummary::first_no_target},
    {"first_silent", &PrepareSummary::first_silent},
    {"first_rewritten", &PrepareSummary::first_rewritten}};

std::string ToJson(const PrepareSummary& summary) {
  Json json;
  for (const auto& [key, count] : kCounts) {
    json[key] = summary.*count;
  }
  for (const auto& [key, place] : kPlaces) {
    json[key] = summary.*place;
  }
  return json.dump() + "\n";
}

absl::StatusOr<PrepareSummary> ReadSummary(const std::string& path) {
  SHOAL_ASSIGN_OR_RETURN(const Json json, ReadJson(path));
  SHOAL_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::From(json, path));
  PrepareSummary summary;
  for (const auto& [key, count] : kCounts) {
    SHOAL_ASSIGN_OR_RETURN(summary.*count, object.Integer(key, 0));
  }
  for (const auto& [key, place] : kPlaces) {
    SHOAL_ASSIGN_OR_RETURN(summary.*place, object.StringOr(key, ""));
  }
  return summary;
}

}  // namespace

absl::StatusOr<bool> IsTokenFile(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, fmt::format("cannot open {}", path));
  }
  char magic[8] = {};
  const ssize_t got = pread(fd.get(), magic, sizeof(magic), 0);
  return got == static_cast<ssize_t>(sizeof(magic)) &&
         std::string_view(magic, sizeof(magic)) == kTokenFileMagic;
}

PrepareSummary SummaryOf(const formats::TokenFile& file) {
  PrepareSummary summary;
  summary.samples = file.samples();
  summary.tokens = file.total_tokens();
  for (int64_t i = 0; i < file.samples(); ++i) {
    summary.targets += file.targets(i);
    summary.longest = std::max(summary.longest, file.longest(i));
    summary.weighted +=
        file.pairs() || file.weight(i) == static_cast<double>(file.targets(i)) ? 0 : 1;
  }
  return summary;
}

absl::StatusOr<PreparedData> PrepareCached(const std::string& input,
                                           const std::string& cache_directory,
                                           const SampleEncoder& encoder,
                                           const PrepareOptions& options) {
  SHOAL_RETURN_IF_ERROR(CheckFields(options.fields));
  const bool documents = encoder.learning().objective == plan::Objective::kPretrain;
  SHOAL_ASSIGN_OR_RETURN(const std::vector<std::string> files, ListDataFiles(input, documents));
  if (files.size() == 1) {
    SHOAL_ASSIGN_OR_RETURN(const bool is_token_file, IsTokenFile(files.front()));
    if (is_token_file) {
      return UseTokenFile(files.front(), encoder, options);
    }
  }
  SHOAL_ASSIGN_OR_RETURN(const std::string name, CacheName(input, files, encoder, options));
  SHOAL_RETURN_IF_ERROR(CreateDirectories(cache_directory));
  const std::string path = fmt::format("{}/{}", cache_directory, name);
  const std::string summary_path = path + ".json";
  // If anything is wrong with it (a crash between the two files, damage), it is made again.
  if (absl::StatusOr<PrepareSummary> summary = ReadSummary(summary_path); summary.ok()) {
    if (const auto file = formats::TokenFile::Open(path);
        file.ok() && (*file)->samples() == summary->samples) {
      return PreparedData{path, true, *std::move(summary)};
    }
  }
  SHOAL_ASSIGN_OR_RETURN(PrepareSummary summary, Prepare(input, path, encoder, options));
  SHOAL_RETURN_IF_ERROR(WriteFileAtomically(summary_path, ToJson(summary)));
  return PreparedData{path, false, std::move(summary)};
}

}  // namespace shoal::worker
