// The store over whichever state this program is linked to (testing/state.h).
#include "server/store/store.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "core/base/random.h"
#include "core/model/model_spec.h"
#include "gtest/gtest.h"
#include "server/store/page_buffer.h"
#include "server/store/testing/state.h"

namespace shoal::server {
namespace {

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!PrepareState(/*seed=*/5)) {
      GTEST_SKIP() << "no GPU";
    }
  }
};

plan::ModelSpec TinySpec() {
  plan::ModelSpec spec = *plan::NamedShape("tiny");
  return spec;
}

float InitialWeight(int unit, int64_t index) {
  return static_cast<float>(
      Random(static_cast<uint64_t>(unit), static_cast<uint64_t>(index)).Normal() * 0.1);
}

absl::Status ReadInitial(int unit, int64_t offset, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = InitialWeight(unit, offset + static_cast<int64_t>(i));
  }
  return absl::OkStatus();
}

// A store with the memory and threads it needs.
struct Fixture {
  Fixture(const StoreOptions& options, int threads, int64_t partition_bytes = 1 << 14)
      : pool(threads) {
    units = plan::BuildUnits(TinySpec());
    partitions = plan::BuildPartitions(units, partition_bytes);
    weights = *PageBuffer::Allocate(CountStoreBytes(partitions, options).weights);
    store = *Store::Create(units, partitions, options, weights.bytes(), &pool, TestedState());
    EXPECT_TRUE(store->Load(0, {.master = ReadInitial}).ok());
  }
  ThreadPool pool;
  std::vector<plan::UnitSpec> units;
  std::vector<plan::PartitionSpec> partitions;
  PageBuffer weights;
  std::unique_ptr<Store> store;
};

std::vector<float> PushPayload(uint64_t worker, int64_t sequence, const plan::PartitionSpec& spec) {
  Random random(worker * 1000 + static_cast<uint64_t>(sequence), static_cast<uint64_t>(spec.id));
  std::vector<float> payload(static_cast<size_t>(spec.count));
  for (float& value : payload) {
    value = static_cast<float>(random.Normal() * 0.01);
  }
  return payload;
}

std::vector<float> Master(const Store& store, size_t partition) {
  std::vector<float> scratch;
  const std::span<const float> master =
      *store.state().Read(partition, StateArray::kMaster, scratch);
  return {master.begin(), master.end()};
}

struct Push {
  uint64_t worker;
  int64_t sequence;
  size_t partition;
};

int64_t KeyOf(const Push& push) { return static_cast<int64_t>(push.worker) * 100 + push.sequence; }

std::vector<Push> AllPushes(size_t partitions, uint64_t workers, int64_t sequences) {
  std::vector<Push> pushes;
  for (uint64_t worker = 1; worker <= workers; ++worker) {
    for (int64_t sequence = 1; sequence <= sequences; ++sequence) {
      for (size_t p = 0; p < partitions; ++p) {
        pushes.push_back({worker, sequence, p});
      }
    }
  }
  return pushes;
}

void Apply(Store& store, const Push& push) {
  Partition& partition = *store.partitions()[push.partition];
  const std::vector<float> payload = PushPayload(push.worker, push.sequence, partition.spec());
  partition.ApplyPush(KeyOf(push), DType::kF32, reinterpret_cast<const std::byte*>(payload.data()));
}

TEST_F(StoreTest, LoadPublishesVersionInItsBuffer) {
  for (const int64_t version : {0, 7}) {
    for (const DType wire : {DType::kF32, DType::kBF16}) {
      Fixture f({.wire_type = wire}, 2);
      ASSERT_TRUE(f.store->Load(version, {.master = ReadInitial}).ok());
      EXPECT_EQ(f.store->version(), version);
      for (size_t p = 0; p < f.partitions.size(); ++p) {
        const Partition* const partition = f.store->partitions()[p].get();
        const std::vector<float> master = Master(*f.store, p);
        const plan::PartitionSpec& spec = partition->spec();
        const auto parity = static_cast<size_t>(version % 2);
        EXPECT_EQ(partition->memory().header->version[parity], static_cast<uint64_t>(version));
        EXPECT_EQ(partition->memory().header->sequence[parity] % 2, 0u);
        EXPECT_EQ(partition->place().buffers[parity] % transport::kBufferAlignment, 0);
        for (int64_t i = 0; i < spec.count; i += 37) {
          const float expected = InitialWeight(spec.unit, spec.offset + i);
          EXPECT_EQ(master[static_cast<size_t>(i)], expected);
          const std::byte* buffer = f.weights.bytes().data() + partition->place().buffers[parity];
          const float published =
              wire == DType::kF32
                  ? reinterpret_cast<const float*>(buffer)[i]
                  : static_cast<float>(reinterpret_cast<const BFloat16*>(buffer)[i]);
          EXPECT_EQ(published,
                    wire == DType::kF32 ? expected : static_cast<float>(BFloat16(expected)));
        }
      }
    }
  }
}

