// Partitions that are frozen, over whichever state this program is linked to (testing/state.h).
#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "core/base/bf16.h"
#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/testing/status.h"
#include "core/job/job_units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/page_buffer.h"
#include "server/store/store.h"
#include "server/store/testing/state.h"

namespace shoal::server {
namespace {

using ::testing::Each;

float WeightOf(int unit, int64_t index) {
  return 0.001F * static_cast<float>(index % 977) + static_cast<float>(unit);
}

absl::Status ReadWeights(int unit, int64_t offset, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = WeightOf(unit, offset + static_cast<int64_t>(i));
  }
  return absl::OkStatus();
}

// A store of a job that trains the head and the embedding, and of one that trains all.
struct PartlyFrozen {
  PartlyFrozen(const StoreOptions& options, bool freezes) : pool(2) {
    units = plan::JobUnits(*plan::NamedShape("tiny"),
                           {.groups = {{.match = "model.layers.*", .freeze = freezes}}});
    partitions = plan::BuildPartitions(units, 1 << 14);
    weights = *PageBuffer::Allocate(CountStoreBytes(partitions, options).weights);
    store = *Store::Create(units, partitions, options, weights.bytes(), &pool, TestedState());
    SHOAL_CHECK(store->Load(3, {.master = ReadWeights, .base = ReadWeights}).ok());
  }
  // Pushes ones to all that trains, and commits.
  void Step(int64_t step) {
    store->Clear();
    for (const auto& partition : store->partitions()) {
      const std::vector<float> ones(static_cast<size_t>(partition->spec().count), 1.0F);
      if (!partition->spec().frozen) {
        partition->ApplyPush(1, DType::kF32, reinterpret_cast<const std::byte*>(ones.data()));
      }
    }
    sealed = store->Seal().value();
    SHOAL_CHECK(store->Commit(step, 1e-2, 1).ok());
  }
  std::vector<float> Weights(size_t partition) const {
    std::vector<float> scratch;
    const auto read = store->Read(partition, StateArray::kMaster, scratch).value();
    return {read.begin(), read.end()};
  }

  ThreadPool pool;
  std::vector<plan::UnitSpec> units;
  std::vector<plan::PartitionSpec> partitions;
  PageBuffer weights;
  std::unique_ptr<Store> store;
  std::vector<PartitionStatistics> sealed;
};

class FrozenStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!PrepareState(/*seed=*/5)) {
      GTEST_SKIP() << "no GPU";
    }
  }
};

TEST_F(FrozenStoreTest, TakesOneBufferOfWeightsAndNothingElse) {
  for (const DType wire : {DType::kF32, DType::kBF16}) {
    const PartlyFrozen frozen({.wire_type = wire}, true);
    const PartlyFrozen all({.wire_type = wire}, false);
    std::vector<plan::PartitionSpec> trained = frozen.partitions;
    const auto removed =
        std::ranges::stable_partition(trained, [](const auto& spec) { return !spec.frozen; });
    int64_t buffers = 0;
    for (const plan::PartitionSpec& spec : removed) {
      buffers += RoundUp(spec.count * SizeOf(wire), transport::kBufferAlignment);
    }
    trained.erase(removed.begin(), removed.end());
    const StoreBytes of_all = CountStoreBytes(all.partitions, {.wire_type = wire});
    const StoreBytes bytes = CountStoreBytes(frozen.partitions, {.wire_type = wire});
    const StoreBytes of_trained = CountStoreBytes(trained, {.wire_type = wire});
    EXPECT_EQ(bytes.weights, of_all.weights - buffers);
    EXPECT_EQ(bytes.master, of_trained.master);
    EXPECT_EQ(bytes.moments, of_trained.moments);
    EXPECT_EQ(bytes.gradients, of_trained.gradients);
    StoreOptions backup = StoreOptions{.wire_type = wire}.OfBackups();
    EXPECT_EQ(CountStoreBytes(frozen.partitions, backup).master, of_trained.master);
  }
}

