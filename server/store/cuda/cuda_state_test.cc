// The state in memory of an emulated GPU against the host's: the same bits, and what it says where
// something fails.
#include "server/store/cuda/cuda_state.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "common/random.h"
#include "gmock/gmock.h"
#include "gpu/emulation/emulated_gpu.h"
#include "gtest/gtest.h"
#include "plan/memory_plan.h"
#include "plan/model_spec.h"
#include "server/store/page_buffer.h"
#include "server/store/store.h"

namespace shoal::server {
namespace {

using testing::HasSubstr;

StateFactory OnGpu() {
  return [](const StateLayout& layout, ThreadPool*) { return MakeCudaState(0, layout); };
}

absl::Status ReadInitial(int unit, int64_t offset, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const auto index = static_cast<uint64_t>(offset) + i;
    out[i] = static_cast<float>(Random(static_cast<uint64_t>(unit), index).Normal() * 0.1);
  }
  return absl::OkStatus();
}

// A store over one kind of state.
struct Held {
  Held(const StoreOptions& options, const StateFactory& make_state) {
    units = plan::BuildUnits(*plan::NamedShape("tiny"));
    partitions = plan::BuildPartitions(units, 20'000);
    weights = *PageBuffer::Allocate(CountStoreBytes(partitions, options).weights);
    made = Store::Create(units, partitions, options, weights.bytes(), &pool, make_state);
    if (made.ok()) {
      store = made->get();
    }
  }
  ThreadPool pool{2};
  std::vector<plan::UnitSpec> units;
  std::vector<plan::PartitionSpec> partitions;
  PageBuffer weights;
  absl::StatusOr<std::unique_ptr<Store>> made;
  Store* store = nullptr;
};

// Of worker 1; with a NaN in the first partition of the first step, which only exact sums leave
// out.
void PushAll(Store& store, int64_t step, DType type) {
  for (const auto& partition : store.partitions()) {
    // One gets nothing.
    for (int64_t sequence = 1; partition->spec().id != 2 && sequence <= 3; ++sequence) {
      Random random(static_cast<uint64_t>(100 * step + sequence),
                    static_cast<uint64_t>(partition->spec().id));
      std::vector<float> gradient(static_cast<size_t>(partition->spec().count));
      for (float& value : gradient) {
        value = static_cast<float>(random.Normal() * 0.01);
      }
      if (store.options().exact() && step == 1 && partition->spec().id == 0) {
        gradient[7] = std::nanf("");
      }
      std::vector<BFloat16> narrow(gradient.size());
      Convert(gradient, narrow.data());
      const void* const payload = type == DType::kF32 ? static_cast<void*>(gradient.data())
                                                      : static_cast<void*>(narrow.data());
      const auto outcome =
          partition->ApplyPush(1, sequence, type, static_cast<const std::byte*>(payload));
      EXPECT_EQ(outcome.code, absl::StatusCode::kOk);
      // The slot is used again at once.
      std::memset(gradient.data(), 0x55, gradient.size() * sizeof(float));
      std::memset(static_cast<void*>(narrow.data()), 0x55, narrow.size() * sizeof(BFloat16));
    }
  }
}

void ExpectSame(Store& gpu, Store& host) {
  std::vector<float> gpu_scratch;
  std::vector<float> host_scratch;
  for (size_t p = 0; p < host.partitions().size(); ++p) {
    for (const StateArray array :
         {StateArray::kMaster, StateArray::kFirstMoment, StateArray::kSecondMoment}) {
      const auto a = *gpu.state().Read(p, array, gpu_scratch);
      const auto b = *host.state().Read(p, array, host_scratch);
      ASSERT_EQ(a.size(), b.size());
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size_bytes()), 0)
          << "partition " << p << " array " << static_cast<int>(array);
    }
  }
}

