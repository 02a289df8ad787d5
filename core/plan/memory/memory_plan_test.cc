#include "core/plan/memory/memory_plan.h"

#include <utility>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/plan/memory/attention_scratch.h"
#include "core/plan/memory/stage_scratch.h"
#include "core/plan/placement/placement.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

Job ResolvedJob(ComputeType compute = ComputeType::kFp32) {
  Job job;
  job.train.compute = compute;
  Resolve(job, "/", {});
  return job;
}

int64_t Elements(const ModelSpec& spec) {
  int64_t count = 0;
  for (const UnitSpec& unit : BuildUnits(spec)) {
    count += unit.count;
  }
  return count;
}

TEST(PlanServerMemory, AddsUpToTheStatedBytesPerParameter) {
  const ModelSpec spec = *NamedShape("25m");
  const auto n = static_cast<double>(Elements(spec));
  const auto partitions = BuildPartitions(BuildUnits(spec), 4 * kMiB);
  ServiceOptions service;
  for (const bool exact : {false, true}) {
    for (const DType wire : {DType::kF32, DType::kBF16}) {
      service.accumulate = exact ? Accumulate::kExact : Accumulate::kFloat;
      service.wire_type = wire;
      const ServerMemory memory =
          PlanServerMemory(partitions, PushSlotBytes(partitions, DType::kF32), service, 0);
      const double per_parameter = (wire == DType::kF32 ? 8 : 4) + 4 + 8 + (exact ? 8 : 4);
      EXPECT_NEAR(static_cast<double>(memory.total() - memory.process) / n, per_parameter, 0.05);
      EXPECT_EQ(memory.slots, 0);
    }
  }
  const ServerMemory memory =
      PlanServerMemory(partitions, PushSlotBytes(partitions, DType::kF32), service, 3);
  EXPECT_EQ(memory.slots, 3 * service.push_slots * PushSlotBytes(partitions, DType::kF32));
  EXPECT_GE(PushSlotBytes(partitions, DType::kF32), 128 + 4 * partitions[0].count);
  EXPECT_EQ(PushSlotBytes({}, DType::kF32), 4096);
  EXPECT_EQ(PlanServerMemory({}, PushSlotBytes(partitions, DType::kF32), service, 3).slots,
            memory.slots)
      << "whatever the server holds";
}

TEST(PlanServers, CountsBackups) {
  Job job;
  job.service.replicas = 2;
  const ModelSpec spec = *NamedShape("25m");
  const auto partitions = BuildPartitions(BuildUnits(spec), 4 * kMiB);
  const ShardMap map = PlaceShards(partitions, 3, 1);
  const auto single = PlanServers(job, partitions, map, 3, 2);
  const auto backed =
      PlanServers(job, partitions, WithBackups(partitions, map, FirstServers(3), 2), 3, 2);
  int64_t more = 0;
  for (size_t server = 0; server < 3; ++server) {
    more += backed[server].backups;
    EXPECT_EQ(backed[server].total(), single[server].total() + backed[server].backups +
                                          backed[server].promotion + 4 * kStateLinkBytes)
        << "two servers read here, and it reads at them";
    // Its two peers have half of what it backs up, each.
    EXPECT_GE(backed[server].promotion * 2, backed[server].backups);
    EXPECT_LT(backed[server].promotion, 2 * backed[server].backups);
  }
  EXPECT_EQ(more, 16 * Elements(spec)) << "master weight, two moments and gradient";
  const auto plan = PlanMemory(spec, job, 3, 2, {});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->servers[1].backups, backed[1].backups);
  job.service.read_replicas = true;
  const auto read =
      PlanServers(job, partitions, WithBackups(partitions, map, FirstServers(3), 2), 3, 2);
  int64_t weights = 0;
  int64_t of_one = 0;
  int64_t backups = 0;
  for (size_t server = 0; server < 3; ++server) {
    weights += read[server].weights;
    of_one += single[server].weights;
    EXPECT_EQ(read[server].total() - backed[server].total(),
              read[server].weights - single[server].weights);
  }
  for (const PartitionSpec& partition : partitions) {
    backups += BackupBytes(partition, job.service) - partition.backup_bytes();
  }
  EXPECT_NEAR(static_cast<double>(weights), 2.0 * static_cast<double>(of_one), 3 * 4096)
      << "each partition's twice, but for what rounds up of headers";
  EXPECT_NEAR(static_cast<double>(backups), static_cast<double>(of_one), 4 * 4096);
}