TEST_F(StoreTest, LoadNamesWhatFails) {
  Fixture f({}, 2);
  const auto fail = [](int, int64_t, std::span<float>) {
    return absl::DataLossError("model.safetensors: torn");
  };
  EXPECT_EQ(f.store->Load(0, {.master = fail}).message(), "model.safetensors: torn");
}

// Several steps, and in every one the same pushes in another order, with another number of threads
// and with duplicates: exact mode must end with the same bits.
TEST_F(StoreTest, ExactModeDoesNotDependOnOrderThreadsOrDuplicates) {
  std::vector<PartitionChecksum> first;
  for (const int threads : {1, 2, 3}) {
    Fixture f({.accumulate = plan::Accumulate::kExact}, threads);
    Random random(static_cast<uint64_t>(threads));
    for (int64_t step = 1; step <= 3; ++step) {
      f.store->Clear();
      std::vector<Push> pushes = AllPushes(f.partitions.size(), 3, 4);
      const size_t distinct = pushes.size();
      for (size_t i = 0; i < distinct; i += 3) {
        pushes.push_back(pushes[i]);
      }
      random.Shuffle(pushes);
      std::atomic<size_t> next{0};
      std::vector<std::thread> appliers;
      for (int t = 0; t < threads; ++t) {
        appliers.emplace_back([&] {
          for (size_t i = next++; i < pushes.size(); i = next++) {
            Apply(*f.store, pushes[i]);
          }
        });
      }
      for (std::thread& applier : appliers) {
        applier.join();
      }
      const auto sealed = f.store->Seal();
      ASSERT_TRUE(sealed.ok());
      int64_t taken = 0;
      for (const PartitionStatistics& partition : *sealed) {
        taken += partition.pushes;
      }
      EXPECT_EQ(taken, static_cast<int64_t>(distinct));
      ASSERT_TRUE(f.store->Commit(step, 1e-3, 0.5).ok());
    }
    const std::vector<PartitionChecksum> checksums = *f.store->Checksums();
    if (first.empty()) {
      first = checksums;
    }
    ASSERT_EQ(checksums.size(), first.size());
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(checksums[i].hash, first[i].hash);
    }
  }
}

// Against a double-precision AdamW over the whole model, both modes, both ways of counting servers.
TEST_F(StoreTest, StepsFollowTheReference) {
  for (const plan::Accumulate accumulate : {plan::Accumulate::kFloat, plan::Accumulate::kExact}) {
    Fixture f({.accumulate = accumulate}, 2);
    const OptimizerOptions& adamw = f.store->options().optimizer;
    std::vector<std::vector<double>> p(f.partitions.size()), m(p), v(p);
    for (size_t i = 0; i < f.partitions.size(); ++i) {
      const plan::PartitionSpec& spec = f.partitions[i];
      m[i].resize(static_cast<size_t>(spec.count));
      v[i].resize(static_cast<size_t>(spec.count));
      for (int64_t e = 0; e < spec.count; ++e) {
        p[i].push_back(static_cast<double>(InitialWeight(spec.unit, spec.offset + e)));
      }
    }
    for (int64_t step = 1; step <= 3; ++step) {
      f.store->Clear();
      for (const Push& push : AllPushes(f.partitions.size(), 2, 2)) {
        Apply(*f.store, push);
      }
      const std::vector<PartitionStatistics> statistics = *f.store->Seal();
      for (size_t i = 0; i < f.partitions.size(); ++i) {
        const plan::PartitionSpec& spec = f.partitions[i];
        std::vector<double> gradient(static_cast<size_t>(spec.count));
        for (uint64_t worker = 1; worker <= 2; ++worker) {
          for (int64_t sequence = 1; sequence <= 2; ++sequence) {
            const std::vector<float> payload = PushPayload(worker, sequence, spec);
            for (size_t e = 0; e < gradient.size(); ++e) {
              gradient[e] += static_cast<double>(payload[e]);
            }
          }
        }
        double sum_of_squares = 0;
        const UpdateRules rules(adamw.weight_decay, {});
        const std::vector<UpdateRange> ranges =
            rules.Of(f.units[static_cast<size_t>(spec.unit)], spec);
        for (size_t e = 0; e < gradient.size(); ++e) {
          sum_of_squares += gradient[e] * gradient[e];
          const double g = gradient[e] * 0.5;
          for (const UpdateRange& range : ranges) {
            if (static_cast<int64_t>(e) >= range.begin && static_cast<int64_t>(e) < range.end) {
              p[i][e] *= 1 - 1e-2 * rules.all()[range.rule].weight_decay;
            }
          }
          const auto exponent = static_cast<double>(step);
          m[i][e] = m[i][e] * adamw.beta1 + g * (1 - adamw.beta1);
          v[i][e] = v[i][e] * adamw.beta2 + g * g * (1 - adamw.beta2);
          p[i][e] -= 1e-2 * (m[i][e] / (1 - std::pow(adamw.beta1, exponent))) /
                     (std::sqrt(v[i][e] / (1 - std::pow(adamw.beta2, exponent))) + adamw.epsilon);
        }
        EXPECT_EQ(statistics[i].partition, spec.id);
        EXPECT_EQ(statistics[i].gradient.non_finite, 0);
        EXPECT_NEAR(statistics[i].gradient.sum_of_squares, sum_of_squares, 1e-5 * sum_of_squares);
      }
      ASSERT_TRUE(f.store->Commit(step, 1e-2, 0.5).ok());
    }
    for (size_t i = 0; i < f.partitions.size(); ++i) {
      const std::vector<float> master = Master(*f.store, i);
      const auto* wire =
          reinterpret_cast<const float*>(f.store->partitions()[i]->memory().wire[1].host);
      for (size_t e = 0; e < master.size(); ++e) {
        ASSERT_NEAR(static_cast<double>(master[e]), p[i][e], 3e-5);
        ASSERT_EQ(master[e], wire[e]);
      }
    }
  }
}

