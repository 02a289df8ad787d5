#include "core/data/held_out.h"

#include <algorithm>

#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

class HoldOutTest : public ::testing::Test {
 protected:
  // Samples {10 + i % distinct, i % distinct}.
  PreparedData Write(const std::string& name, int32_t samples, int32_t distinct) const {
    const std::string path = folder_ / name;
    auto writer = formats::TokenFileWriter::Create(path, 10000, /*tokenizer_hash=*/7).value();
    for (int32_t i = 0; i < samples; ++i) {
      const int32_t tokens[] = {10 + i % distinct, i % distinct};
      const int32_t labels[] = {i % distinct, formats::kIgnoredLabel};
      EXPECT_TRUE(writer->Add(tokens, labels).ok());
    }
    EXPECT_TRUE(writer->Finish().ok());
    return {.path = path};
  }
  // Of each sample its first token.
  static std::vector<int32_t> FirstTokens(const PreparedData& data) {
    const auto file = formats::TokenFile::Open(data.path).value();
    EXPECT_EQ(file->tokenizer_hash(), 7);
    std::vector<int32_t> first;
    for (int64_t i = 0; i < file->samples(); ++i) {
      first.push_back(file->Sample(i)->tokens.front());
    }
    EXPECT_EQ(data.summary.samples, file->samples());
    EXPECT_EQ(data.summary.tokens, 2 * file->samples());
    return first;
  }

  const TemporaryFolder folder_;
};

TEST_F(HoldOutTest, EachSampleIsInOneOfTheTwoAndEqualOnesInTheSame) {
  const auto split = HoldOut(Write("all", 3000, 1000), 0.2, folder_.path());
  ASSERT_OK(split.status());
  std::vector<int32_t> train = FirstTokens(split->train);
  std::vector<int32_t> held = FirstTokens(split->validation);
  EXPECT_EQ(train.size() + held.size(), 3000U);
  EXPECT_NEAR(static_cast<double>(held.size()), 600, 120);
  for (std::vector<int32_t>* part : {&train, &held}) {
    EXPECT_EQ(part->size() % 3, 0U);
    std::ranges::sort(*part);
    part->erase(std::unique(part->begin(), part->end()), part->end());
  }
  EXPECT_EQ(train.size() + held.size(), 1000U);
}

TEST_F(HoldOutTest, TheSameSamplesAreHeldOutOfMoreData) {
  const std::vector<int32_t> few =
      FirstTokens(HoldOut(Write("few", 500, 1000), 0.1, folder_.path())->validation);
  std::vector<int32_t> many =
      FirstTokens(HoldOut(Write("many", 1000, 1000), 0.1, folder_.path())->validation);
  ASSERT_GE(many.size(), few.size());
  many.resize(few.size());
  EXPECT_EQ(many, few);
}

TEST_F(HoldOutTest, ASplitIsMadeOnceForEachFraction) {
  const PreparedData all = Write("all", 100, 100);
  const std::string cache = folder_ / "new";
  EXPECT_FALSE(HoldOut(all, 0.1, cache)->train.from_cache);
  const auto again = HoldOut(all, 0.1, cache);
  EXPECT_TRUE(again->train.from_cache);
  const auto more = HoldOut(all, 0.3, cache);
  EXPECT_FALSE(more->train.from_cache);
  EXPECT_NE(more->train.path, again->train.path);
}

TEST_F(HoldOutTest, WhatWasLeftOutBeforeIsStillTold) {
  PreparedData all = Write("all", 100, 100);
  all.summary.skipped_oversize = 3;
  all.summary.truncated = 2;
  const auto split = HoldOut(all, 0.1, folder_.path());
  EXPECT_EQ(split->train.summary.skipped_oversize, 3);
  EXPECT_EQ(split->train.summary.truncated, 2);
  EXPECT_EQ(split->train.summary.samples + split->validation.summary.samples, 100);
}

TEST_F(HoldOutTest, NothingHeldOutIsRefused) {
  EXPECT_REFUSED(HoldOut(Write("one", 1, 1), 0.001, folder_.path()).status(),
                 "0.001 of 1 samples is none; at least 1 is needed to validate on");
}

}  // namespace
}  // namespace shoal::worker