TEST(PlanServerMemory, InAGpuTheHostKeepsWhatClientsSee) {
  const auto partitions = BuildPartitions(BuildUnits(*NamedShape("25m")), 4 * kMiB);
  ServiceOptions service;
  const ServerMemory host =
      PlanServerMemory(partitions, PushSlotBytes(partitions, DType::kF32), service, 3);
  EXPECT_EQ(host.gpu.total(), 0);
  EXPECT_EQ(host.copies, 0);
  service.memory = PartitionMemory::kCuda;
  const ServerMemory cuda =
      PlanServerMemory(partitions, PushSlotBytes(partitions, DType::kF32), service, 3);
  EXPECT_EQ(cuda.weights, host.weights);
  EXPECT_EQ(cuda.slots, host.slots);
  EXPECT_EQ(cuda.master + cuda.moments + cuda.gradients, 0);
  EXPECT_EQ(cuda.gpu.master, host.master);
  EXPECT_EQ(cuda.gpu.moments, host.moments);
  EXPECT_EQ(cuda.gpu.gradients, host.gradients);
  // One partition for each stream, and little else.
  EXPECT_GE(cuda.gpu.workspace, kServerGpuStreams * 4 * kMiB);
  EXPECT_LT(cuda.gpu.workspace, kServerGpuStreams * 4 * kMiB + kMiB);
  EXPECT_LE(cuda.copies, (kServerGpuStreams + 3) * 4 * kMiB);
}

TEST(PlanServerMemory, CountsWhatClientsReachInAGpu) {
  Job job;
  job.service.transports = {"shm", "tcp"};
  job.service.memory = PartitionMemory::kCuda;
  job.service.wire_type = DType::kBF16;
  job.train.compute = ComputeType::kBf16;
  job.train.device = DeviceKind::kCuda;
  job.cluster.local = true;
  const auto reached = [&job] {
    const ReachedInGpu found = PlanReachedInGpu(job);
    return std::pair(found.weights, found.slots);
  };
  EXPECT_EQ(reached(), std::pair(true, true));
  EXPECT_TRUE(PlanReachedInGpu(job).by_all);
  job.cluster.local = false;  // some may be on other hosts
  EXPECT_EQ(reached(), std::pair(true, true));
  EXPECT_FALSE(PlanReachedInGpu(job).by_all);
  job.cluster.local = true;
  job.service.wire_type = DType::kF32;  // converted on the host
  EXPECT_EQ(reached(), std::pair(false, true));
  job.service.gradient_type = DType::kBF16;
  EXPECT_EQ(reached(), std::pair(false, false));
  job.service.wire_type = DType::kBF16;
  job.service.gradient_type = DType::kF32;
  Job other = job;
  other.service.transports = {"tcp"};
  EXPECT_FALSE(PlanReachedInGpu(other).weights || PlanReachedInGpu(other).slots);
  other = job;
  other.train.device = DeviceKind::kCpu;
  EXPECT_FALSE(PlanReachedInGpu(other).weights || PlanReachedInGpu(other).slots);
  other = job;
  other.service.memory = PartitionMemory::kHost;
  EXPECT_FALSE(PlanReachedInGpu(other).weights || PlanReachedInGpu(other).slots);
  const auto partitions = BuildPartitions(BuildUnits(*NamedShape("25m")), 4 * kMiB);
  const ServerMemory host =
      PlanServerMemory(partitions, PushSlotBytes(partitions, DType::kF32), job.service, 3);
  const ServerMemory gpu = PlanServerMemory(partitions, PushSlotBytes(partitions, DType::kF32),
                                            job.service, 3, PlanReachedInGpu(job));
  EXPECT_EQ(host.gpu.weights + host.gpu.slots, 0);
  EXPECT_EQ(gpu.gpu.weights, SharedGpuBytes(host.weights));
  EXPECT_EQ(gpu.gpu.slots, 3 * SharedGpuBytes(host.slots / 3));
  EXPECT_EQ(gpu.weights, host.weights) << "for who does not reach them";
  EXPECT_EQ(gpu.slots, 3 * job.service.push_slots * 4096);
  job.cluster.local = false;
  const ServerMemory apart = PlanServerMemory(partitions, PushSlotBytes(partitions, DType::kF32),
                                              job.service, 3, PlanReachedInGpu(job));
  EXPECT_EQ(apart.slots, host.slots) << "all may be on another host";
  EXPECT_EQ(apart.gpu.slots, gpu.gpu.slots) << "all may be on this";
  EXPECT_EQ(SharedGpuBytes(1), 2 * kMiB);
  EXPECT_EQ(SharedGpuBytes(2 * kMiB), 2 * kMiB);
}

