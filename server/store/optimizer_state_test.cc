// A store's state with the optimizers that keep another than AdamW.
#include <algorithm>
#include <vector>

#include "core/base/check.h"
#include "core/base/random.h"
#include "core/job/job_units.h"
#include "gtest/gtest.h"
#include "server/store/host_state.h"
#include "server/store/store.h"

namespace shoal::server {
namespace {

struct Kept {
  explicit Kept(plan::Optimizer kind, bool backup = false) : pool(2) {
    const StoreOptions options = {.optimizer = {.kind = kind}, .backup = backup};
    units = plan::JobUnits(*plan::NamedShape("tiny"), {.optimizer = kind});
    partitions = plan::BuildPartitions(units, 1 << 14);
    weights = *PageBuffer::Allocate(CountStoreBytes(partitions, options).weights);
    store = *Store::Create(units, partitions, options, weights.bytes(), &pool, HostState::Create);
  }
  void Push(int64_t step) {
    store->Clear();
    for (const auto& partition : store->partitions()) {
      Random random(static_cast<uint64_t>(step), static_cast<uint64_t>(partition->spec().id));
      std::vector<float> payload(static_cast<size_t>(partition->spec().count));
      std::ranges::generate(payload,
                            [&random] { return static_cast<float>(random.Normal() * 0.01); });
      partition->ApplyPush(1, DType::kF32, reinterpret_cast<const std::byte*>(payload.data()));
    }
    ASSERT_TRUE(store->Seal().ok());
  }
  void Step(int64_t step) {
    Push(step);
    ASSERT_TRUE(store->Commit(step, 1e-3, 1).ok());
  }
  std::vector<float> Read(StateArray array, size_t partition) const {
    std::vector<float> scratch;
    const auto values = store->state().Read(partition, array, scratch).value();
    return {values.begin(), values.end()};
  }
  size_t PartitionAt(int unit, int64_t offset) const {
    const auto partition = std::ranges::find_if(
        partitions, [&](const auto& spec) { return spec.unit == unit && spec.offset == offset; });
    SHOAL_CHECK(partition != partitions.end());
    return static_cast<size_t>(partition - partitions.begin());
  }
  // As checkpoints and moves read it.
  plan::UnitReader Reader(StateArray array) const {
    return [this, array](int unit, int64_t offset, std::span<float> out) {
      const std::vector<float> values = Read(array, PartitionAt(unit, offset));
      SHOAL_CHECK(values.size() == out.size());
      std::ranges::copy(values, out.begin());
      return absl::OkStatus();
    };
  }
  plan::UnitReader GradientReader() const {
    return [this](int unit, int64_t offset, std::span<float> out) {
      return store->state().ReadGradient(PartitionAt(unit, offset), 0, out);
    };
  }

