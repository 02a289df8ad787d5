// Chooses the merges of byte-pair encoding over a set of counted words: each time the pair of
// neighbours that occurs most often, and at equal counts the one with the smaller ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace shoal::worker {

using SymbolPair = std::pair<int32_t, int32_t>;

struct CountedWord {
  std::vector<int32_t> symbols;
  int64_t count = 0;
};

class BpeMerger {
 public:
  // Symbols are ids; `texts` holds their text and grows with each merge. It must outlive this
  // object.
  BpeMerger(std::vector<CountedWord> words, std::vector<std::string>& texts);

  // Makes the best merge; false if no pair that occurs twice is left.
  bool Merge(std::vector<SymbolPair>& merges);

 private:
  struct Candidate {
    int64_t count;
    SymbolPair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void Change(const SymbolPair& pair, int64_t by, size_t word);
  void Apply(const SymbolPair& pair);
  void MergeWord(const SymbolPair& pair, int32_t merged, size_t w, std::vector<SymbolPair>& grown);

  std::vector<CountedWord> words_;
  std::vector<std::string>& texts_;
  std::unordered_map<std::string, int32_t> ids_;  // of texts_
  absl::flat_hash_map<SymbolPair, int64_t> counts_;
  absl::flat_hash_map<SymbolPair, std::vector<size_t>> places_;  // words that have or had the pair
  std::priority_queue<Candidate> queue_;
};

}  // namespace shoal::worker