TEST(PlanActivations, GrowWithTokensAndLayersAndHalveInBf16) {
  const ModelSpec spec = *NamedShape("25m");
  const ActivationBytes one = PlanActivations(spec, DType::kF32, 1024);
  const ActivationBytes two = PlanActivations(spec, DType::kF32, 2048);
  EXPECT_EQ(two.blocks, 2 * one.blocks);
  const int64_t q = spec.attention().q_size();
  const int64_t kv = spec.attention().kv_size();
  EXPECT_EQ(one.blocks, spec.layers * 1024 * 4 *
                            (4 * spec.hidden + 2 * q + 2 * kv + 3 * spec.mlp().intermediate + 2 +
                             spec.attention().heads));
  EXPECT_LT(PlanActivations(spec, DType::kBF16, 1024).blocks, one.blocks * 51 / 100);
  EXPECT_LE(two.logits, 32 * kMiB + 2 * 512 * spec.hidden * 4 + 64);
  // A vocabulary so large that one chunk of rows exceeds the limit.
  EXPECT_GE(PlanActivations(*NamedShape("7b"), DType::kF32, 1024).logits, 64 * 152064 * 4);
}

TEST(UseOrder, VisitsBlocksTwiceAndTheTiedEmbeddingAtBothEnds) {
  ModelSpec spec = *NamedShape("tiny");
  EXPECT_EQ(UseOrder(spec), (std::vector<int>{0, 1, 2, 3, 0, 2, 1}));
  spec.tied_embeddings = false;
  EXPECT_EQ(UseOrder(spec), (std::vector<int>{0, 1, 2, 3, 2, 1}));
}

// A worker's cache, use by use: what PlanTraffic computes with a formula.
StepTraffic Simulate(const ModelSpec& spec, const Job& job, const WorkerPolicy& policy,
                     int64_t microbatches) {
  const auto units = BuildUnits(spec);
  std::vector<int> uses;
  for (int64_t i = 0; i < microbatches; ++i) {
    const auto order = UseOrder(spec);
    uses.insert(uses.end(), order.begin(), order.end());
  }
  StepTraffic traffic;
  std::vector<int> held(units.size(), 0);
  std::vector<bool> ever(units.size(), false);
  const auto take = [&](size_t use) {
    const auto unit = static_cast<size_t>(uses[use]);
    if (held[unit]++ == 0 && !(policy.residency == Residency::kStep && ever[unit])) {
      ++traffic.fetches;
      traffic.get_bytes += units[unit].count * SizeOf(job.service.wire_type);
    }
    ever[unit] = true;
  };
  const auto ahead = static_cast<size_t>(job.train.prefetch_units);
  for (size_t next = 0, use = 0; use < uses.size(); ++use) {
    for (; next < uses.size() && next <= use + ahead; ++next) {
      take(next);
    }
    --held[static_cast<size_t>(uses[use])];
  }
  return traffic;
}