  ThreadPool pool;
  std::vector<plan::UnitSpec> units;
  std::vector<plan::PartitionSpec> partitions;
  PageBuffer weights;
  std::unique_ptr<Store> store;
};

absl::Status ReadFirst(int unit, int64_t offset, std::span<float> out) {
  Random random(static_cast<uint64_t>(unit), static_cast<uint64_t>(offset));
  std::ranges::generate(out, [&random] { return static_cast<float>(random.Normal()); });
  return absl::OkStatus();
}

class OptimizerStateTest : public testing::TestWithParam<plan::Optimizer> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, OptimizerStateTest,
                         testing::Values(plan::Optimizer::kAdamW8, plan::Optimizer::kLion),
                         [](const auto& info) {
                           return info.param == plan::Optimizer::kLion ? "lion" : "adamw8";
                         });

TEST_P(OptimizerStateTest, LeavesAndComesBackToTheBit) {
  Kept one(GetParam());
  ASSERT_TRUE(one.store->Load(0, {.master = ReadFirst}).ok());
  one.Step(1);
  one.Step(2);
  const std::vector<float> second_step = one.Read(StateArray::kMaster, 0);
  Kept other(GetParam());
  Kept backup(GetParam(), /*backup=*/true);
  for (const Kept* taker : {&other, &backup}) {
    ASSERT_TRUE(taker->store
                    ->Load(2, {.master = one.Reader(StateArray::kMaster),
                               .m = one.Reader(StateArray::kFirstMoment),
                               .v = one.Reader(StateArray::kSecondMoment)})
                    .ok());
  }
  other.Step(3);
  one.Push(3);
  ASSERT_TRUE(backup.store->LoadGradient(one.GradientReader()).ok());
  ASSERT_TRUE(one.store->Commit(3, 1e-3, 1).ok());
  ASSERT_TRUE(backup.store->Commit(3, 1e-3, 1).ok());
  EXPECT_NE(one.Read(StateArray::kMaster, 0), second_step);
  for (const Kept* taker : {&other, &backup}) {
    for (size_t p = 0; p < one.partitions.size(); ++p) {
      for (const StateArray array :
           {StateArray::kMaster, StateArray::kFirstMoment, StateArray::kSecondMoment}) {
        EXPECT_EQ(one.Read(array, p), taker->Read(array, p))
            << "array " << static_cast<int>(array) << " of partition " << p;
      }
    }
  }
}

TEST_P(OptimizerStateTest, APartIsThatOfTheWhole) {
  Kept kept(GetParam());
  ASSERT_TRUE(kept.store->Load(0, {.master = ReadFirst}).ok());
  kept.Step(1);
  const int64_t count = kept.partitions[1].count;
  for (const StateArray array :
       {StateArray::kMaster, StateArray::kFirstMoment, StateArray::kSecondMoment}) {
    const std::vector<float> whole = kept.Read(array, 1);
    const std::vector<std::pair<int64_t, int64_t>> parts = {
        {0, count}, {0, 1}, {5, 40}, {16, 32}, {count - 3, count}};
    for (const auto& [begin, end] : parts) {
      std::vector<float> part(static_cast<size_t>(end - begin));
      const absl::Status read = kept.store->state().ReadPart(1, array, begin, part);
      if (whole.empty()) {
        EXPECT_EQ(read.code(), absl::StatusCode::kInvalidArgument);
      } else {
        ASSERT_TRUE(read.ok());
        EXPECT_EQ(part, std::vector<float>(whole.begin() + begin, whole.begin() + end));
      }
    }
  }
}

TEST_P(OptimizerStateTest, ASkippedStepChangesNothing) {
  Kept kept(GetParam());
  ASSERT_TRUE(kept.store->Load(0, {.master = ReadFirst}).ok());
  kept.Step(1);
  const auto state = [&kept] {
    return std::vector{kept.Read(StateArray::kMaster, 1), kept.Read(StateArray::kFirstMoment, 1),
                       kept.Read(StateArray::kSecondMoment, 1)};
  };
  const auto before = state();
  kept.Push(2);
  ASSERT_TRUE(kept.store->Skip(2).ok());
  EXPECT_EQ(state(), before);
}

TEST_P(OptimizerStateTest, KeepsTheMomentsThatItDeclares) {
  const Kept kept(GetParam());
  const int64_t bytes = CountStoreBytes(kept.partitions, {}).moments;
  const int64_t of_adamw = CountStoreBytes(Kept(plan::Optimizer::kAdamW).partitions, {}).moments;
  const size_t second = kept.Read(StateArray::kSecondMoment, 0).size();
  if (GetParam() == plan::Optimizer::kLion) {
    EXPECT_EQ(bytes * 2, of_adamw);
    EXPECT_EQ(second, 0U);
  } else {
    EXPECT_LT(bytes * 8, of_adamw * 5) << "20 of 64 bytes, and what rounds up to pages";
    EXPECT_EQ(second, static_cast<size_t>(kept.partitions[0].count));
  }
}

}  // namespace
}  // namespace shoal::server
