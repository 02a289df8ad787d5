#include "core/data/token_file.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/data/token_file_layout.h"

namespace shoal::formats {

struct TokenFile::State {
  std::unique_ptr<MappedFile> map;
  TokenFileView view;
};

TokenFile::TokenFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
TokenFile::~TokenFile() = default;

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(const std::string& path) {
  auto state = std::make_unique<State>();
  SHOAL_ASSIGN_OR_RETURN(state->map, MappedFile::Open(path));
  absl::StatusOr<TokenFileView> view = ParseTokenFile(state->map->bytes());
  if (!view.ok()) {
    return Annotate(view.status(), path);
  }
  state->view = *view;
  return std::unique_ptr<TokenFile>(new TokenFile(std::move(state)));
}

int64_t TokenFile::samples() const { return static_cast<int64_t>(state_->view.index.size()); }
int64_t TokenFile::tokens(int64_t sample) const {
  return state_->view.index[static_cast<size_t>(sample)].tokens;
}
int64_t TokenFile::targets(int64_t sample) const {
  return state_->view.index[static_cast<size_t>(sample)].targets;
}
int64_t TokenFile::vocabulary() const {
  return static_cast<int64_t>(state_->view.header.vocabulary);
}
int64_t TokenFile::total_tokens() const {
  return static_cast<int64_t>(state_->view.header.token_count);
}
uint64_t TokenFile::tokenizer_hash() const { return state_->view.header.tokenizer_hash; }

absl::StatusOr<TokenSample> TokenFile::Sample(int64_t sample) const {
  absl::StatusOr<TokenSample> result = ReadTokenSample(state_->view, sample);
  return result.ok() ? std::move(result)
                     : absl::StatusOr<TokenSample>(Annotate(result.status(), state_->map->path()));
}

}  // namespace shoal::formats
