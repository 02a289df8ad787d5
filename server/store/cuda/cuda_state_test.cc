// The state in memory of a fake GPU compared with the host's: the same bits, and the errors it
// reports when something fails.
#include "server/store/cuda/cuda_state.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "core/gpu/fake_cuda/fake_cuda.h"
#include "core/job/job_units.h"
#include "core/model/model_spec.h"
#include "core/plan/memory/server_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/page_buffer.h"
#include "server/store/store.h"

namespace shoal::server {
namespace {

using testing::HasSubstr;

StateFactory OnGpu() {
  return [](const StateLayout& layout, ThreadPool*) { return MakeCudaState(0, layout); };
}

absl::Status ReadRandom(int unit, int64_t offset, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const auto index = static_cast<uint64_t>(offset) + i;
    out[i] = static_cast<float>(Random(static_cast<uint64_t>(unit), index).Normal() * 0.1);
  }
  return absl::OkStatus();
}

// A store over one kind of state.
struct Held {
  Held(const StoreOptions& options, const StateFactory& make_state, bool freezes_blocks = false) {
    units = plan::JobUnits(*plan::NamedShape("tiny"),
                           {.groups = {{.match = "model.layers.*", .freeze = freezes_blocks}}});
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

// Pushes as worker 1, with a NaN in the first partition of the first step, which only exact sums
// skip.
void PushAll(Store& store, int64_t step, DType type) {
  for (const auto& partition : store.partitions()) {
    // One partition gets nothing.
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
          partition->ApplyPush(sequence, type, static_cast<const std::byte*>(payload));
      EXPECT_EQ(outcome.code, absl::StatusCode::kOk);
      // The slot is reused at once.
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
      gpu::SetFakeGpus({.seed = seed});
      const StoreOptions options = {.wire_type = wire, .accumulate = accumulate};
      Held host(options, HostState::Create);
      Held gpu(options, OnGpu());
      ASSERT_TRUE(gpu.made.ok()) << gpu.made.status();
      for (Held* held : {&host, &gpu}) {
        ASSERT_TRUE(held->store->Load(4, {.master = ReadRandom, .m = ReadRandom}).ok());
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

// Reads memory of the fake GPU, which the processor cannot touch.
std::vector<std::byte> Fetch(const std::byte* from, size_t bytes) {
  std::vector<std::byte> fetched(bytes);
  EXPECT_EQ(cudaMemcpy(fetched.data(), from, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  return fetched;
}

// Pushes ones times `value` from shared memory, which is overwritten at once.
void PushShared(Store& store, size_t index, int64_t sequence, float value) {
  Partition& partition = *store.partitions()[index];
  std::vector<float> gradient(static_cast<size_t>(partition.spec().count), value);
  const auto bytes = static_cast<int64_t>(gradient.size() * sizeof(float));
  const std::shared_ptr<std::byte> slot = *store.state().AllocateShared(bytes);
  const auto fill = [&] {
    return cudaMemcpy(slot.get(), gradient.data(), static_cast<size_t>(bytes), cudaMemcpyDefault);
  };
  ASSERT_EQ(fill(), cudaSuccess);
  EXPECT_EQ(partition.ApplyPush(sequence, DType::kF32, slot.get(), PayloadMemory::kShared).code,
            absl::StatusCode::kOk);
  gradient.assign(gradient.size(), 55);
  ASSERT_EQ(fill(), cudaSuccess);
}

void PushOnHost(Store& store, size_t index, int64_t sequence, float value) {
  Partition& partition = *store.partitions()[index];
  const std::vector<float> gradient(static_cast<size_t>(partition.spec().count), value);
  EXPECT_EQ(
      partition
          .ApplyPush(sequence, DType::kF32, reinterpret_cast<const std::byte*>(gradient.data()))
          .code,
      absl::StatusCode::kOk);
}

// Weights that clients read on the GPU, and gradients that they push into it, have the bits of the
// host. The host's copy is not written until it is asked for, also in the middle of a commit.
TEST(CudaState, SharedMemoryGivesTheBitsOfTheHost) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    gpu::SetFakeGpus({.seed = seed});
    StoreOptions options = {
        .wire_type = seed % 2 == 0 ? DType::kBF16 : DType::kF32,
        .accumulate = seed > 2 ? plan::Accumulate::kExact : plan::Accumulate::kFloat};
    Held host(options, HostState::Create);
    options.shared_weights = true;
    Held gpu(options, OnGpu());
    ASSERT_TRUE(gpu.made.ok()) << gpu.made.status();
    const size_t size = gpu.weights.bytes().size();
    const std::byte* const shared = gpu.store->shared_weights().get();
    ASSERT_NE(shared, nullptr);
    const auto first_buffer =
        static_cast<size_t>(gpu.store->partitions().front()->place().buffers[0]);
    const auto expect_shared = [&] {
      const std::vector<std::byte> there = Fetch(shared, size);
      EXPECT_EQ(std::memcmp(there.data() + first_buffer, host.weights.bytes().data() + first_buffer,
                            size - first_buffer),
                0);
      EXPECT_EQ(std::memcmp(gpu.weights.bytes().data(), host.weights.bytes().data(), first_buffer),
                0)
          << "headers";
    };
    for (Held* held : {&host, &gpu}) {
      ASSERT_TRUE(held->store->Load(4, {.master = ReadRandom, .m = ReadRandom}).ok());
    }
    expect_shared();
    for (int64_t step = 5; step <= 8; ++step) {
      for (Held* held : {&host, &gpu}) {
        Store& store = *held->store;
        store.Clear();
        for (size_t p = 0; p < store.partitions().size(); ++p) {
          const float value = static_cast<float>(step) * 0.01F;
          held == &gpu ? PushShared(store, p, 1, value) : PushOnHost(store, p, 1, value);
          PushOnHost(store, p, 2, -3 * value);  // from a client on the CPU
        }
        ASSERT_TRUE(store.Seal().ok());
        // From the middle of the third commit on.
        const Store::Ready ready = [&](size_t p) {
          return held == &gpu && step == 7 && p == 2 ? gpu.store->KeepHostWeights()
                                                     : absl::OkStatus();
        };
        ASSERT_TRUE(store.Commit(step, 1e-2, 0.7, ready).ok());
      }
      expect_shared();
      const bool same = std::ranges::equal(gpu.weights.bytes(), host.weights.bytes());
      EXPECT_EQ(same, step >= 7) << "step " << step;
    }
    ExpectSame(*gpu.store, *host.store);
  }
}

TEST(CudaState, WeightsThatCouldNotBeCopiedToTheHostAreWhenAskedForAgain) {
  gpu::SetFakeGpus({});
  Held gpu({.shared_weights = true}, OnGpu());
  ASSERT_TRUE(gpu.store->Load(4, {.master = ReadRandom}).ok());
  const int64_t pinned = gpu::Counters().host_allocations - gpu::Counters().host_frees;
  gpu::FailCall("cudaMemcpyAsync", 2, cudaErrorInvalidValue);
  EXPECT_FALSE(gpu.store->KeepHostWeights().ok());
  ASSERT_TRUE(gpu.store->KeepHostWeights().ok());
  EXPECT_EQ(gpu::Counters().host_allocations - gpu::Counters().host_frees, pinned + 1);
  const auto first = static_cast<size_t>(gpu.store->partitions().front()->place().buffers[0]);
  const std::span<const std::byte> weights = std::as_const(gpu.weights).bytes().subspan(first);
  EXPECT_TRUE(std::ranges::equal(weights,
                                 Fetch(gpu.store->shared_weights().get() + first, weights.size())));
}

TEST(CudaState, WhatIsFrozenIsSharedFromTheStart) {
  for (const bool shared : {false, true}) {
    for (const DType wire : {DType::kF32, DType::kBF16}) {
      gpu::SetFakeGpus({});
      Held gpu({.wire_type = wire, .shared_weights = shared}, OnGpu(), /*freezes_blocks=*/true);
      Held host({.wire_type = wire}, HostState::Create, /*freezes_blocks=*/true);
      for (Held* held : {&gpu, &host}) {
        ASSERT_TRUE(held->store->Load(3, {.master = ReadRandom, .base = ReadRandom}).ok());
      }
      for (size_t p = 0; p < gpu.partitions.size(); ++p) {
        const plan::PartitionSpec& spec = gpu.partitions[p];
        const WeightsBuffers& weights = gpu.store->partitions()[p]->memory().wire[0];
        const auto bytes = static_cast<size_t>(spec.count * SizeOf(wire));
        if (!spec.frozen) {
          continue;
        }
        const std::byte* const expected = host.store->partitions()[p]->memory().wire[0].host;
        EXPECT_EQ(std::memcmp(weights.host, expected, bytes), 0);
        ASSERT_EQ(weights.shared != nullptr, shared);
        if (shared) {
          EXPECT_EQ(std::memcmp(Fetch(weights.shared, bytes).data(), expected, bytes), 0);
        }
      }
      ASSERT_TRUE(gpu.store->KeepHostWeights().ok());
    }
  }
}

// Peers may have it open for longer than the server exists.
TEST(CudaState, SharedMemoryOutlivesTheState) {
  gpu::SetFakeGpus({});
  std::shared_ptr<std::byte> memory;
  {
    Held gpu({}, OnGpu());
    memory = *gpu.store->state().AllocateShared(5000);
  }
  EXPECT_EQ(gpu::Counters().allocated_bytes, plan::SharedGpuBytes(5000));
  EXPECT_EQ(Fetch(memory.get(), 5000), std::vector<std::byte>(5000));
  memory.reset();
  EXPECT_EQ(gpu::Counters().allocated_bytes, 0);
}

// A connection whose peer has something open keeps everything it exposes, including pinned slots.
TEST(CudaState, PinnedMemoryOutlivesTheState) {
  gpu::SetFakeGpus({});
  const PageBuffer slots = *PageBuffer::Allocate(8192);
  std::unique_ptr<PartitionState::Pinned> pinned;
  {
    Held gpu({}, OnGpu());
    pinned = gpu.store->state().Pin(slots.bytes());
  }
  ASSERT_NE(pinned, nullptr);
  EXPECT_EQ(gpu::Counters().host_allocations, gpu::Counters().host_frees + 1);
  pinned.reset();
  EXPECT_EQ(gpu::Counters().host_allocations, gpu::Counters().host_frees);
}

TEST(CudaState, TakesWhatIsPlannedAndGivesItBack) {
  gpu::SetFakeGpus({});
  for (const plan::Accumulate accumulate : {plan::Accumulate::kFloat, plan::Accumulate::kExact}) {
    for (const auto& [shared, freezes] :
         {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
      Held gpu({.accumulate = accumulate, .shared_weights = shared}, OnGpu(), freezes);
      ASSERT_TRUE(gpu.made.ok());
      const int64_t planned =
          plan::PlanServerGpuMemory(gpu.partitions, accumulate,
                                    shared ? std::optional(DType::kF32) : std::nullopt)
              .total();
      EXPECT_GE(gpu::Counters().allocated_bytes, planned);
      // Each allocation is a multiple of 256 bytes.
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
  gpu::SetFakeGpus({.memory_bytes = 1 << 20});
  const absl::Status status = Held({}, OnGpu()).made.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::StartsWith("cuda:0: this server needs "),
                             HasSubstr(" of 1.0 MiB are free; use more servers on other GPUs")));
  gpu::SetFakeGpus({});
  gpu::FailCall("cudaMalloc", 3, cudaErrorMemoryAllocation);
  EXPECT_THAT(std::string(Held({}, OnGpu()).made.status().message()), HasSubstr("cuda:0: taking "));
  EXPECT_EQ(gpu::Counters().allocated_bytes, 0);
  gpu::SetFakeGpus({.driver = false});
  EXPECT_THAT(std::string(Held({}, OnGpu()).made.status().message()),
              testing::StartsWith("no NVIDIA driver"));
}

TEST(CudaState, CopiesThatAreNotPinnedGiveTheSame) {
  gpu::SetFakeGpus({});
  gpu::FailCall("cudaHostRegister", 1, cudaErrorNotSupported);
  Held gpu({}, OnGpu());
  Held host({}, HostState::Create);
  for (Held* held : {&host, &gpu}) {
    ASSERT_TRUE(held->store->Load(0, {.master = ReadRandom}).ok());
    PushAll(*held->store, 2, DType::kF32);
    ASSERT_TRUE(held->store->Seal().ok());
    ASSERT_TRUE(held->store->Commit(1, 1e-2, 1.0).ok());
  }
  ExpectSame(*gpu.store, *host.store);
  EXPECT_EQ(std::memcmp(gpu.weights.bytes().data(), host.weights.bytes().data(),
                        host.weights.bytes().size()),
            0);
}

// The failed push, and all later ones of its partition, are refused; the next attempt is whole.
TEST(CudaState, AFailedPushLosesTheAttempt) {
  gpu::SetFakeGpus({});
  Held gpu({}, OnGpu());
  ASSERT_TRUE(gpu.store->Load(0, {.master = ReadRandom}).ok());
  Partition& partition = *gpu.store->partitions()[1];
  const std::vector<float> gradient(static_cast<size_t>(partition.spec().count), 1);
  const auto push = [&](int64_t sequence) {
    return partition
        .ApplyPush(sequence, DType::kF32, reinterpret_cast<const std::byte*>(gradient.data()))
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

// Nobody recorded its event then, neither for this push nor before.
TEST(CudaState, APushThatFailsAtOnceIsNotWaitedFor) {
  gpu::SetFakeGpus({});
  Held gpu({}, OnGpu());
  const std::vector<float> gradient(static_cast<size_t>(gpu.partitions[0].count), 1);
  gpu::FailCall("cudaMemcpyAsync", 1, cudaErrorInvalidValue);
  EXPECT_EQ(gpu.store->state()
                .Add(0, DType::kF32, reinterpret_cast<const std::byte*>(gradient.data()),
                     PayloadMemory::kHost, /*first=*/true)
                .code(),
            absl::StatusCode::kInternal);
}

// Work that fails when it runs is reported by whatever waits for it first, and the GPU is lost.
TEST(CudaState, FailedWorkIsToldBeforeAnythingIsPublished) {
  gpu::SetFakeGpus({});
  Held gpu({}, OnGpu());
  ASSERT_TRUE(gpu.store->Load(0, {.master = ReadRandom}).ok());
  PushAll(*gpu.store, 1, DType::kF32);
  gpu::FailWork(1, cudaErrorIllegalAddress);
  EXPECT_THAT(std::string(gpu.store->Seal().status().message()),
              HasSubstr("the GPU is lost to this process"));
}

TEST(CudaState, ACommitThatFailsLeavesNothingToUse) {
  gpu::SetFakeGpus({});
  Held gpu({}, OnGpu());
  ASSERT_TRUE(gpu.store->Load(0, {.master = ReadRandom}).ok());
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
  gpu::SetFakeGpus({});
  Held gpu({}, OnGpu());
  gpu::FailCall("cudaMemcpyAsync", 2, cudaErrorInvalidValue);
  EXPECT_THAT(std::string(gpu.store->Load(0, {.master = ReadRandom}).message()),
              HasSubstr("cuda:0: loading a partition: "));
}

}  // namespace
}  // namespace shoal::server
