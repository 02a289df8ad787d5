#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/data/token_file.h"
#include "core/data/token_file_layout.h"

namespace shoal::formats {

// The index comes first in the file but is known last, so tokens and labels are collected in two
// separate files and appended to the index at Finish.
struct TokenFileWriter::State {
  std::string path;
  TokenFileHeader header;
  std::vector<TokenFileEntry> index;
  std::vector<uint64_t> sources;
  std::unique_ptr<StreamedFile> tokens;
  std::unique_ptr<StreamedFile> labels;
  std::unique_ptr<StreamedFile> weights;  // from the first sample on that has some
  std::vector<double> sums;
  std::vector<ChosenPart> chosen;  // of pairs

  absl::Status AddWeights(std::span<const int32_t> of_labels, std::span<const float> added);
  absl::Status AppendOnes(uint64_t count);
};

absl::Status TokenFileWriter::State::AppendOnes(uint64_t count) {
  const std::vector<float> ones(std::min<uint64_t>(count, size_t{1} << 16), 1.0f);
  for (uint64_t left = count; left > 0;) {
    const size_t next = std::min<uint64_t>(left, ones.size());
    SHOAL_RETURN_IF_ERROR(weights->Append(std::as_bytes(std::span(ones).first(next))));
    left -= next;
  }
  return absl::OkStatus();
}

// Of the sample that comes next.
absl::Status TokenFileWriter::State::AddWeights(std::span<const int32_t> of_labels,
                                                std::span<const float> added) {
  if (!added.empty() && added.size() != of_labels.size()) {
    return InvalidArgument("sample {}: {} weights for {} labels", index.size(), added.size(),
                           of_labels.size());
  }
  sums.push_back(SumOfWeights(of_labels, added));
  if (added.empty()) {
    return weights == nullptr ? absl::OkStatus() : AppendOnes(of_labels.size());
  }
  SHOAL_RETURN_IF_ERROR(
      CheckTokenWeights(static_cast<int64_t>(index.size()), of_labels, added, sums.back()));
  if (weights == nullptr) {  // the samples before it weigh 1
    SHOAL_ASSIGN_OR_RETURN(weights, StreamedFile::Create(path + ".weights"));
    SHOAL_RETURN_IF_ERROR(AppendOnes(header.token_count));
  }
  return weights->Append(std::as_bytes(added));
}

TokenFileWriter::TokenFileWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
TokenFileWriter::~TokenFileWriter() = default;

absl::StatusOr<std::unique_ptr<TokenFileWriter>> TokenFileWriter::Create(const std::string& path,
                                                                         int64_t vocabulary,
                                                                         uint64_t tokenizer_hash) {
  if (vocabulary <= 0 || vocabulary > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("{}: vocabulary size {} is not possible", path, vocabulary);
  }
  auto state = std::make_unique<State>();
  state->path = path;
  state->header.vocabulary = static_cast<uint64_t>(vocabulary);
  state->header.tokenizer_hash = tokenizer_hash;
  SHOAL_ASSIGN_OR_RETURN(state->tokens, StreamedFile::Create(path + ".tokens"));
  SHOAL_ASSIGN_OR_RETURN(state->labels, StreamedFile::Create(path + ".labels"));
  return std::unique_ptr<TokenFileWriter>(new TokenFileWriter(std::move(state)));
}

void TokenFileWriter::BeginSource() { state_->sources.push_back(0); }

absl::Status TokenFileWriter::Add(std::span<const int32_t> tokens, std::span<const int32_t> labels,
                                  std::span<const float> weights) {
  State& state = *state_;
  const size_t sample = state.index.size();
  if (tokens.empty() || tokens.size() > std::numeric_limits<uint32_t>::max()) {
    return InvalidArgument("sample {} has {} tokens", sample, tokens.size());
  }
  if (labels.size() != tokens.size() || labels.back() != kIgnoredLabel) {
    return InvalidArgument(
        "sample {}: {} labels for {} tokens; labels are shifted and the last one is {}", sample,
        labels.size(), tokens.size(), kIgnoredLabel);
  }
  const auto vocabulary = static_cast<int64_t>(state.header.vocabulary);
  const auto known = [&](int32_t id) { return id >= 0 && id < vocabulary; };
  const auto bad_token = std::find_if_not(tokens.begin(), tokens.end(), known);
  const auto bad_label = std::find_if_not(
      labels.begin(), labels.end(), [&](int32_t id) { return id == kIgnoredLabel || known(id); });
  if (bad_token != tokens.end() || bad_label != labels.end()) {
    return InvalidArgument("sample {}: id {} is outside the vocabulary of {}", sample,
                           bad_token != tokens.end() ? *bad_token : *bad_label, vocabulary);
  }
  SHOAL_RETURN_IF_ERROR(state.AddWeights(labels, weights));
  const auto ignored = std::count(labels.begin(), labels.end(), kIgnoredLabel);
  state.index.push_back(
      {.first_token = state.header.token_count,
       .tokens = static_cast<uint32_t>(tokens.size()),
       .targets = static_cast<uint32_t>(static_cast<ptrdiff_t>(labels.size()) - ignored)});
  if (!state.sources.empty()) {
    ++state.sources.back();
  }
  state.header.token_count += tokens.size();
  SHOAL_RETURN_IF_ERROR(state.tokens->Append(std::as_bytes(tokens)));
  return state.labels->Append(std::as_bytes(labels));
}

absl::Status TokenFileWriter::AddPair(std::span<const int32_t> tokens,
                                      std::span<const int32_t> labels, ChosenPart chosen) {
  State& state = *state_;
  const auto ignored = static_cast<uint64_t>(std::ranges::count(labels, kIgnoredLabel));
  const uint64_t targets = labels.size() - ignored;
  if (labels.size() != tokens.size() || !IsChosenPart(chosen, tokens.size(), targets)) {
    return InvalidArgument(
        "{} of the {} tokens of pair {} are said to be chosen, and {} of its {} targets, with {} "
        "labels",
        chosen.tokens, tokens.size(), state.index.size(), chosen.targets, targets, labels.size());
  }
  SHOAL_RETURN_IF_ERROR(CheckPair(std::ssize(state.index), labels, chosen));
  state.chosen.push_back(chosen);
  return Add(tokens, labels);
}

absl::Status TokenFileWriter::Add(const TokenSample& sample) {
  return sample.chosen.tokens > 0 ? AddPair(sample.tokens, sample.labels, sample.chosen)
                                  : Add(sample.tokens, sample.labels, sample.weights);
}

absl::Status TokenFileWriter::Finish() {
  State& state = *state_;
  if (!state.chosen.empty() && state.chosen.size() != state.index.size()) {
    return InvalidArgument("{}: {} of {} samples are pairs", state.path, state.chosen.size(),
                           state.index.size());
  }
  state.header.sample_count = state.index.size();
  if (!state.sources.empty()) {
    state.header.version = kTokenFileVersionOfMixture;
    state.header.sources = static_cast<uint32_t>(state.sources.size());
  }
  if (const auto none = std::ranges::find(state.sources, uint64_t{0});
      none != state.sources.end()) {
    return InvalidArgument("source {} of the mixture is left without a sample",
                           none - state.sources.begin() + 1);
  }
  if (!state.chosen.empty()) {
    state.header.version = kTokenFileVersionOfPairs;
    state.sums.clear();
  } else if (state.weights != nullptr) {
    state.header.version = kTokenFileVersionOfWeights;
  } else {
    state.sums.clear();
  }
  const TokenFileIndex index = {state.index, state.sources, state.sums, state.chosen};
  state.header.checksum = TokenFileChecksum(state.header, index);
  SHOAL_ASSIGN_OR_RETURN(auto file, StreamedFile::Create(state.path));
  SHOAL_RETURN_IF_ERROR(file->Append(std::as_bytes(std::span(&state.header, 1))));
  for (const std::span<const std::byte> part :
       {std::as_bytes(index.entries), std::as_bytes(index.sources), std::as_bytes(index.weights),
        std::as_bytes(index.chosen)}) {
    SHOAL_RETURN_IF_ERROR(file->Append(part));
  }
  const auto append = [&](std::span<const std::byte> bytes) { return file->Append(bytes); };
  // One after the other, so that no more than half of the file is there twice.
  for (std::unique_ptr<StreamedFile>* part : {&state.tokens, &state.labels, &state.weights}) {
    if (*part != nullptr) {
      SHOAL_RETURN_IF_ERROR((*part)->Replay(append));
      part->reset();
    }
  }
  return file->Finish();
}

}  // namespace shoal::formats
