#include "server/store/sequence_set.h"

#include <vector>

#include "core/base/random.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

TEST(SequenceSet, TakesEachNumberOnceInAnyOrder) {
  Random random(1);
  for (int round = 0; round < 20; ++round) {
    // Every number twice, in an order shuffled within windows.
    std::vector<int64_t> numbers;
    for (int64_t n = 1; n <= 500; ++n) {
      numbers.push_back(n);
      numbers.push_back(n);
    }
    for (size_t begin = 0; begin + 50 <= numbers.size(); begin += 25) {
      std::vector<int64_t> window(numbers.begin() + static_cast<long>(begin),
                                  numbers.begin() + static_cast<long>(begin) + 50);
      random.Shuffle(window);
      std::copy(window.begin(), window.end(), numbers.begin() + static_cast<long>(begin));
    }
    SequenceSet set;
    int64_t taken = 0;
    for (const int64_t n : numbers) {
      const bool before = set.Contains(n);
      const SequenceSet::Outcome outcome = set.Insert(n);
      EXPECT_EQ(outcome, before ? SequenceSet::Outcome::kSeen : SequenceSet::Outcome::kNew);
      taken += outcome == SequenceSet::Outcome::kNew ? 1 : 0;
      EXPECT_TRUE(set.Contains(n));
    }
    EXPECT_EQ(taken, 500);
    EXPECT_EQ(set.count(), 500);
    EXPECT_FALSE(set.Contains(501));
  }
}

TEST(SequenceSet, IsBounded) {
  SequenceSet set;
  int64_t n = 2;
  for (size_t i = 0; i < SequenceSet::kMaxAhead; ++i) {
    EXPECT_EQ(set.Insert(n++), SequenceSet::Outcome::kNew);
  }
  EXPECT_EQ(set.Insert(n), SequenceSet::Outcome::kTooFarAhead);
  EXPECT_EQ(set.Insert(1), SequenceSet::Outcome::kNew);  // closes the gap
  EXPECT_EQ(set.Insert(n), SequenceSet::Outcome::kNew);
}

}  // namespace
}  // namespace shoal::server
