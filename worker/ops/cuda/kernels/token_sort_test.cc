#include "worker/ops/cuda/kernels/token_sort.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/base/random.h"
#include "core/gpu/testing/gpu.h"
#include "core/gpu/testing/on_device.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker::cuda {
namespace {

std::vector<int32_t> Read(const int32_t* data, size_t count) {
  std::vector<int32_t> values(count);
  EXPECT_EQ(cudaMemcpy(values.data(), data, count * sizeof(int32_t), cudaMemcpyDeviceToHost),
            cudaSuccess);
  return values;
}

void ExpectSorted(const std::vector<int32_t>& tokens, int64_t vocabulary) {
  const auto count = static_cast<int64_t>(tokens.size());
  const OnDevice<int32_t> on_tokens(tokens);
  const OnDevice<std::byte> scratch(
      std::vector<std::byte>(static_cast<size_t>(TokenSortScratch(count))));
  SortedTokens sorted;
  ASSERT_EQ(SortTokens(nullptr, on_tokens.data(), count, vocabulary, scratch.data(), &sorted),
            cudaSuccess);
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::stable_sort(positions.begin(), positions.end(), [&](int32_t a, int32_t b) {
    return tokens[static_cast<size_t>(a)] < tokens[static_cast<size_t>(b)];
  });
  std::vector<int32_t> ids = tokens;
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(Read(sorted.positions, tokens.size()), positions) << count << " of " << vocabulary;
  EXPECT_EQ(Read(sorted.ids, tokens.size()), ids) << count << " of " << vocabulary;
}

class TokenSort : public testing::Test {
 protected:
  void SetUp() override {
    if (!PrepareGpu(5)) {
      GTEST_SKIP() << "no GPU";
    }
  }
  std::vector<int32_t> Tokens(size_t count, int64_t vocabulary) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(random_.Below(static_cast<uint64_t>(vocabulary)));
    }
    return tokens;
  }
  Random random_{17};
};

TEST_F(TokenSort, CountsFewTokens) {
  for (const int64_t vocabulary : {1, 3, 50257}) {
    for (const size_t count : {1, 31, 32, 33, 1500}) {
      ExpectSorted(Tokens(count, vocabulary), vocabulary);
    }
  }
}

// The last warps of a block have no tokens of their own.
TEST_F(TokenSort, ReadsNothingBehindTheTokens) {
  constexpr size_t kCount = 1477, kBefore = 59;  // together a whole piece; nothing lies after it
  const std::vector<int32_t> tokens = Tokens(kBefore + kCount, 300);
  const OnDevice<int32_t> on_device(tokens);
  const OnDevice<std::byte> scratch(std::vector<std::byte>(TokenSortScratch(kCount)));
  SortedTokens sorted;
  ASSERT_EQ(SortTokens(nullptr, on_device.data() + kBefore, kCount, 300, scratch.data(), &sorted),
            cudaSuccess);
  std::vector<int32_t> ids(tokens.begin() + kBefore, tokens.end());
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(Read(sorted.ids, kCount), ids);
}

TEST_F(TokenSort, IsStableForOneToThreeDigits) {
  for (const int64_t vocabulary : {1, 512, 513, 262144, 262145}) {
    for (const int64_t count : {kTokensToCount + 1, kTokensToCount + 512}) {
      std::vector<int32_t> tokens = Tokens(static_cast<size_t>(count), vocabulary);
      tokens.back() = static_cast<int32_t>(vocabulary - 1);
      ExpectSorted(tokens, vocabulary);
    }
  }
}

TEST_F(TokenSort, TakesMoreTilesThanAWarpHasLanes) { ExpectSorted(Tokens(40001, 700), 700); }

TEST_F(TokenSort, TakesTokensThatAreAllTheSame) {
  ExpectSorted(std::vector<int32_t>(kTokensToCount + 700, 31999), 32000);
}

}  // namespace
}  // namespace shoal::worker::cuda
