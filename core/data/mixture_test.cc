#include "core/data/mixture.h"

#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/data/held_out.h"
#include "core/data/token_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

class MixTest : public ::testing::Test {
 protected:
  // Samples of two tokens, the first of which are `first`, `first` + 1, ...
  PreparedData Write(const std::string& name, int32_t first, int32_t count) {
    PreparedData data = {.path = folder_ / name, .from_cache = true};
    const auto writer = formats::TokenFileWriter::Create(data.path, 1000, 7).value();
    for (int32_t token = first; token < first + count; ++token) {
      const int32_t tokens[] = {token, 1};
      const int32_t labels[] = {1, formats::kIgnoredLabel};
      EXPECT_THAT(writer->Add(tokens, labels), IsOk());
    }
    EXPECT_THAT(writer->Finish(), IsOk());
    data.summary = SummaryOf(*formats::TokenFile::Open(data.path).value());
    return data;
  }

  const TemporaryFolder folder_;
};

TEST_F(MixTest, HasTheSamplesOfAllOneSourceAfterTheOther) {
  PreparedData second = Write("b", 100, 3);
  second.summary.skipped_oversize = 2;
  second.summary.first_oversize = "b.jsonl:7";
  const std::vector<PreparedData> sources = {Write("a", 10, 2), second};
  const auto mixed = Mix(sources, /*keeps_sources=*/true, folder_ / "cache");
  ASSERT_OK(mixed.status());
  const auto file = formats::TokenFile::Open(mixed->path).value();
  EXPECT_EQ(file->source_samples(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file->Sample(1)->tokens.front(), 11);
  EXPECT_EQ(file->Sample(2)->tokens.front(), 100);
  EXPECT_EQ(file->tokenizer_hash(), 7);
  PrepareSummary summary = SummaryOf(*file);
  summary.skipped_oversize = 2;
  summary.first_oversize = "b.jsonl:7";
  EXPECT_EQ(mixed->summary, summary);
  EXPECT_FALSE(mixed->from_cache);
  EXPECT_TRUE(Mix(sources, true, folder_ / "cache")->from_cache);
  const auto union_of_all = Mix(sources, /*keeps_sources=*/false, folder_ / "cache");
  ASSERT_OK(union_of_all.status());
  EXPECT_TRUE(formats::TokenFile::Open(union_of_all->path).value()->source_samples().empty());
}

TEST_F(MixTest, KeepsWhatTargetsWeighAlsoWhereSomeAreHeldOut) {
  PreparedData weighted = {.path = folder_ / "weighted", .from_cache = true};
  const auto writer = formats::TokenFileWriter::Create(weighted.path, 1000, 7).value();
  for (int32_t token = 500; token < 700; ++token) {
    ASSERT_OK(writer->Add(std::vector<int32_t>{token, 1},
                          std::vector<int32_t>{1, formats::kIgnoredLabel},
                          std::vector<float>{static_cast<float>(token), 1.0f}));
  }
  ASSERT_OK(writer->Finish());
  weighted.summary = SummaryOf(*formats::TokenFile::Open(weighted.path).value());
  const auto mixed = Mix({Write("a", 0, 200), weighted}, true, folder_.path());
  ASSERT_OK(mixed.status());
  const auto split = HoldOut(*mixed, 0.3, folder_.path());
  ASSERT_OK(split.status());
  for (const std::string& path : {mixed->path, split->train.path, split->validation.path}) {
    const auto file = formats::TokenFile::Open(path).value();
    for (int64_t i = 0; i < file->samples(); ++i) {
      const int32_t token = file->Sample(i)->tokens.front();
      EXPECT_EQ(file->weight(i), token < 500 ? 1 : token);
    }
  }
}

TEST_F(MixTest, WhatIsHeldOutOfItLeavesItsSources) {
  const auto mixed = Mix({Write("a", 0, 300), Write("b", 300, 700)}, true, folder_.path());
  ASSERT_OK(mixed.status());
  const auto split = HoldOut(*mixed, 0.3, folder_.path());
  ASSERT_OK(split.status());
  const auto train = formats::TokenFile::Open(split->train.path).value();
  ASSERT_EQ(train->source_samples().size(), 2U);
  for (int64_t sample = 0; sample < train->samples(); ++sample) {
    EXPECT_EQ(train->Sample(sample)->tokens.front() < 300, sample < train->source_samples()[0]);
  }
  std::vector<PreparedData> single;
  for (int32_t token = 0; token < 10; ++token) {
    single.push_back(Write(std::to_string(token), token, 1));
  }
  EXPECT_REFUSED(HoldOut(*Mix(single, true, folder_.path()), 0.5, folder_.path()).status(),
                 "of the mixture is left without a sample");
}

}  // namespace
}  // namespace shoal::worker
