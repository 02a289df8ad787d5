#include "core/plan/step/minibatch.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

using ::testing::ElementsAre;

TEST(MinibatchSamples, WalkThroughEachPassOnce) {
  for (const int64_t dataset : {1, 2, 3, 7, 64, 65, 1000}) {
    for (const int64_t minibatch : {1, 5, 32}) {
      std::vector<int64_t> walked;
      for (int64_t step = 1; static_cast<int64_t>(walked.size()) < 3 * dataset; ++step) {
        const auto samples = MinibatchSamples(step, minibatch, dataset, 11, true);
        ASSERT_EQ(static_cast<int64_t>(samples.size()), minibatch);
        walked.insert(walked.end(), samples.begin(), samples.end());
      }
      std::set<std::vector<int64_t>> orders;
      for (int64_t pass = 0; pass < 3; ++pass) {
        std::vector<int64_t> order(walked.begin() + pass * dataset,
                                   walked.begin() + (pass + 1) * dataset);
        orders.insert(order);
        std::ranges::sort(order);
        for (int64_t i = 0; i < dataset; ++i) {
          ASSERT_EQ(order[static_cast<size_t>(i)], i);
        }
      }
      EXPECT_TRUE(dataset < 7 || orders.size() == 3U) << "each pass has an order of its own";
    }
  }
}

TEST(MinibatchSamples, OrderDependsOnTheSeedAndOnNothingElse) {
  EXPECT_EQ(MinibatchSamples(7, 32, 1000, 1, true), MinibatchSamples(7, 32, 1000, 1, true));
  EXPECT_NE(MinibatchSamples(7, 32, 1000, 1, true), MinibatchSamples(7, 32, 1000, 2, true));
  EXPECT_EQ(MinibatchSamples(2, 3, 5, 1, false), std::vector<int64_t>({3, 4, 0}));
  // The same walk whatever the minibatch.
  const auto two = MinibatchSamples(2, 10, 1000, 5, true);
  EXPECT_TRUE(
      std::equal(two.begin(), two.end(), MinibatchSamples(1, 20, 1000, 5, true).begin() + 10));
}

TEST(MinibatchSamples, EveryPlaceOfAPassIsAsLikelyForEverySample) {
  constexpr int64_t kSamples = 6;
  constexpr int kSeeds = 6000;
  std::map<std::pair<int64_t, int64_t>, int> counts;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto order = MinibatchSamples(1, kSamples, kSamples, seed, true);
    for (int64_t i = 0; i < kSamples; ++i) {
      ++counts[{i, order[static_cast<size_t>(i)]}];
    }
  }
  for (const auto& [place, count] : counts) {
    EXPECT_NEAR(count, kSeeds / kSamples, 5 * std::sqrt(kSeeds / kSamples))
        << place.first << " " << place.second;
  }
}

TEST(SharesOfPass, AreWholeAndAsLongAsTheDataset) {
  EXPECT_THAT(SharesOfPass({{100, 50, 50}, {1, 1, 2}}), ElementsAre(50, 50, 100));
  EXPECT_THAT(SharesOfPass({{3, 4}, {1, 1}}), ElementsAre(4, 3)) << "the first of those alike";
  EXPECT_THAT(SharesOfPass({{5, 5}, {0.8, 0.2}}), ElementsAre(8, 2));
  EXPECT_THAT(SharesOfPass({{1, 2}, {1, 1e9}}), ElementsAre(0, 3));
  EXPECT_THAT(SharesOfPass({{7}, {0.1}}), ElementsAre(7));
}

// Of passes of this mixture, in order.
std::vector<std::vector<int64_t>> Passes(const Mixture& mixture, int count, bool shuffle = true) {
  int64_t samples = 0;
  for (const int64_t of_source : mixture.samples) {
    samples += of_source;
  }
  std::vector<std::vector<int64_t>> passes;
  for (int64_t step = 1; step <= count; ++step) {
    passes.push_back(MinibatchSamples(step, samples, mixture, 7, shuffle));
  }
  return passes;
}

TEST(MinibatchSamples, OfAMixtureHaveEachSourcesPartInEachPass) {
  const Mixture mixture = {{10, 90}, {3, 1}};
  for (const std::vector<int64_t>& pass : Passes(mixture, 5)) {
    EXPECT_EQ(std::ranges::count_if(pass, [](int64_t sample) { return sample < 10; }), 75);
  }
}

TEST(MinibatchSamples, OfAMixtureComeAgainOnceAllOfTheirSourceHaveCome) {
  const Mixture mixture = {{10, 90}, {3, 1}};
  std::map<int64_t, int> counts;
  std::set<int64_t> of_large;
  for (const std::vector<int64_t>& pass : Passes(mixture, 18)) {  // of the large 25 a pass: 5 times
    for (const int64_t sample : pass) {
      ++counts[sample];
    }
    const auto [low, high] =
        std::minmax_element(counts.begin(), counts.lower_bound(10),
                            [](const auto& a, const auto& b) { return a.second < b.second; });
    EXPECT_LE(high->second - low->second, 1) << "of the small one";
  }
  for (int64_t sample = 10; sample < 100; ++sample) {
    EXPECT_EQ(counts[sample], 5) << sample;
  }
}

TEST(MinibatchSamples, OfAMixtureDependOnTheStepAlone) {
  const Mixture mixture = {{10, 90}, {3, 1}};
  std::vector<int64_t> small_steps;
  for (int64_t step = 1; step <= 100; ++step) {
    const auto samples = MinibatchSamples(step, 3, mixture, 7, true);
    small_steps.insert(small_steps.end(), samples.begin(), samples.end());
  }
  std::vector<int64_t> passes;
  for (const std::vector<int64_t>& pass : Passes(mixture, 3)) {
    passes.insert(passes.end(), pass.begin(), pass.end());
  }
  EXPECT_EQ(small_steps, passes);
  EXPECT_NE(MinibatchSamples(1, 100, mixture, 8, true), Passes(mixture, 1)[0]);
}

TEST(MinibatchSamples, OfAMixtureComeInOrderUnlessTheyAreShuffled) {
  EXPECT_THAT(Passes({{2, 3}, {3, 2}}, 2, false),
              ElementsAre(ElementsAre(0, 1, 0, 2, 3), ElementsAre(1, 0, 1, 4, 2)));
}

}  // namespace
}  // namespace shoal::plan