TEST_F(FrozenStoreTest, IsOfVersionZeroWhateverIsCommitted) {
  for (const plan::Accumulate accumulate : {plan::Accumulate::kFloat, plan::Accumulate::kExact}) {
    for (const DType wire : {DType::kF32, DType::kBF16}) {
      PartlyFrozen f({.wire_type = wire, .accumulate = accumulate}, true);
      for (const int64_t step : {4, 5}) {
        f.Step(step);
        for (size_t p = 0; p < f.partitions.size(); ++p) {
          const plan::PartitionSpec& spec = f.partitions[p];
          const Partition::Memory& memory = f.store->partitions()[p]->memory();
          const auto parity = static_cast<size_t>(spec.frozen ? 0 : step % 2);
          ASSERT_EQ(memory.header->version[parity], static_cast<uint64_t>(spec.frozen ? 0 : step));
          ASSERT_EQ(memory.header->sequence[parity] % 2, 0U);
          if (!spec.frozen) {
            continue;
          }
          EXPECT_EQ(memory.header->version[1], kNoVersion);
          std::vector<float> expected(static_cast<size_t>(spec.count));
          ASSERT_OK(ReadWeights(spec.unit, spec.offset, expected));
          EXPECT_EQ(f.Weights(p), expected);
          for (size_t i = 0; i < expected.size(); ++i) {
            const std::byte* const host = memory.wire[0].host;
            const float there =
                wire == DType::kF32
                    ? reinterpret_cast<const float*>(host)[i]
                    : static_cast<float>(reinterpret_cast<const BFloat16*>(host)[i]);
            ASSERT_EQ(there, wire == DType::kF32 ? expected[i]
                                                 : static_cast<float>(BFloat16(expected[i])));
          }
        }
      }
      ASSERT_OK(f.store->Skip(6));
      EXPECT_EQ(f.store->version(), 6);
    }
  }
}

// What trains gets the bits that it has where nothing is frozen.
TEST_F(FrozenStoreTest, TheRestTrainsAsEver) {
  for (const plan::Accumulate accumulate : {plan::Accumulate::kFloat, plan::Accumulate::kExact}) {
    PartlyFrozen some({.accumulate = accumulate}, true);
    PartlyFrozen all({.accumulate = accumulate}, false);
    some.Step(4);
    all.Step(4);
    size_t sealed = 0;
    const auto checksums = some.store->Checksums().value();
    ASSERT_EQ(checksums.size(), some.partitions.size());
    const auto of_all = all.store->Checksums().value();
    for (size_t p = 0; p < some.partitions.size(); ++p) {
      EXPECT_EQ(checksums[p].hash == of_all[p].hash, !some.partitions[p].frozen);
      if (some.partitions[p].frozen) {
        std::vector<float> scratch;
        EXPECT_THAT(some.store->Read(p, StateArray::kFirstMoment, scratch).value(), Each(0.0F));
        continue;
      }
      EXPECT_EQ(some.sealed[sealed].partition, some.partitions[p].id);
      EXPECT_EQ(some.sealed[sealed].gradient.sum_of_squares, all.sealed[p].gradient.sum_of_squares);
      ++sealed;
    }
    EXPECT_EQ(some.sealed.size(), sealed);
    EXPECT_LT(sealed, some.partitions.size());
  }
}

// What clients read of it, at the server that has it and at one that backs it up.
TEST_F(FrozenStoreTest, BlocksAreInNf4WhereTheyArePublished) {
  for (const bool backup : {false, true}) {
    StoreOptions options = {.wire_type = DType::kBF16, .backups_publish = true};
    options = backup ? options.OfBackups() : options;
    PartlyFrozen plain(options, true);
    std::vector<plan::UnitSpec> units = plain.units;
    for (plan::UnitSpec& unit : units) {
      unit.nf4 = unit.frozen;
    }
    const auto partitions = plan::BuildPartitions(units, 1 << 14);
    const StoreBytes bytes = CountStoreBytes(partitions, options);
    PageBuffer weights = *PageBuffer::Allocate(bytes.weights);
    auto store =
        *Store::Create(units, partitions, options, weights.bytes(), &plain.pool, TestedState());
    ASSERT_OK(store->Load(3, {.master = ReadWeights, .base = ReadWeights}));
    const auto checksums = store->Checksums().value();
    int64_t saved = 0;
    for (size_t p = 0; p < partitions.size(); ++p) {
      const plan::PartitionSpec& spec = partitions[p];
      if (!spec.frozen) {
        continue;
      }
      const plan::Nf4Partition nf4(units[static_cast<size_t>(spec.unit)], spec.offset, spec.count);
      std::vector<std::byte> expected(static_cast<size_t>(nf4.bytes()));
      ASSERT_OK(nf4.Encode(ReadWeights, expected.data()));
      const Partition::Memory& memory = store->partitions()[p]->memory();
      const std::span<const std::byte> there(memory.wire[0].host, expected.size());
      EXPECT_TRUE(std::ranges::equal(there, expected)) << p;
      EXPECT_EQ(memory.header->version[0], 0U);
      EXPECT_NE(checksums[p].hash, plain.store->Checksums().value()[p].hash);
      std::vector<float> scratch;
      EXPECT_EQ(store->Read(p, StateArray::kMaster, scratch).value()[1],
                WeightOf(spec.unit, spec.offset + 1))
          << "as it was";
      saved += RoundUp(2 * spec.count, transport::kBufferAlignment) -
               RoundUp(nf4.bytes(), transport::kBufferAlignment);
    }
    EXPECT_GT(saved, 0);
    EXPECT_EQ(CountStoreBytes(plain.partitions, options).weights - bytes.weights, saved);
  }
}

}  // namespace
}  // namespace shoal::server
