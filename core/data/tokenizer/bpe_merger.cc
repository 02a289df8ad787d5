#include "core/data/tokenizer/bpe_merger.h"

namespace shoal::worker {
namespace {

constexpr int64_t kMinPairCount = 2;

}  // namespace

BpeMerger::BpeMerger(std::vector<CountedWord> words, std::vector<std::string>& texts)
    : words_(std::move(words)), texts_(texts) {
  for (size_t id = 0; id < texts_.size(); ++id) {
    ids_.emplace(texts_[id], static_cast<int32_t>(id));
  }
  for (size_t w = 0; w < words_.size(); ++w) {
    const std::vector<int32_t>& symbols = words_[w].symbols;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      Change({symbols[i], symbols[i + 1]}, words_[w].count, w);
    }
  }
  for (const auto& [pair, count] : counts_) {
    queue_.push({count, pair});
  }
}

bool BpeMerger::Merge(std::vector<SymbolPair>& merges) {
  while (!queue_.empty()) {
    const Candidate best = queue_.top();
    queue_.pop();
    const int64_t now = counts_[best.pair];
    if (now < kMinPairCount) {
      continue;
    }
    if (now != best.count) {  // its count has changed since: queue it again
      queue_.push({now, best.pair});
      continue;
    }
    Apply(best.pair);
    merges.push_back(best.pair);
    return true;
  }
  return false;
}

void BpeMerger::Change(const SymbolPair& pair, int64_t by, size_t word) {
  counts_[pair] += by;
  if (by > 0) {
    std::vector<size_t>& places = places_[pair];
    if (places.empty() || places.back() != word) {
      places.push_back(word);
    }
  }
}

void BpeMerger::Apply(const SymbolPair& pair) {
  // Two ways to the same text ("a" "bc" and "ab" "c") are two merges to one token.
  const std::string text =
      texts_[static_cast<size_t>(pair.first)] + texts_[static_cast<size_t>(pair.second)];
  const auto [entry, is_new] = ids_.emplace(text, static_cast<int32_t>(texts_.size()));
  if (is_new) {
    texts_.push_back(text);
  }
  const int32_t merged = entry->second;
  std::vector<SymbolPair> grown;
  const std::vector<size_t> places = std::move(places_[pair]);
  for (const size_t w : places) {
    MergeWord(pair, merged, w, grown);
  }
  counts_.erase(pair);
  places_.erase(pair);
  // A pair that has become more frequent must be offered again; the queue handles those that became
  // rarer.
  for (const SymbolPair& changed : grown) {
    queue_.push({counts_[changed], changed});
  }
}

void BpeMerger::MergeWord(const SymbolPair& pair, int32_t merged, size_t w,
                          std::vector<SymbolPair>& grown) {
  std::vector<int32_t>& symbols = words_[w].symbols;
  const int64_t count = words_[w].count;
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    if (symbols[i] != pair.first || symbols[i + 1] != pair.second) {
      continue;
    }
    if (i > 0) {
      Change({symbols[i - 1], symbols[i]}, -count, w);
      Change({symbols[i - 1], merged}, count, w);
      grown.push_back({symbols[i - 1], merged});
    }
    if (i + 2 < symbols.size()) {
      Change({symbols[i + 1], symbols[i + 2]}, -count, w);
      Change({merged, symbols[i + 2]}, count, w);
      grown.push_back({merged, symbols[i + 2]});
    }
    symbols[i] = merged;
    symbols.erase(symbols.begin() + static_cast<int64_t>(i) + 1);
  }
}

}  // namespace shoal::worker