TEST(CudaState, GivesTheBitsOfTheHost) {
  for (const uint64_t seed : {1, 2, 3}) {
    for (const plan::Accumulate accumulate : {plan::Accumulate::kFloat, plan::Accumulate::kExact}) {
      const DType wire = seed == 1 ? DType::kF32 : DType::kBF16;
      const DType gradient = seed == 3 ? DType::kBF16 : DType::kF32;
      gpu::SetEmulatedGpus({.seed = seed});
      const StoreOptions options = {.wire_type = wire, .accumulate = accumulate};
      Held host(options, HostState::Create);
      Held gpu(options, OnGpu());
      ASSERT_TRUE(gpu.made.ok()) << gpu.made.status();
      for (Held* held : {&host, &gpu}) {
        ASSERT_TRUE(held->store->Load(4, {.master = ReadInitial, .m = ReadInitial}).ok());
      }
      for (int64_t step = 5; step <= 7; ++step) {
        std::vector<PartitionStatistics> statistics[2];
        for (Held* held : {&host, &gpu}) {
          held->store->Clear();
          PushAll(*held->store, step - 4, gradient);
          statistics[held == &gpu] = *held->store->Seal();
          ASSERT_TRUE(held->store->Commit(step, 1e-2, 0.7).ok());
        }
        for (size_t p = 0; p < statistics[0].size(); ++p) {
          EXPECT_EQ(statistics[1][p].partition, statistics[0][p].partition);
          EXPECT_EQ(statistics[1][p].gradient.sum_of_squares,
                    statistics[0][p].gradient.sum_of_squares);
          EXPECT_EQ(statistics[1][p].gradient.non_finite, statistics[0][p].gradient.non_finite);
        }
        EXPECT_EQ(statistics[0][0].gradient.non_finite,
                  step == 5 && accumulate == plan::Accumulate::kExact ? 3 : 0);
      }
      ExpectSame(*gpu.store, *host.store);
      // The whole region that clients read: headers, and both versions.
      EXPECT_EQ(std::memcmp(gpu.weights.bytes().data(), host.weights.bytes().data(),
                            host.weights.bytes().size()),
                0);
    }
  }
}

TEST(CudaState, TakesWhatIsPlannedAndGivesItBack) {
  gpu::SetEmulatedGpus({});
  for (const plan::Accumulate accumulate : {plan::Accumulate::kFloat, plan::Accumulate::kExact}) {
    {
      Held gpu({.accumulate = accumulate}, OnGpu());
      ASSERT_TRUE(gpu.made.ok());
      const int64_t planned = plan::PlanServerGpuMemory(gpu.partitions, accumulate).total();
      EXPECT_GE(gpu::Counters().allocated_bytes, planned);
      // Each allocation is whole 256 bytes.
      EXPECT_LE(gpu::Counters().allocated_bytes, planned + 256 * gpu::Counters().allocations);
    }
    EXPECT_EQ(gpu::Counters().allocated_bytes, 0);
    EXPECT_EQ(gpu::Counters().host_bytes, 0);
    EXPECT_EQ(gpu::Counters().host_allocations, gpu::Counters().host_frees);
    EXPECT_EQ(gpu::Counters().streams, 0);
    EXPECT_EQ(gpu::Counters().events, 0);
  }
}

TEST(CudaState, SaysWhatMemoryItLacks) {
  gpu::SetEmulatedGpus({.memory_bytes = 1 << 20});
  const absl::Status status = Held({}, OnGpu()).made.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::StartsWith("cuda:0: this server needs "),
                             HasSubstr(" of 1.0 MiB are free; use more servers on other GPUs")));
  gpu::SetEmulatedGpus({});
  gpu::FailCall("cudaMalloc", 3, cudaErrorMemoryAllocation);
  EXPECT_THAT(std::string(Held({}, OnGpu()).made.status().message()), HasSubstr("cuda:0: taking "));
  EXPECT_EQ(gpu::Counters().allocated_bytes, 0);
  gpu::SetEmulatedGpus({.driver = false});
  EXPECT_THAT(std::string(Held({}, OnGpu()).made.status().message()),
              testing::StartsWith("no NVIDIA driver"));
}