TEST(PlanTraffic, FetchesWhatAWalkWithPrefetchFetches) {
  for (const bool tied : {false, true}) {
    ModelSpec spec = *NamedShape("6m");
    spec.tied_embeddings = tied;
    for (const Residency residency : {Residency::kLayer, Residency::kStep}) {
      for (const int64_t microbatches : {0, 1, 2, 5}) {
        for (const int64_t prefetch : {0, 1, 2, 3, 20}) {
          Job job = ResolvedJob();
          job.train.prefetch_units = prefetch;
          const WorkerPolicy policy{residency, PushPolicy::kStep};
          const StepTraffic planned = PlanTraffic(spec, job, policy, microbatches);
          const StepTraffic walked = Simulate(spec, job, policy, microbatches);
          EXPECT_EQ(planned.fetches, walked.fetches)
              << tied << " " << microbatches << " " << prefetch;
          EXPECT_EQ(planned.get_bytes, walked.get_bytes);
        }
      }
    }
  }
}

TEST(PlanTraffic, MovesWhatTheMethodSays) {
  ModelSpec spec = *NamedShape("25m");
  spec.tied_embeddings = false;
  Job job = ResolvedJob();
  job.train.prefetch_units = 0;
  const auto units = BuildUnits(spec);
  const int64_t elements = Elements(spec);
  const int64_t blocks = elements - units.front().count - units.back().count;
  // Each microbatch receives every block twice, embedding and head once, and sends every gradient
  // once.
  const StepTraffic fine = PlanTraffic(spec, job, {Residency::kLayer, PushPolicy::kMicrobatch}, 3);
  EXPECT_EQ(fine.get_bytes, 3 * 4 * (elements + blocks));
  EXPECT_EQ(fine.push_bytes, 3 * 4 * elements);
  const StepTraffic coarse = PlanTraffic(spec, job, {Residency::kStep, PushPolicy::kStep}, 3);
  EXPECT_EQ(coarse.get_bytes, 4 * elements);
  EXPECT_EQ(coarse.push_bytes, 4 * elements);
  EXPECT_EQ(fine.pushes, 3 * coarse.pushes);
  job.service.wire_type = DType::kBF16;
  job.service.gradient_type = DType::kBF16;
  EXPECT_EQ(PlanTraffic(spec, job, {Residency::kStep, PushPolicy::kStep}, 3).total(),
            coarse.total() / 2);
  EXPECT_EQ(PlanTraffic(spec, job, {Residency::kStep, PushPolicy::kStep}, 0).total(), 0);
}

// In exact mode a worker adds nothing up: not over microbatches, and not what the head and the
// embedding contribute to the matrix that they share.
TEST(PlanTraffic, PushesEachContributionInExactMode) {
  Job job = ResolvedJob();
  job.service.accumulate = Accumulate::kExact;
  const WorkerPolicy policy{Residency::kLayer, PushPolicy::kMicrobatch};
  for (const bool tied : {false, true}) {
    ModelSpec spec = *NamedShape("6m");
    spec.tied_embeddings = tied;
    const auto plan = PlanMemory(spec, job, 2, 2, {});
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->policy.push, PushPolicy::kMicrobatch);
    const int64_t shared = tied ? BuildUnits(spec).front().count : 0;
    EXPECT_EQ(PlanTraffic(spec, job, policy, 3).push_bytes, 3 * 4 * (Elements(spec) + shared));
  }
}

TEST(PlanMemory, ChoosesByMemory) {
  const ModelSpec spec = *NamedShape("1.3b");
  const Job job = ResolvedJob(ComputeType::kBf16);
  const auto plenty = PlanMemory(spec, job, 2, 2, {});
  ASSERT_TRUE(plenty.ok());
  EXPECT_EQ(plenty->policy, (WorkerPolicy{Residency::kStep, PushPolicy::kStep}));
  EXPECT_EQ(plenty->servers.size(), 2U);

  // As the budget shrinks memory never exceeds it and traffic never falls, until nothing fits.
  int64_t last_traffic = 0;
  bool refused = false;
  for (int64_t budget = plenty->total(); budget > 0; budget -= 512 * kMiB) {
    const auto plan = PlanMemory(spec, job, 2, 2, {.machine_bytes = budget});
    if (!plan.ok()) {
      refused = true;
      EXPECT_TRUE(absl::IsResourceExhausted(plan.status()));
      EXPECT_THAT(std::string(Message(plan.status())), testing::HasSubstr("the job needs"));
      continue;
    }
    EXPECT_FALSE(refused);
    EXPECT_LE(plan->total(), budget);
    const int64_t traffic = PlanTraffic(spec, job, plan->policy, 4).total();
    EXPECT_GE(traffic, last_traffic);
    last_traffic = traffic;
  }
  EXPECT_TRUE(refused);
}

