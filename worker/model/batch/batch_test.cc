#include "worker/model/batch/batch.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;

TEST(PackedBatch, PacksAndCounts) {
  PackedBatch batch;
  batch.AppendNextToken(std::vector<int32_t>{5, 6, 7});
  batch.AppendNextToken(std::vector<int32_t>{});
  batch.Append(std::vector<int32_t>{8, 9}, std::vector<int32_t>{formats::kIgnoredLabel, 4});
  EXPECT_THAT(batch.tokens, ElementsAre(5, 6, 7, 8, 9));
  EXPECT_THAT(batch.labels, ElementsAre(6, 7, -100, -100, 4));
  EXPECT_THAT(batch.cu_seqlens, ElementsAre(0, 3, 5));
  EXPECT_THAT(Positions(batch), ElementsAre(0, 1, 2, 0, 1));
  EXPECT_EQ(batch.target_count(), 3);
  EXPECT_EQ(batch.sequences(), 2);
  EXPECT_TRUE(Validate(batch, 10).ok());
}

TEST(PackedBatch, WeighsOneWhereASequenceSaysNothing) {
  const std::vector<int32_t> ids = {1, 2};
  PackedBatch batch;
  batch.AppendNextToken(ids);
  EXPECT_TRUE(batch.weights.empty());
  batch.Append(ids, ids, std::vector<float>{0.5f, 3.0f});
  batch.AppendNextToken(ids);
  EXPECT_THAT(batch.weights, ElementsAre(1.0f, 1.0f, 0.5f, 3.0f, 1.0f, 1.0f));
  EXPECT_TRUE(Validate(batch, 10).ok());
}

TEST(PackedBatch, DropoutKnowsATokenBySampleAndPlace) {
  const auto row = [](uint32_t sample, uint32_t position) {
    return AllOf(Field(&DropoutRow::sample, sample), Field(&DropoutRow::position, position));
  };
  const std::vector<int32_t> ids = {1, 2};
  PackedBatch batch;
  batch.AppendNextToken(ids);
  batch.AppendNextToken(ids);
  EXPECT_THAT(DropoutRows(batch), ElementsAre());
  batch.dropout = {.probability = 0.5, .seed = 0, .step = 0, .samples = {9, 4}};
  EXPECT_THAT(DropoutRows(batch), ElementsAre(row(9, 0), row(9, 1), row(4, 0), row(4, 1)));
  batch.dropout->samples = {9, 9};
  batch.preference = plan::PreferenceOptions();
  EXPECT_THAT(DropoutRows(batch), ElementsAre(row(9, 0), row(9, 1), row(9, 2), row(9, 3)));
}

TEST(PackedBatch, ValidateNamesWhatIsWrong) {
  PackedBatch good;
  good.AppendNextToken(std::vector<int32_t>{1, 2, 3});
  const auto message = [&](auto change) {
    PackedBatch batch = good;
    change(batch);
    return std::string(Validate(batch, 10).message());
  };
  EXPECT_THAT(message([](PackedBatch& b) { b = PackedBatch(); }), HasSubstr("one at least"));
  EXPECT_THAT(message([](PackedBatch& b) { b.tokens[1] = 10; }),
              HasSubstr("token 10 at position 1"));
  EXPECT_THAT(message([](PackedBatch& b) { b.tokens[1] = -1; }), HasSubstr("token -1"));
  EXPECT_THAT(message([](PackedBatch& b) { b.weights = {1.0f}; }),
              HasSubstr("1 weights for 3 tokens"));
  EXPECT_THAT(message([](PackedBatch& b) {
                b.weights = {1.0f, std::numeric_limits<float>::infinity(), 1.0f};
              }),
              HasSubstr("the weight at position 1 is inf"));
  EXPECT_THAT(message([](PackedBatch& b) { b.dropout = BatchDropout(); }),
              HasSubstr("1 sequences with dropout, of 0 samples"));
  EXPECT_THAT(message([](PackedBatch& b) { b.labels[0] = -7; }), HasSubstr("label -7"));
  EXPECT_THAT(message([](PackedBatch& b) { b.cu_seqlens = {0, 2}; }), HasSubstr("cu_seqlens"));
  EXPECT_THAT(message([](PackedBatch& b) {
                b.cu_seqlens = {0, 2, 2, 3};
              }),
              HasSubstr("sequence 1 has no token"));
  EXPECT_THAT(message([](PackedBatch& b) {
                b.cu_seqlens = {0, 2, 1, 3};
              }),
              HasSubstr("sequence 1 has no token"));
}

}  // namespace
}  // namespace shoal::worker
