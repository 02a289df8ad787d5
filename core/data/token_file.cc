#include "core/data/token_file.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/data/token_file_layout.h"

namespace shoal::formats {

struct TokenFile::State {
  InputFile file;
  TokenFileHeader header;
  std::vector<TokenFileEntry> index;
  std::vector<double> weights;     // of samples; empty: each target weighs 1
  std::vector<ChosenPart> chosen;  // of pairs
  std::vector<int64_t> source_samples;

  absl::Status Open(const std::string& path);
  absl::StatusOr<TokenSample> Read(int64_t sample) const;
};

absl::Status TokenFile::State::Open(const std::string& path) {
  SHOAL_ASSIGN_OR_RETURN(file, InputFile::Open(path));
  std::array<std::byte, sizeof(TokenFileHeader)> head;
  const auto head_bytes = static_cast<size_t>(std::min(file.size(), std::ssize(head)));
  SHOAL_RETURN_IF_ERROR(file.Read(0, std::span(head).first(head_bytes)));
  const auto parsed = ParseTokenFileHeader(std::span(head).first(head_bytes), file.size());
  if (!parsed.ok()) {
    return Annotate(parsed.status(), path);
  }
  header = *parsed;
  index.resize(header.sample_count);
  SHOAL_RETURN_IF_ERROR(
      file.Read(sizeof(TokenFileHeader), std::as_writable_bytes(std::span(index))));
  std::vector<uint64_t> sources(header.sources);
  SHOAL_RETURN_IF_ERROR(
      file.Read(SourcesPlace(header), std::as_writable_bytes(std::span(sources))));
  weights.resize(header.has_weights() ? header.sample_count : 0);
  SHOAL_RETURN_IF_ERROR(file.Read(SumsPlace(header), std::as_writable_bytes(std::span(weights))));
  chosen.resize(header.has_pairs() ? header.sample_count : 0);
  SHOAL_RETURN_IF_ERROR(file.Read(SumsPlace(header), std::as_writable_bytes(std::span(chosen))));
  const absl::Status status = CheckTokenFileIndex(header, {index, sources, weights, chosen});
  source_samples.assign(sources.begin(), sources.end());
  return status.ok() ? status : Annotate(status, path);
}

absl::StatusOr<TokenSample> TokenFile::State::Read(int64_t sample) const {
  if (sample < 0 || sample >= std::ssize(index)) {
    return OutOfRange("{}: sample {} does not exist, there are {}", file.path(), sample,
                      index.size());
  }
  const TokenFileEntry& entry = index[static_cast<size_t>(sample)];
  TokenSample result{.tokens = std::vector<int32_t>(entry.tokens),
                     .labels = std::vector<int32_t>(entry.tokens),
                     .targets = entry.targets};
  SHOAL_RETURN_IF_ERROR(
      file.Read(TokensPlace(header, entry), std::as_writable_bytes(std::span(result.tokens))));
  SHOAL_RETURN_IF_ERROR(
      file.Read(LabelsPlace(header, entry), std::as_writable_bytes(std::span(result.labels))));
  absl::Status status = CheckTokenSample(header, entry, sample, result.tokens, result.labels);
  if (status.ok() && header.has_weights()) {
    result.weights.resize(entry.tokens);
    SHOAL_RETURN_IF_ERROR(
        file.Read(WeightPlace(header, entry), std::as_writable_bytes(std::span(result.weights))));
    status = CheckTokenWeights(sample, result.labels, result.weights,
                               weights[static_cast<size_t>(sample)]);
  }
  if (status.ok() && header.has_pairs()) {
    result.chosen = chosen[static_cast<size_t>(sample)];
    status = CheckPair(sample, result.labels, result.chosen);
  }
  if (!status.ok()) {
    return Annotate(status, file.path());
  }
  return result;
}

TokenFile::TokenFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
TokenFile::~TokenFile() = default;

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(const std::string& path) {
  auto state = std::make_unique<State>();
  SHOAL_RETURN_IF_ERROR(state->Open(path));
  return std::unique_ptr<TokenFile>(new TokenFile(std::move(state)));
}

int64_t TokenFile::samples() const { return static_cast<int64_t>(state_->index.size()); }
const std::vector<int64_t>& TokenFile::source_samples() const { return state_->source_samples; }
int64_t TokenFile::tokens(int64_t sample) const {
  return state_->index[static_cast<size_t>(sample)].tokens;
}
int64_t TokenFile::targets(int64_t sample) const {
  return state_->index[static_cast<size_t>(sample)].targets;
}
double TokenFile::weight(int64_t sample) const {
  if (pairs()) {
    return 1;
  }
  return state_->weights.empty() ? static_cast<double>(targets(sample))
                                 : state_->weights[static_cast<size_t>(sample)];
}
bool TokenFile::pairs() const { return state_->header.has_pairs(); }
ChosenPart TokenFile::chosen(int64_t sample) const {
  return pairs() ? state_->chosen[static_cast<size_t>(sample)] : ChosenPart();
}
int64_t TokenFile::longest(int64_t sample) const {
  const int64_t first = chosen(sample).tokens;
  return std::max(first, tokens(sample) - first);
}
int64_t TokenFile::vocabulary() const { return static_cast<int64_t>(state_->header.vocabulary); }
int64_t TokenFile::total_tokens() const { return static_cast<int64_t>(state_->header.token_count); }
uint64_t TokenFile::tokenizer_hash() const { return state_->header.tokenizer_hash; }

absl::StatusOr<TokenSample> TokenFile::Sample(int64_t sample) const { return state_->Read(sample); }

}  // namespace shoal::formats