TEST(PlanMemory, KeepsToWhatTheJobSays) {
  Job job = ResolvedJob();
  job.train.residency = Residency::kLayer;
  job.train.push = PushPolicy::kMicrobatch;
  const auto plan = PlanMemory(*NamedShape("25m"), job, 3, 1, {});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->policy, (WorkerPolicy{Residency::kLayer, PushPolicy::kMicrobatch}));
  EXPECT_FALSE(PlanMemory(*NamedShape("25m"), job, 3, 1, {.machine_bytes = 100 * kMiB}).ok());
}

TEST(PlanMemory, PutsIntoAGpuWhatIsComputedWith) {
  const ModelSpec spec = *NamedShape("25m");
  Job job = ResolvedJob();
  job.train.residency = Residency::kStep;
  job.train.push = PushPolicy::kStep;
  const WorkerMemory cpu = PlanMemory(spec, job, 1, 1, {})->stages[0];
  EXPECT_EQ(cpu.gpu.total(), 0);
  job.train.device = DeviceKind::kCuda;
  const WorkerMemory worker = PlanMemory(spec, job, 1, 1, {})->stages[0];
  EXPECT_EQ(worker.gpu.weights, cpu.weights);
  EXPECT_EQ(worker.gpu.gradients, cpu.gradients);
  EXPECT_EQ(worker.gpu.activations, cpu.activations);
  EXPECT_EQ(worker.gpu.logits,
            LogitBytes(spec, ComputeDType(job), job.data.microbatch_tokens, kGpuLossChunk));
  EXPECT_GT(worker.gpu.logits, cpu.logits);
  EXPECT_EQ(worker.activations + worker.logits, 0);
  // On the host, for data on its way.
  job.train.device = DeviceKind::kCpu;
  job.train.residency = Residency::kLayer;
  job.train.push = PushPolicy::kMicrobatch;
  const WorkerMemory few = PlanMemory(spec, job, 1, 1, {})->stages[0];
  EXPECT_EQ(worker.weights, few.weights);
  EXPECT_EQ(worker.gradients, few.gradients);
}

TEST(PlanMemory, CountsWhatCudnnsAttentionMayTake) {
  const ModelSpec spec = *NamedShape("7b");
  ASSERT_NE(spec.attention().heads, spec.attention().kv_heads);
  Job job = ResolvedJob(ComputeType::kBf16);
  job.train.device = DeviceKind::kCuda;
  job.data.microbatch_tokens = 65536;
  const auto workspace = [&] { return PlanMemory(spec, job, 1, 1, {})->stages[0].gpu.workspace; };
  const int64_t fused = FusedAttentionBytes(spec, 65536);
  EXPECT_EQ(workspace(), kGpuWorkspaceBytes + fused);
  const auto queries = static_cast<double>(65536 * spec.attention().q_size());
  EXPECT_NEAR(static_cast<double>(fused) / queries, 10.7, 0.2);
  job.service.accumulate = Accumulate::kExact;
  EXPECT_EQ(workspace(), kGpuWorkspaceBytes);
  job.service.accumulate = Accumulate::kFloat;
  job.train.compute = ComputeType::kFp32;
  EXPECT_EQ(workspace(), kGpuWorkspaceBytes);
  // If each head has its own keys: 4 + 2 B of queries, 2 B each of keys and values.
  const ModelSpec small = *NamedShape("124m");
  ASSERT_EQ(small.attention().heads, small.attention().kv_heads);
  EXPECT_NEAR(static_cast<double>(FusedAttentionBytes(small, 65536)) /
                  static_cast<double>(65536 * small.attention().q_size()),
              10.1, 0.2);
}