TEST(CudaState, CopiesThatAreNotPinnedGiveTheSame) {
  gpu::SetEmulatedGpus({});
  gpu::FailCall("cudaHostRegister", 1, cudaErrorNotSupported);
  Held gpu({}, OnGpu());
  Held host({}, HostState::Create);
  for (Held* held : {&host, &gpu}) {
    ASSERT_TRUE(held->store->Load(0, {.master = ReadInitial}).ok());
    PushAll(*held->store, 2, DType::kF32);
    ASSERT_TRUE(held->store->Seal().ok());
    ASSERT_TRUE(held->store->Commit(1, 1e-2, 1.0).ok());
  }
  ExpectSame(*gpu.store, *host.store);
  EXPECT_EQ(std::memcmp(gpu.weights.bytes().data(), host.weights.bytes().data(),
                        host.weights.bytes().size()),
            0);
}

// The failed push, and all of its partition after it, are refused; the next attempt is whole.
TEST(CudaState, AFailedPushLosesTheAttempt) {
  gpu::SetEmulatedGpus({});
  Held gpu({}, OnGpu());
  ASSERT_TRUE(gpu.store->Load(0, {.master = ReadInitial}).ok());
  Partition& partition = *gpu.store->partitions()[1];
  const std::vector<float> gradient(static_cast<size_t>(partition.spec().count), 1);
  const auto push = [&](int64_t sequence) {
    return partition
        .ApplyPush(1, sequence, DType::kF32, reinterpret_cast<const std::byte*>(gradient.data()))
        .code;
  };
  EXPECT_EQ(push(1), absl::StatusCode::kOk);
  gpu::FailCall("cudaMemcpyAsync", 1, cudaErrorInvalidValue);
  EXPECT_EQ(push(2), absl::StatusCode::kInternal);
  EXPECT_EQ(push(2), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(gpu.store->Seal().status().message()),
              HasSubstr("cuda:0: copying a push: cudaErrorInvalidValue"));
  gpu.store->Clear();
  EXPECT_EQ(push(1), absl::StatusCode::kOk);
  const auto statistics = gpu.store->Seal();
  ASSERT_TRUE(statistics.ok());
  EXPECT_EQ((*statistics)[1].gradient.sum_of_squares, static_cast<double>(partition.spec().count));
}

// Work that fails when it runs is told by what waits for it first, and the GPU is lost.
TEST(CudaState, FailedWorkIsToldBeforeAnythingIsPublished) {
  gpu::SetEmulatedGpus({});
  Held gpu({}, OnGpu());
  ASSERT_TRUE(gpu.store->Load(0, {.master = ReadInitial}).ok());
  PushAll(*gpu.store, 1, DType::kF32);
  gpu::FailWork(1, cudaErrorIllegalAddress);
  EXPECT_THAT(std::string(gpu.store->Seal().status().message()),
              HasSubstr("the GPU is lost to this process"));
}

TEST(CudaState, ACommitThatFailsLeavesNothingToUse) {
  gpu::SetEmulatedGpus({});
  Held gpu({}, OnGpu());
  ASSERT_TRUE(gpu.store->Load(0, {.master = ReadInitial}).ok());
  PushAll(*gpu.store, 1, DType::kF32);
  ASSERT_TRUE(gpu.store->Seal().ok());
  gpu::FailCall("cudaMemcpyAsync", 3, cudaErrorInvalidValue);
  const absl::Status failed = gpu.store->Commit(1, 1e-2, 1.0);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("cuda:0: copying new weights: "));
  EXPECT_EQ(gpu.store->failure(), failed);
  EXPECT_EQ(gpu.store->Checksums().status(), failed);
  EXPECT_EQ(gpu.store->version(), 0);
  for (const auto& partition : gpu.store->partitions()) {
    EXPECT_EQ(partition->memory().header->sequence[1] % 2, 1u) << "a reader would take it";
    EXPECT_EQ(partition->memory().header->version[0], 0u);
  }
}

TEST(CudaState, LoadNamesWhatFails) {
  gpu::SetEmulatedGpus({});
  Held gpu({}, OnGpu());
  gpu::FailCall("cudaMemcpyAsync", 2, cudaErrorInvalidValue);
  EXPECT_THAT(std::string(gpu.store->Load(0, {.master = ReadInitial}).message()),
              HasSubstr("cuda:0: loading a partition: "));
}

}  // namespace
}  // namespace shoal::server
