#include "worker/ops/testing/check_ops.h"

#include <algorithm>
#include <iterator>

#include "worker/ops/testing/op_checks.h"

namespace shoal::worker {
namespace {

// No row starts at a multiple of 16 bytes.
constexpr ArrayLayout kApart = {.padding = 6, .offset = 3};
// Columns of a wider matrix, aligned.
constexpr ArrayLayout kWithin = {.padding = 32, .offset = 16};

// Distance between groups' seeds, so that runs with neighbouring seeds share no group.
constexpr uint64_t kBetweenSeeds = uint64_t{1} << 32;

// Operators checked together, at all their sizes.
using Group = std::function<void(Checks&)>;

void SmallProducts(Checks& checks) {
  checks.Matmul(70, 45, 33, kApart);
  checks.Matmul(72, 136, 64, {});
}

void SmallAttention(Checks& checks) {
  checks.Attention({5, 33, 1}, 6, {.heads = 4, .kv_heads = 2, .head_dim = 16});
  checks.Attention({70}, 0, {.heads = 2, .kv_heads = 2, .head_dim = 10});
  checks.Attention({5, 133, 7}, 6, {.heads = 4, .kv_heads = 2, .head_dim = 16, .window = 7});
  checks.Attention({170}, 0, {.heads = 2, .kv_heads = 1, .head_dim = 10, .window = 67});
  checks.Attention({40}, 0, {.heads = 4, .kv_heads = 2, .head_dim = 16, .query_scalar = 5});
  const AttentionShape capped{
      .heads = 4, .kv_heads = 2, .head_dim = 16, .window = 20, .query_scalar = 5, .softcap = 2};
  checks.Attention({5, 33, 1}, 6, capped);
  checks.Decode(37, {.heads = 4, .kv_heads = 2, .head_dim = 16});
  checks.Decode(18, capped);
}

void LargeProducts(Checks& checks) {
  checks.Matmul(512, 1024, 768, {});
  checks.Matmul(509, 331, 257, kApart);
  checks.Matmul(2048, 2048, 2048, kWithin);
}

void LargeAttention(Checks& checks) {
  for (const int64_t head_dim : {64, 128}) {
    checks.Attention({700, 1, 257, 1024}, 66, {.heads = 8, .kv_heads = 2, .head_dim = head_dim});
  }
  checks.Attention({300, 212}, 0, {.heads = 6, .kv_heads = 6, .head_dim = 80});
  for (const int64_t window : {100, 512}) {
    checks.Attention({700, 1, 1024}, 3,
                     {.heads = 8, .kv_heads = 2, .head_dim = 128, .window = window});
  }
  const AttentionShape capped{
      .heads = 8, .kv_heads = 4, .head_dim = 256, .window = 300, .softcap = 50};
  checks.Attention({700, 1}, 3, capped);
  checks.Decode(3000, {.heads = 32, .kv_heads = 8, .head_dim = 128});
  checks.Decode(300, capped);
}

std::vector<Group> SmallGroups() {
  return {[](Checks& checks) {
    for (const Size& size :
         {Size{19, 75, kApart}, Size{37, 72, {}}, Size{5, 136, kWithin}, Size{3, 1, {}}}) {
      checks.Norms(size);
      checks.ColumnSums(size);
      checks.Elementwise(size);
      checks.Gated(size);
    }
    checks.Norms({9, 1032, {}});
    checks.Norms({5, 2568, {}});  // several warps per row
    checks.Norms({2, 8200, {}});  // too long for registers
    checks.Norms({4300, 8, {}});  // more rows per partial sum than the least
    checks.Norms({21, 64, {}}, 4);
    checks.Norms({21, 75, kApart}, 5);
    checks.Norms({19, 75, kApart}, 1, 1.0f);
    checks.Norms({37, 72, {}}, 1, 1.0f);
    checks.ColumnSums({300, 40, {}});
    checks.Rows({130, 75, kApart}, 40);
    checks.Rows({70, 600, {}}, 50);
    checks.Rows({1200, 8, {}}, 3000);
    checks.Rotary(9, 5, 16, {});
    checks.Rotary(5, 3, 6, kApart);
    checks.Rotary(9, 5, 32, {}, 16);
    checks.Rotary(5, 3, 10, kApart, 6);
    checks.Rotary(5, 3, 12, {}, 8);
    checks.CrossEntropy({10, 101, kApart});
    checks.CrossEntropy({9, 9000, {}});  // several blocks per row
    checks.CrossEntropy({3, 9001, {}});
    checks.CrossEntropy({10, 101, kApart}, 3.0f);
    checks.CrossEntropy({9, 9000, {}}, 3.0f);
    checks.CrossEntropy({3, 9001, {}}, 3.0f);
    SmallProducts(checks);
    SmallAttention(checks);
  }};
}

std::vector<Group> LargeGroups() {
  static constexpr Size kSizes[] = {{1021, 2048, {}}, {517, 1027, kApart}, {768, 4096, kWithin}};
  return {
      [](Checks& checks) {
        for (const Size& size : kSizes) {
          checks.Norms(size);
        }
        checks.Norms({77, 8192, {}});
        checks.Norms({33, 20000, {}});
        checks.Norms({9000, 768, {}});  // more rows per partial sum than the least
        checks.Norms({1000, 4096, kWithin}, 32);
        checks.Norms({517, 1280, kApart}, 16);
        checks.Norms({768, 4096, kWithin}, 1, 1.0f);
      },
      [](Checks& checks) {
        for (const Size& size : kSizes) {
          checks.ColumnSums(size);
        }
        checks.ColumnSums({8192, 768, {}});
      },
      [](Checks& checks) {
        for (const Size& size : kSizes) {
          checks.Elementwise(size);
          checks.Gated(size);
        }
      },
      [](Checks& checks) {
        checks.Rows({4096, 1024, {}}, 8192);
        checks.Rows({2000, 515, kApart}, 1000);
        checks.Rows({20000, 64, {}}, 50304);  // more tokens than are sorted by counting
        checks.Rotary(1000, 40, 128, {});
        checks.Rotary(300, 12, 64, kWithin);
        checks.Rotary(300, 12, 128, kWithin, 96);
      },
      [](Checks& checks) {
        checks.CrossEntropy({128, 50257, {}});
        checks.CrossEntropy({64, 128256, {}});
        checks.CrossEntropy({200, 50304, {}});  // the most rows that get one block each
        checks.CrossEntropy({160, 32000, {}});
        checks.CrossEntropy({128, 50257, {}}, 30.0f);
        checks.CrossEntropy({200, 50304, {}}, 30.0f);
      },
      LargeProducts,
      LargeAttention,
      [](Checks& checks) {
        if (checks.dtype() == DType::kBF16) {
          checks.Attention({16384}, 0, {.heads = 1, .kv_heads = 1, .head_dim = 64});
        }
      },
  };
}

}  // namespace

void CheckOps(Device& device, Ops& under_test, Ops& oracle, uint64_t seed, CheckScale scale,
              const std::function<bool(std::vector<OpCheck>)>& found, int64_t from) {
  const std::vector<Group> groups = scale == CheckScale::kSmall ? SmallGroups() : LargeGroups();
  int64_t next = 0;
  for (const Group& group : groups) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const int64_t number = next++;
      if (number < from) {
        continue;
      }
      OpChecker checker(device, under_test, oracle,
                        seed + kBetweenSeeds * static_cast<uint64_t>(number));
      Checks checks(checker, dtype);
      group(checks);
      if (!found(checker.TakeResults())) {
        return;
      }
    }
  }
}