// Masters by partition after two steps; the second's squares of gradients.
std::vector<std::vector<float>> TrainGroups(const std::vector<plan::ParameterGroup>& groups,
                                            plan::Accumulate accumulate, double learning_rate,
                                            double* squares) {
  Fixture f({.accumulate = accumulate, .groups = groups}, 2);
  for (int64_t step = 1; step <= 2; ++step) {
    f.store->Clear();
    for (const Push& push : AllPushes(f.partitions.size(), 1, 2)) {
      Apply(*f.store, push);
    }
    *squares = 0;
    const std::vector<PartitionStatistics> sealed = *f.store->Seal();
    for (const PartitionStatistics& partition : sealed) {
      *squares += partition.gradient.sum_of_squares;
    }
    EXPECT_TRUE(f.store->Commit(step, learning_rate, 1).ok());
  }
  std::vector<std::vector<float>> masters;
  for (size_t i = 0; i < f.partitions.size(); ++i) {
    masters.push_back(Master(*f.store, i));
  }
  return masters;
}

// A frozen tensor keeps its bits, and its gradient does not count; half the learning rate is what
// half of it is for all.
TEST_F(StoreTest, GroupsAreUpdatedAsTheySay) {
  double squares = 0;
  for (const plan::Accumulate accumulate : {plan::Accumulate::kFloat, plan::Accumulate::kExact}) {
    const auto still = TrainGroups({{.match = "*", .freeze = true}}, accumulate, 1e-2, &squares);
    EXPECT_EQ(squares, 0);
    const Fixture f({}, 1);
    for (size_t i = 0; i < f.partitions.size(); ++i) {
      EXPECT_EQ(still[i], Master(*f.store, i));
    }
    const auto half =
        TrainGroups({{.match = "*", .learning_rate_scale = 0.5}}, accumulate, 1e-2, &squares);
    EXPECT_GT(squares, 0);
    EXPECT_EQ(half, TrainGroups({}, accumulate, 5e-3, &squares));
    EXPECT_NE(half, still);
  }
}

