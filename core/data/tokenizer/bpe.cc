#include "core/data/tokenizer/bpe.h"

#include <queue>

#include "core/base/status.h"
#include "core/data/tokenizer/unicode.h"

namespace shoal::worker {
namespace {

// Up to this many symbols, scanning all pairs each time beats keeping a heap.
constexpr size_t kShortPiece = 24;

constexpr uint64_t PairKey(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bpe>> Bpe::Create(BpeModel model, const std::string& where) {
  std::unique_ptr<Bpe> bpe(new Bpe(std::move(model)));
  SHOAL_RETURN_IF_ERROR(bpe->Build(where));
  return bpe;
}

absl::Status Bpe::Build(const std::string& where) {
  token_ids_.reserve(model_.vocabulary.size());
  for (const auto& [token, id] : model_.vocabulary) {
    token_ids_.emplace(token, id);
  }
  character_ids_.fill(-1);
  std::string text;
  for (char32_t c = 0; c < character_ids_.size(); ++c) {
    text.clear();
    AppendUtf8(c, text);
    character_ids_[c] = FindToken(text);
  }
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    byte_ids_[byte] = FindToken(fmt::format("<0x{:02X}>", byte));
  }
  if (!model_.unknown_token.empty()) {
    unknown_id_ = FindToken(model_.unknown_token);
    if (unknown_id_ < 0) {
      return InvalidArgument("{}: unk_token '{}' is not in the vocabulary", where,
                             model_.unknown_token);
    }
  }
  merges_.reserve(model_.merges.size());
  for (size_t rank = 0; rank < model_.merges.size(); ++rank) {
    const auto& [left, right] = model_.merges[rank];
    const int32_t left_id = FindToken(left);
    const int32_t right_id = FindToken(right);
    const int32_t merged_id = FindToken(left + right);
    if (left_id < 0 || right_id < 0 || merged_id < 0) {
      return InvalidArgument("{}: merge {} ('{}' '{}'): '{}' is not in the vocabulary", where, rank,
                             left, right,
                             left_id < 0    ? left
                             : right_id < 0 ? right
                                            : left + right);
    }
    // If a pair is listed twice, the last one counts, as in Hugging Face's reader.
    merges_[PairKey(left_id, right_id)] = {static_cast<uint32_t>(rank), merged_id};
  }
  model_.merges.clear();
  model_.merges.shrink_to_fit();
  return absl::OkStatus();
}

Bpe::Merge Bpe::FindMerge(int32_t left, int32_t right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? Merge() : found->second;
}

int32_t Bpe::FindToken(std::string_view text) const {
  const auto found = token_ids_.find(text);
  return found == token_ids_.end() ? -1 : found->second;
}

absl::Status Bpe::Encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.empty()) {
    return absl::OkStatus();
  }
  if (model_.ignore_merges) {
    if (const int32_t id = FindToken(piece); id >= 0) {
      ids.push_back(id);
      return absl::OkStatus();
    }
  }
  thread_local std::vector<int32_t> symbols;
  symbols.clear();
  SHOAL_RETURN_IF_ERROR(Characters(piece, symbols));
  if (symbols.size() <= kShortPiece) {
    MergeShort(symbols);
  } else {
    MergeLong(symbols);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  return absl::OkStatus();
}

// Appends one id per character, or several bytes' ids, or the unknown token.
absl::Status Bpe::Characters(std::string_view piece, std::vector<int32_t>& ids) const {
  bool after_unknown = false;  // a fused unknown token is open
  for (size_t i = 0; i < piece.size();) {
    const size_t length = CharacterLength(piece[i]);
    const std::string_view character = piece.substr(i, length);
    i += length;
    const int32_t id =
        length <= 2 ? character_ids_[FirstCharacter(character)] : FindToken(character);
    if (id >= 0) {
      ids.push_back(id);
      after_unknown = false;
      continue;
    }
    bool all_bytes = model_.byte_fallback;
    for (const char c : character) {
      all_bytes = all_bytes && byte_ids_[static_cast<unsigned char>(c)] >= 0;
    }
    if (all_bytes) {
      for (const char c : character) {
        ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
      }
      after_unknown = false;
      continue;
    }
    if (unknown_id_ < 0) {
      return InvalidArgument("the tokenizer has no token for U+{:04X}, and no unknown token",
                             static_cast<uint32_t>(FirstCharacter(character)));
    }
    if (!after_unknown || !model_.fuse_unknown) {
      ids.push_back(unknown_id_);
    }
    after_unknown = true;
  }
  return absl::OkStatus();
}

void Bpe::MergeShort(std::vector<int32_t>& ids) const {
  size_t count = ids.size();
  if (count < 2) {
    return;
  }
  std::array<Merge, kShortPiece> merges;  // merges[i]: of ids[i] and ids[i + 1]
  for (size_t i = 0; i + 1 < count; ++i) {
    merges[i] = FindMerge(ids[i], ids[i + 1]);
  }
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      best = merges[i].rank < merges[best].rank ? i : best;
    }
    if (merges[best].rank == kNoRank) {
      break;
    }
    ids[best] = merges[best].id;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      ids[i] = ids[i + 1];
      merges[i] = merges[i + 1];
    }
    --count;
    if (best + 1 < count) {
      merges[best] = FindMerge(ids[best], ids[best + 1]);
    }
    if (best > 0) {
      merges[best - 1] = FindMerge(ids[best - 1], ids[best]);
    }
  }
  ids.resize(count);
}

void Bpe::MergeLong(std::vector<int32_t>& ids) const {
  struct Links {
    int32_t previous;
    int32_t next;
  };
  struct Candidate {
    uint64_t order;  // rank, then position: merged in ascending order
    int32_t id;
    bool operator>(const Candidate& other) const { return order > other.order; }
  };
  const auto count = static_cast<int32_t>(ids.size());
  std::vector<Links> links(ids.size());
  std::vector<Candidate> storage;
  storage.reserve(ids.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(),
                                                                               std::move(storage));
  const auto offer = [&](int32_t left) {
    const int32_t right = links[static_cast<size_t>(left)].next;
    const Merge merge = FindMerge(ids[static_cast<size_t>(left)], ids[static_cast<size_t>(right)]);
    if (merge.rank != kNoRank) {
      queue.push({PairKey(static_cast<int32_t>(merge.rank), left), merge.id});
    }
  };
  for (int32_t i = 0; i < count; ++i) {
    links[static_cast<size_t>(i)] = {i - 1, i + 1 < count ? i + 1 : -1};
  }
  for (int32_t i = 0; i + 1 < count; ++i) {
    offer(i);
  }
  constexpr int32_t kGone = -1;  // merged into its left neighbour
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    const auto left = static_cast<size_t>(top.order & UINT32_MAX);
    const int32_t right = links[left].next;
    // Stale if either side has been merged since; then another candidate stands for the current
    // pair.
    if (ids[left] == kGone || right < 0 ||
        FindMerge(ids[left], ids[static_cast<size_t>(right)]).id != top.id) {
      continue;
    }
    ids[left] = top.id;
    ids[static_cast<size_t>(right)] = kGone;
    const int32_t after = links[static_cast<size_t>(right)].next;
    links[left].next = after;
    if (after >= 0) {
      links[static_cast<size_t>(after)].previous = static_cast<int32_t>(left);
      offer(static_cast<int32_t>(left));
    }
    if (links[left].previous >= 0) {
      offer(links[left].previous);
    }
  }
  std::erase(ids, kGone);
}

}  // namespace shoal::worker