std::vector<OpCheck> CheckOps(Device& device, Ops& under_test, Ops& oracle, uint64_t seed,
                              CheckScale scale) {
  std::vector<OpCheck> all;
  CheckOps(device, under_test, oracle, seed, scale, [&](std::vector<OpCheck> checks) {
    std::move(checks.begin(), checks.end(), std::back_inserter(all));
    return true;
  });
  return all;
}

std::vector<OpCheck> CheckProducts(Device& device, Ops& under_test, Ops& oracle, uint64_t seed,
                                   CheckScale scale) {
  OpChecker checker(device, under_test, oracle, seed);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Checks checks(checker, dtype);
    (scale == CheckScale::kSmall ? SmallProducts : LargeProducts)(checks);
    (scale == CheckScale::kSmall ? SmallAttention : LargeAttention)(checks);
  }
  return checker.TakeResults();
}

std::vector<OpCheck> CheckMatmuls(Device& device, Ops& under_test, Ops& oracle, uint64_t seed,
                                  CheckScale scale) {
  OpChecker checker(device, under_test, oracle, seed);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Checks checks(checker, dtype);
    (scale == CheckScale::kSmall ? SmallProducts : LargeProducts)(checks);
  }
  return checker.TakeResults();
}

std::vector<OpCheck> CheckAttentionInAnyOrder(Device& device, Ops& under_test, Ops& oracle,
                                              uint64_t seed, CheckScale scale) {
  OpChecker checker(device, under_test, oracle, seed, /*same_bits=*/false);
  Checks checks(checker, DType::kBF16);
  if (scale == CheckScale::kSmall) {
    checks.Attention({5, 33, 1}, 6, {.heads = 4, .kv_heads = 2, .head_dim = 16});
    return checker.TakeResults();
  }
  for (const int64_t head_dim : {64, 128}) {
    checks.Attention({700, 1, 257, 1024}, 66, {.heads = 8, .kv_heads = 2, .head_dim = head_dim});
    checks.Attention({300, 212}, 0, {.heads = 6, .kv_heads = 6, .head_dim = head_dim});
  }
  checks.Attention({16384}, 0, {.heads = 1, .kv_heads = 1, .head_dim = 64});
  return checker.TakeResults();
}

}  // namespace shoal::worker