// Ranges that begin and end within a partition.
TEST_F(StoreTest, OnlyFrozenTensorsOfAPartitionStay) {
  const std::vector<plan::ParameterGroup> norms = {{.match = "*norm*", .freeze = true}};
  const std::vector<plan::ParameterGroup> others = {{.match = "*norm*"},
                                                    {.match = "*", .freeze = true}};
  const Fixture f({}, 1);
  const UpdateRules rules(0, norms);
  for (const plan::Accumulate accumulate : {plan::Accumulate::kFloat, plan::Accumulate::kExact}) {
    double all_squares = 0;
    double some_squares = 0;
    double other_squares = 0;
    const auto all = TrainGroups({}, accumulate, 1e-2, &all_squares);
    const auto some = TrainGroups(norms, accumulate, 1e-2, &some_squares);
    TrainGroups(others, accumulate, 1e-2, &other_squares);
    EXPECT_GT(other_squares, 0);
    EXPECT_NEAR(some_squares + other_squares, all_squares, 1e-6 * all_squares);
    int64_t frozen = 0;
    for (size_t p = 0; p < f.partitions.size(); ++p) {
      const plan::PartitionSpec& spec = f.partitions[p];
      const std::vector<float> still = Master(*f.store, p);
      for (const UpdateRange& range : rules.Of(f.units[static_cast<size_t>(spec.unit)], spec)) {
        const bool stays = rules.all()[range.rule].frozen;
        frozen += stays && range.begin > 0 ? 1 : 0;
        const auto begin = static_cast<size_t>(range.begin);
        const auto count = static_cast<size_t>(range.end - range.begin);
        const std::vector<float>& expected = stays ? still : all[p];
        EXPECT_EQ(
            std::memcmp(some[p].data() + begin, expected.data() + begin, count * sizeof(float)), 0)
            << "partition " << p << " from " << begin;
      }
    }
    EXPECT_GT(frozen, 0) << "one that does not begin with its partition";
  }
}

// Also in a store that has taken a gradient which is not finite.
TEST_F(StoreTest, ASkippedStepPublishesTheSameWeights) {
  for (const plan::Accumulate accumulate : {plan::Accumulate::kFloat, plan::Accumulate::kExact}) {
    Fixture f({.accumulate = accumulate}, 2);
    const auto arrays = [&f] {
      std::vector<std::vector<float>> all;
      for (size_t p = 0; p < f.partitions.size(); ++p) {
        for (const StateArray array :
             {StateArray::kMaster, StateArray::kFirstMoment, StateArray::kSecondMoment}) {
          std::vector<float> scratch;
          const auto read = f.store->state().Read(p, array, scratch).value();
          all.emplace_back(read.begin(), read.end());
        }
      }
      return all;
    };
    for (const Push& push : AllPushes(f.partitions.size(), 1, 2)) {
      Apply(*f.store, push);
    }
    ASSERT_TRUE(f.store->Seal().ok());
    ASSERT_TRUE(f.store->Commit(1, 1e-2, 1).ok());
    const auto before = arrays();
    f.store->Clear();
    const std::vector<float> payload(static_cast<size_t>(f.partitions[0].count), std::nanf(""));
    f.store->partitions()[0]->ApplyPush(1, DType::kF32,
                                        reinterpret_cast<const std::byte*>(payload.data()));
    ASSERT_TRUE(f.store->Seal().ok());
    ASSERT_TRUE(f.store->Skip(2).ok());
    EXPECT_EQ(f.store->version(), 2);
    EXPECT_EQ(arrays(), before);
    for (size_t p = 0; p < f.partitions.size(); ++p) {
      const auto& memory = f.store->partitions()[p]->memory();
      EXPECT_EQ(std::memcmp(memory.wire[0].host, memory.wire[1].host,
                            static_cast<size_t>(f.partitions[p].count *
                                                SizeOf(f.store->options().wire_type))),
                0)
          << p;
    }
  }
}

TEST_F(StoreTest, GradientNormDoesNotDependOnThreadsOrServers) {
  double whole = 0;
  std::vector<double> by_partition;
  for (const int threads : {1, 3}) {
    Fixture f({}, threads);
    for (const Push& push : AllPushes(f.partitions.size(), 1, 2)) {
      Apply(*f.store, push);
    }
    double sum = 0;
    const auto sealed = *f.store->Seal();
    for (const PartitionStatistics& statistics : sealed) {
      sum += statistics.gradient.sum_of_squares;
    }
    EXPECT_TRUE(whole == 0 || whole == sum);
    whole = sum;
  }
  // The partitions of one server out of two give the very same partial sums.
  Fixture f({}, 2);
  std::vector<plan::PartitionSpec> half;
  for (size_t i = 0; i < f.partitions.size(); i += 2) {
    half.push_back(f.partitions[i]);
  }
  const PageBuffer weights = *PageBuffer::Allocate(CountStoreBytes(half, {}).weights);
  const auto store = *Store::Create(f.units, half, {}, weights.bytes(), &f.pool, TestedState());
  ASSERT_TRUE(store->Load(0, {.master = ReadInitial}).ok());
  for (const Push& push : AllPushes(half.size(), 1, 2)) {
    Apply(*store, push);
  }
  for (const Push& push : AllPushes(f.partitions.size(), 1, 2)) {
    Apply(*f.store, push);
  }
  const auto whole_statistics = *f.store->Seal();
  const auto half_statistics = *store->Seal();
  for (size_t i = 0; i < half.size(); ++i) {
    EXPECT_EQ(half_statistics[i].gradient.sum_of_squares,
              whole_statistics[2 * i].gradient.sum_of_squares);
  }
}

