#include "worker/ops/cuda/attention/work_list.h"

#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "core/gpu/fake_cuda/fake_cuda.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker::cuda {
namespace {

using testing::ElementsAre;
using testing::FieldsAre;

TEST(GroupDivider, DividesAsDivisionDoes) {
  for (const int32_t size : {1, 2, 3, 4, 5, 7, 8, 12, 16, 32, 64}) {
    const GroupDivider divider = GroupDivider::Of(size);
    const auto most = static_cast<int32_t>(((int64_t{1} << 31) - 1) / size);
    for (int32_t i = 0; i < 2000; ++i) {
      ASSERT_EQ(divider.Quotient(i), i / size);
      ASSERT_EQ(divider.Quotient(most - i), (most - i) / size) << size;
    }
  }
}

constexpr int64_t kHopper = 227 << 10;
constexpr int64_t kAmpere = 163 << 10;
constexpr int64_t kAda = 99 << 10;

TEST(AttentionTilesFor, TakesTheNarrowestKernelThatFits) {
  for (const auto& [head_dim, width] : std::map<int64_t, int>{
           {8, 32}, {32, 32}, {40, 64}, {64, 64}, {80, 96}, {128, 128}, {136, 256}, {256, 256}}) {
    EXPECT_EQ(AttentionTilesFor(head_dim, kHopper).width, width) << head_dim;
  }
  for (const int64_t head_dim : {0, 4, 5, 12, 100, 264}) {
    EXPECT_EQ(AttentionTilesFor(head_dim, kHopper).width, 0) << head_dim;
  }
}

TEST(AttentionTilesFor, TwoBlocksShareAMultiprocessorWhereTilesAllowIt) {
  for (const int64_t head_dim : {32, 64, 96, 128}) {
    for (const int64_t shared : {kHopper, kAmpere}) {
      const AttentionTiles tiles = AttentionTilesFor(head_dim, shared);
      EXPECT_LE(2 * (tiles.forward_bytes() + 1024), shared + 1024) << head_dim;
      EXPECT_LE(2 * (tiles.backward_bytes() + 1024), shared + 1024) << head_dim;
    }
    const AttentionTiles tiles = AttentionTilesFor(head_dim, kAda);
    EXPECT_LE(tiles.forward_bytes(), kAda) << head_dim;
    EXPECT_LE(tiles.backward_bytes(), kAda) << head_dim;
  }
  EXPECT_EQ(AttentionTilesFor(128, kHopper).backward_step, 64);
  EXPECT_EQ(AttentionTilesFor(128, kAmpere).backward_step, 32);
  EXPECT_LE(AttentionTilesFor(256, kHopper).backward_bytes(), kHopper);
  EXPECT_GT(AttentionTilesFor(256, kAda).backward_bytes(), kAda);
}

TEST(ListTiles, LongestFirst) {
  // Two heads per token: 6, 2 and 10 rows in tiles of 4.
  const std::vector<int32_t> cu_seqlens = {0, 3, 4, 9};
  EXPECT_THAT(ListTiles({.of = TileCut::Of::kRows, .size = 4, .group = 2}, cu_seqlens),
              ElementsAre(FieldsAre(4, 5, 8), FieldsAre(4, 5, 4), FieldsAre(0, 3, 4),
                          FieldsAre(0, 3, 0), FieldsAre(4, 5, 0), FieldsAre(3, 1, 0)));
  EXPECT_THAT(
      ListTiles({.of = TileCut::Of::kKeys, .size = 4, .group = 2}, cu_seqlens),
      ElementsAre(FieldsAre(4, 5, 0), FieldsAre(0, 3, 0), FieldsAre(3, 1, 0), FieldsAre(4, 5, 4)));
  EXPECT_THAT(ListTiles({.of = TileCut::Of::kKeys, .size = 4, .group = 2}, {}), ElementsAre());
}

class WorkListsTest : public testing::Test {
 protected:
  WorkListsTest() {
    SetFakeGpus({});
    device_ = *MakeCudaDevice({});
    stream_ = device_->NewStream();
    lists_ = std::make_unique<WorkLists>(*device_, *stream_);
  }
  std::vector<AttentionTile> Read(const WorkLists::List& list) {
    std::vector<AttentionTile> tiles(static_cast<size_t>(list.count));
    stream_->Copy(tiles.data(), list.tiles,
                  list.count * static_cast<int64_t>(sizeof(AttentionTile)));
    EXPECT_TRUE(stream_->Synchronize().ok());
    return tiles;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<WorkLists> lists_;
};

TEST_F(WorkListsTest, UploadsEachListOnce) {
  const TileCut rows{.of = TileCut::Of::kRows, .size = 4, .group = 2};
  const TileCut keys{.of = TileCut::Of::kKeys, .size = 4, .group = 2};
  const std::vector<int32_t> some = {0, 3, 9};
  const std::vector<int32_t> others = {0, 4, 9};
  const auto first = *lists_->Get(rows, some);
  EXPECT_EQ(Read(first).size(), 5u);
  EXPECT_EQ(Counters().copies_to_device, 1);
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(lists_->Get(rows, some)->tiles, first.tiles);
    EXPECT_TRUE(lists_->Get(keys, some).ok());
    EXPECT_TRUE(lists_->Get(rows, others).ok());
  }
  EXPECT_TRUE(stream_->Synchronize().ok());
  EXPECT_EQ(Counters().copies_to_device, 3);
}

// A list is kept only if it was copied, whatever error the stream reports; otherwise the next
// request copies it.
TEST_F(WorkListsTest, AFailureLeavesNoListThatWasNotCopied) {
  const TileCut cut{.of = TileCut::Of::kRows, .size = 4, .group = 2};
  const std::vector<int32_t> cu_seqlens = {0, 3, 9};
  const std::vector<AttentionTile> expected = ListTiles(cut, cu_seqlens);
  for (const std::string_view function : {"cudaEventRecord", "cudaMemcpyAsync"}) {
    lists_ = std::make_unique<WorkLists>(*device_, *stream_);
    FailCall(function, 1, cudaErrorMemoryAllocation);
    (void)stream_->Record();
    const absl::StatusOr<WorkLists::List> list = lists_->Get(cut, cu_seqlens);
    EXPECT_EQ(list.ok(), function == "cudaEventRecord") << function;
    EXPECT_EQ(stream_->Synchronize().ok(), function != "cudaEventRecord") << function;
    const std::vector<AttentionTile> tiles = Read(*lists_->Get(cut, cu_seqlens));
    ASSERT_EQ(tiles.size(), expected.size());
    EXPECT_EQ(std::memcmp(tiles.data(), expected.data(), tiles.size() * sizeof(AttentionTile)), 0)
        << function;
  }
}

// Asks for many more than are kept before any is read: dropped ones stay intact for work already on
// the stream.
TEST_F(WorkListsTest, ForgetsTheOldestWithoutWaiting) {
  const TileCut cut{.of = TileCut::Of::kKeys, .size = 2, .group = 1};
  std::vector<Buffer> copies;
  constexpr int32_t kLists = 3 * static_cast<int32_t>(WorkLists::kMost);
  for (int32_t i = 0; i < kLists; ++i) {
    const std::vector<int32_t> cu_seqlens = {0, 1 + i};
    const auto list = *lists_->Get(cut, cu_seqlens);
    const int64_t bytes = list.count * static_cast<int64_t>(sizeof(AttentionTile));
    copies.push_back(*device_->Allocate(bytes));
    stream_->Copy(copies.back().data(), list.tiles, bytes);
  }
  const int64_t before = device_->allocated_bytes();
  for (int32_t i = 0; i < kLists; ++i) {
    const std::vector<int32_t> cu_seqlens = {0, 1 + i};
    const auto expected = ListTiles(cut, cu_seqlens);
    const auto tiles =
        Read({reinterpret_cast<const AttentionTile*>(copies[static_cast<size_t>(i)].data()),
              static_cast<int64_t>(expected.size())});
    for (size_t t = 0; t < tiles.size(); ++t) {
      ASSERT_EQ(tiles[t].length, 1 + i);
      ASSERT_EQ(tiles[t].first, expected[t].first);
    }
  }
  // The latest are still kept, the first is not.
  const auto uploads = Counters().copies_to_device;
  EXPECT_TRUE(lists_->Get(cut, std::vector<int32_t>{0, kLists}).ok());
  EXPECT_EQ(device_->allocated_bytes(), before);
  EXPECT_TRUE(lists_->Get(cut, std::vector<int32_t>{0, 1}).ok());
  EXPECT_TRUE(stream_->Synchronize().ok());
  EXPECT_EQ(Counters().copies_to_device, uploads + 1);
}

TEST_F(WorkListsTest, SaysWhereMemoryIsShort) {
  const std::unique_ptr<Device> small = *MakeCudaDevice({.budget_bytes = 100});
  const std::unique_ptr<Stream> stream = small->NewStream();
  WorkLists lists(*small, *stream);
  EXPECT_EQ(lists.Get({.size = 1, .group = 1}, std::vector<int32_t>{0, 100}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace shoal::worker::cuda
