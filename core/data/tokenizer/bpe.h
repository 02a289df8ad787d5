// Byte-pair encoding: turns a piece of text into token ids by repeatedly merging the neighbours
// whose merge has the lowest rank. O(n log n) in the piece's length. Immutable once made; threads
// may share it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shoal::worker {

struct BpeModel {
  std::vector<std::pair<std::string, int32_t>> vocabulary;  // token -> id, each id once, ids >= 0
  std::vector<std::pair<std::string, std::string>> merges;  // in order of rank
  std::string unknown_token;                                // empty: none
  bool fuse_unknown = false;   // adjacent unknown characters become one unknown token
  bool byte_fallback = false;  // unknown characters become <0xNN> tokens if the vocabulary has them
  // a piece that is a token itself stays that token, whatever the merges say
  bool ignore_merges = false;
};

class Bpe {
 public:
  // Errors name the bad merge or token, prefixed by `where`.
  static absl::StatusOr<std::unique_ptr<Bpe>> Create(BpeModel model, const std::string& where);

  // Appends the ids of `piece` (valid UTF-8). InvalidArgument for a character that the vocabulary
  // cannot express.
  absl::Status Encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    uint32_t rank = kNoRank;
    int32_t id = -1;  // of the merged token
  };
  static constexpr uint32_t kNoRank = UINT32_MAX;

  explicit Bpe(BpeModel model) : model_(std::move(model)) {}
  absl::Status Build(const std::string& where);
  Merge FindMerge(int32_t left, int32_t right) const;
  int32_t FindToken(std::string_view text) const;
  absl::Status Characters(std::string_view piece, std::vector<int32_t>& ids) const;
  void MergeShort(std::vector<int32_t>& ids) const;
  void MergeLong(std::vector<int32_t>& ids) const;

  BpeModel model_;
  std::unordered_map<std::string_view, int32_t> token_ids_;  // views into model_
  std::array<int32_t, 0x800> character_ids_{};  // of one- and two-byte characters; -1: not a token
  std::array<int32_t, 256> byte_ids_{};         // of <0xNN>; -1: not a token
  int32_t unknown_id_ = -1;
  absl::flat_hash_map<uint64_t, Merge> merges_;  // by PairKey
};

}  // namespace shoal::worker
