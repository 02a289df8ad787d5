#include "core/data/tokenizer/bpe_merger.h"

#include <algorithm>
#include <map>

#include "core/base/random.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

// The same by definition: recounts all pairs for each merge.
std::vector<SymbolPair> MergeByCounting(std::vector<CountedWord> words,
                                        std::vector<std::string> texts, size_t most) {
  std::vector<SymbolPair> merges;
  while (merges.size() < most) {
    std::map<SymbolPair, int64_t> counts;
    for (const CountedWord& word : words) {
      for (size_t i = 0; i + 1 < word.symbols.size(); ++i) {
        counts[{word.symbols[i], word.symbols[i + 1]}] += word.count;
      }
    }
    SymbolPair best;
    int64_t count = 1;
    for (const auto& [pair, of_pair] : counts) {  // by ids: of equal counts the first wins
      if (of_pair > count) {
        best = pair;
        count = of_pair;
      }
    }
    if (count == 1) {
      break;
    }
    merges.push_back(best);
    const std::string text = texts[static_cast<size_t>(best.first)] +  //
                             texts[static_cast<size_t>(best.second)];
    const auto known = std::find(texts.begin(), texts.end(), text);
    const auto merged = static_cast<int32_t>(known - texts.begin());
    if (known == texts.end()) {
      texts.push_back(text);
    }
    for (CountedWord& word : words) {
      std::vector<int32_t> symbols;
      for (size_t i = 0; i < word.symbols.size(); ++i) {
        const bool match = i + 1 < word.symbols.size() && word.symbols[i] == best.first &&
                           word.symbols[i + 1] == best.second;
        symbols.push_back(match ? merged : word.symbols[i]);
        i += match ? 1 : 0;
      }
      word.symbols = std::move(symbols);
    }
  }
  return merges;
}

TEST(BpeMerger, MergesAsCountingAnewEachTimeWould) {
  constexpr size_t kMost = 60;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    std::vector<std::string> texts = {"a", "b", "c"};
    std::vector<CountedWord> words;
    for (uint64_t w = 0; w < 1 + random.Below(12); ++w) {
      CountedWord word{.count = static_cast<int64_t>(1 + random.Below(5))};
      for (uint64_t i = 0; i < 1 + random.Below(14); ++i) {
        word.symbols.push_back(static_cast<int32_t>(random.Below(3)));
      }
      words.push_back(std::move(word));
    }
    const std::vector<SymbolPair> wanted = MergeByCounting(words, texts, kMost);
    BpeMerger merger(words, texts);
    std::vector<SymbolPair> merges;
    while (merges.size() < kMost && merger.Merge(merges)) {
    }
    ASSERT_EQ(merges, wanted) << "seed " << seed;
  }
}

TEST(BpeMerger, StopsWhereNothingRepeats) {
  std::vector<std::string> texts = {"a", "b", "c"};
  BpeMerger merger({{{0, 1, 2}, 1}}, texts);
  std::vector<SymbolPair> merges;
  EXPECT_FALSE(merger.Merge(merges));
  EXPECT_TRUE(merges.empty());
  EXPECT_EQ(texts.size(), 3u);
}

}  // namespace
}  // namespace shoal::worker
