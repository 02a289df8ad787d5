#include "server/store/key_set.h"

#include <vector>

#include "core/base/random.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

TEST(KeySet, TakesEachKeyOnceInAnyOrder) {
  Random random(1);
  KeySet set;
  for (int round = 0; round < 20; ++round) {
    set.Clear();
    std::vector<int64_t> keys;
    for (int64_t key = 1; key <= 500; ++key) {
      keys.push_back(key);
      keys.push_back(key);
    }
    random.Shuffle(keys);
    int64_t taken = 0;
    for (const int64_t key : keys) {
      const bool before = set.Contains(key);
      EXPECT_EQ(set.Insert(key), before ? KeySet::Outcome::kSeen : KeySet::Outcome::kNew);
      taken += before ? 0 : 1;
      EXPECT_TRUE(set.Contains(key));
    }
    EXPECT_EQ(taken, 500);
    EXPECT_EQ(set.count(), 500);
    EXPECT_FALSE(set.Contains(501));
  }
}

TEST(KeySet, IsBounded) {
  KeySet set;
  EXPECT_EQ(set.Insert(KeySet::kMaxKey + 1), KeySet::Outcome::kTooLarge);
  EXPECT_EQ(set.count(), 0);
  EXPECT_EQ(set.Insert(KeySet::kMaxKey), KeySet::Outcome::kNew);
  EXPECT_EQ(set.Insert(KeySet::kMaxKey), KeySet::Outcome::kSeen);
}

}  // namespace
}  // namespace shoal::server