TEST(GpuTurn, EachProcessHasOneAndSharesAddUp) {
  for (const size_t gpus : {1U, 2U, 3U, 8U}) {
    for (const int64_t processes : {0, 1, 5, 8, 17}) {
      int64_t all = 0;
      for (size_t place = 0; place < gpus; ++place) {
        const GpuTurn gpu{.place = place, .gpus = gpus};
        int64_t here = 0;
        for (int64_t index = 0; index < processes; ++index) {
          here += gpu.Has(static_cast<size_t>(index)) ? 1 : 0;
        }
        EXPECT_EQ(gpu.Share(processes), here);
        all += here;
      }
      EXPECT_EQ(all, processes);
    }
  }
}

TEST(ServersBytesOn, CountsThoseWhoseTurnItIs) {
  Job job = ResolvedJob();
  job.train.device = DeviceKind::kCuda;
  job.service.memory = PartitionMemory::kCuda;
  job.service.transports = {"shm"};
  job.cluster.local = true;
  const std::vector<ServerMemory> servers = PlanMemory(*NamedShape("25m"), job, 3, 4, {})->servers;
  EXPECT_GT(servers[0].gpu.slots, 0);
  EXPECT_EQ(ServersBytesOn({.place = 0, .gpus = 2}, servers),
            servers[0].gpu.total() + servers[2].gpu.total());
  EXPECT_EQ(ServersBytesOn({.place = 1, .gpus = 2}, servers), servers[1].gpu.total());
  EXPECT_EQ(ServersBytesOn({.place = 3, .gpus = 4}, servers), 0);
}

TEST(PlanMemory, ChoosesWhatFitsIntoTheGpu) {
  const ModelSpec spec = *NamedShape("25m");
  Job job = ResolvedJob();
  job.train.device = DeviceKind::kCuda;
  const MemoryPlan roomy = *PlanMemory(spec, job, 1, 1, {.gpu_bytes = 100 * kGiB});
  EXPECT_EQ(roomy.policy, (WorkerPolicy{.residency = Residency::kStep, .push = PushPolicy::kStep}));
  const int64_t most = roomy.stages[0].gpu.total();
  const MemoryPlan tight = *PlanMemory(spec, job, 1, 1, {.gpu_bytes = most - 1});
  EXPECT_NE(tight.policy, roomy.policy);
  EXPECT_LT(tight.stages[0].gpu.total(), most);
  // Servers on the same GPU, whose slots are allocated later.
  constexpr int64_t kSlots = 6 * kMiB;
  constexpr int64_t kTaken = 100 * kMiB;
  const auto fits = [&](int64_t free) {
    const MemoryBudget with = {.gpu_bytes = most + free,
                               .servers = {.taken = kTaken, .slots = kSlots}};
    return PlanMemory(spec, job, 1, 1, with)->policy == roomy.policy;
  };
  EXPECT_TRUE(fits(kSlots));
  EXPECT_FALSE(fits(kSlots - 1));
  // Of two workers each leaves half of what servers take, out of its share of the GPU: what servers
  // have allocated is missing from what is free, but not from the share.
  const auto fits_beside = [&](int64_t free, int64_t share) {
    const MemoryBudget with = {.gpu_bytes = most + free,
                               .servers = {.taken = kTaken, .slots = kSlots},
                               .gpu_workers = 2,
                               .gpu_share_bytes = most + share};
    return PlanMemory(spec, job, 1, 2, with)->policy == roomy.policy;
  };
  constexpr int64_t kHalf = (kTaken + kSlots) / 2;
  EXPECT_TRUE(fits_beside(kSlots, kHalf));
  EXPECT_FALSE(fits_beside(kSlots - 1, kHalf));
  EXPECT_FALSE(fits_beside(kSlots, kHalf - 1));
  const absl::Status none = PlanMemory(spec, job, 1, 1, {.gpu_bytes = 200 * kMiB}).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(none.message()), testing::HasSubstr("of its GPU's memory"));
  EXPECT_THAT(std::string(none.message()), testing::HasSubstr("200"));
  EXPECT_THAT(std::string(none.message()), testing::HasSubstr("lower data.microbatch_tokens"));
}

}  // namespace
}  // namespace shoal::plan