TEST_F(StoreTest, CountsNonFiniteInBothModes) {
  for (const plan::Accumulate accumulate : {plan::Accumulate::kFloat, plan::Accumulate::kExact}) {
    Fixture f({.accumulate = accumulate}, 1);
    std::vector<float> payload(static_cast<size_t>(f.partitions[1].count), 1.0f);
    payload[3] = std::nanf("");
    f.store->partitions()[1]->ApplyPush(1, DType::kF32,
                                        reinterpret_cast<const std::byte*>(payload.data()));
    const auto statistics = *f.store->Seal();
    EXPECT_EQ(statistics[0].gradient.non_finite, 0);
    EXPECT_EQ(statistics[1].gradient.non_finite, 1);
    f.store->Clear();
    EXPECT_EQ((*f.store->Seal())[1].gradient.non_finite, 0);
  }
}

// What was pushed in an attempt that was dropped leaves no trace, also in partitions that get
// nothing the next time.
TEST_F(StoreTest, DroppedAttemptLeavesNoTrace) {
  for (const plan::Accumulate accumulate : {plan::Accumulate::kFloat, plan::Accumulate::kExact}) {
    Fixture clean({.accumulate = accumulate}, 2);
    Fixture dropped({.accumulate = accumulate}, 2);
    for (const Push& push : AllPushes(dropped.partitions.size(), 2, 2)) {
      Apply(*dropped.store, push);
    }
    dropped.store->Clear();
    for (Fixture* f : {&clean, &dropped}) {
      for (const Push& push : AllPushes(f->partitions.size(), 1, 1)) {
        if (push.partition % 2 == 0) {
          Apply(*f->store, push);
        }
      }
      ASSERT_TRUE(f->store->Seal().ok());
      ASSERT_TRUE(f->store->Commit(1, 1e-3, 1.0).ok());
    }
    const auto a = *clean.store->Checksums();
    const auto b = *dropped.store->Checksums();
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].hash, b[i].hash);
    }
  }
}

TEST_F(StoreTest, ApplyingBFloat16EqualsApplyingItsFloats) {
  Fixture f({}, 1);
  Fixture g({}, 1);
  const plan::PartitionSpec& spec = f.partitions[0];
  const std::vector<float> payload = PushPayload(1, 1, spec);
  std::vector<BFloat16> narrow(payload.size());
  Convert(payload, narrow.data());
  std::vector<float> widened(payload.size());
  Convert(narrow, widened.data());
  f.store->partitions()[0]->ApplyPush(1, DType::kBF16,
                                      reinterpret_cast<const std::byte*>(narrow.data()));
  g.store->partitions()[0]->ApplyPush(1, DType::kF32,
                                      reinterpret_cast<const std::byte*>(widened.data()));
  EXPECT_EQ((*f.store->Seal())[0].gradient.sum_of_squares,
            (*g.store->Seal())[0].gradient.sum_of_squares);
}

// A reader that follows the sequence protocol while versions are published never takes a torn
// buffer.
TEST_F(StoreTest, ReadersRecogniseTornBuffers) {
  Fixture f({}, 1);
  Partition& partition = *f.store->partitions()[0];
  const Partition::Memory& memory = partition.memory();
  const auto read_header = [&](int parity) {
    const auto version = std::atomic_ref<uint64_t>(memory.header->version[parity]).load();
    const auto sequence = std::atomic_ref<uint64_t>(memory.header->sequence[parity]).load();
    return std::pair(version, sequence);
  };
  // In the middle of writing version 1, its buffer is not to be taken; version 0 still is.
  partition.BeginWrite(1);
  EXPECT_EQ(read_header(1).second % 2, 1u);
  EXPECT_EQ(read_header(1).first, kNoVersion);
  EXPECT_EQ(read_header(0), (std::pair<uint64_t, uint64_t>(0, 2)));
  partition.EndWrite(1);
  EXPECT_EQ(read_header(1), (std::pair<uint64_t, uint64_t>(1, 2)));
  // Version 2 goes over version 0: a slow reader of version 0 sees that.
  partition.BeginWrite(2);
  partition.BeginWrite(2);  // again, after one that failed
  EXPECT_EQ(read_header(0), (std::pair<uint64_t, uint64_t>(0, 3)));
  partition.EndWrite(2);
  EXPECT_EQ(read_header(0), (std::pair<uint64_t, uint64_t>(2, 4)));
}

}  // namespace
}  // namespace shoal::server
