#include "core/plan/memory/memory_plan.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/job/job_units.h"
#include "core/model/tensor_bytes.h"
#include "core/model/unit_shards.h"
#include "core/plan/memory/activation_bytes.h"
#include "core/plan/memory/attention_scratch.h"
#include "core/plan/memory/stage_scratch.h"
#include "core/plan/placement/placement.h"
#include "core/plan/schedule/stage_units.h"

namespace shoal::plan {
namespace {

constexpr int64_t kPage = 4096;  // alignment of what the transport exposes

int64_t Pages(int64_t bytes) { return RoundUp(bytes, kPage); }

// A unit's size, and how many buffers there are of such a size; of no bytes: it has none.
struct Wanted {
  int64_t bytes = 0;
  int64_t most = 0;

  auto operator<=>(const Wanted&) const = default;
};

// Returns the bytes of the buffers of units with a contribution: of each distinct size as many as
// are wanted, or as there are such units if they are fewer.
template <typename WantedOf>
int64_t BufferBytes(const std::vector<UnitSpec>& units, const std::vector<int>& contributions,
                    const WantedOf& wanted_of) {
  std::map<Wanted, int64_t> units_of_size;
  for (const UnitSpec& unit : units) {
    if (contributions[static_cast<size_t>(unit.index)] > 0) {
      ++units_of_size[wanted_of(unit)];
    }
  }
  int64_t bytes = 0;
  for (const auto& [wanted, number] : units_of_size) {
    bytes += std::min(number, wanted.most) * Pages(wanted.bytes);
  }
  return bytes;
}

bool OnGpu(const Job& job) { return job.train.device == DeviceKind::kCuda; }

// Returns the buffers for weights and gradients.
WorkerMemory UnitBuffers(const ModelSpec& spec, const Job& job, const WorkerPolicy& policy,
                         const std::vector<int>& contributions) {
  const std::vector<UnitSpec> units = JobUnits(spec, job.train);
  const std::vector<int> trained = TrainedContributions(units, contributions);
  const DType compute = ComputeDType(job);
  const auto all = static_cast<int64_t>(units.size());
  const int64_t weight_buffers = BuffersPerSize(job.train);
  const bool on_gpu = OnGpu(job);
  const int64_t kept = policy.residency == Residency::kStep ? all : weight_buffers;
  // Of those in NF4 a worker's host keeps what was read, a GPU what it computes with.
  const auto buffers = [&](int64_t per_size, bool on_device) {
    return BufferBytes(units, contributions, [&](const UnitSpec& unit) {
      return Wanted{.bytes = unit.count * SizeOf(compute),
                    .most = unit.nf4 && !on_device ? weight_buffers : per_size};
    });
  };
  const auto gradient_buffers = [&](int64_t per_size) {
    return BufferBytes(units, trained, [&](const UnitSpec& unit) {
      return Wanted{.bytes = unit.count * 4, .most = per_size};
    });
  };
  const std::vector<int64_t> wire =
      WireBytes(units, BuildPartitions(units, job.service.partition_bytes), job.service.wire_type);
  const auto wire_of = [&](const UnitSpec& unit) {
    const bool converts = unit.nf4 || job.service.wire_type != compute;
    return Wanted{.bytes = converts ? wire[static_cast<size_t>(unit.index)] : 0,
                  .most = unit.nf4 && !on_gpu ? kept : weight_buffers};
  };
  WorkerMemory memory;
  memory.wire = BufferBytes(units, contributions, wire_of);
  const int64_t gradients =
      gradient_buffers(policy.push == PushPolicy::kStep ? all : kGradientBuffersPerSize);
  if (on_gpu) {
    memory.weights = buffers(weight_buffers, /*on_device=*/false);
    memory.gpu = {
        .weights = buffers(kept, /*on_device=*/true),
        .gradients = gradients,
        .workspace =
            kGpuWorkspaceBytes +
            (MayFuseAttention(job) ? FusedAttentionBytes(spec, job.data.microbatch_tokens) : 0)};
    memory.gradients = gradient_buffers(kGradientBuffersPerSize);
  } else {
    memory.weights = buffers(kept, /*on_device=*/false);
    memory.gradients = gradients;
  }
  return memory;
}

// Adds a worker's shards of all units, if it exchanges with others: the shards on the GPU, and on
// the host the partitions that contain them. At most one partition more at each end.
void AddShards(const ModelSpec& spec, const Job& job, int workers, WorkerMemory& memory) {
  const int64_t partition = job.service.partition_bytes / 4;
  const int64_t compute = SizeOf(ComputeDType(job));
  for (const UnitSpec& unit : JobUnits(spec, job.train)) {
    const int64_t shard = ShardElements(unit.count, workers);
    const int64_t whole = std::min(unit.count, shard + 2 * partition);
    memory.gpu.weights += compute * (shard + whole);
    memory.weights += Pages(compute * whole);
    if (!unit.frozen) {
      memory.gpu.gradients += 4 * shard;
      memory.gradients += Pages(4 * whole);
    }
  }
}

std::vector<int> AllContributions(const ModelSpec& spec) {
  const UnitRange all = AllUnits(spec);
  return StageContributions(spec, {&all, 1});
}

// For a step that gets these units in this order.
StepTraffic TrafficOf(const ModelSpec& spec, const Job& job, const WorkerPolicy& policy,
                      std::span<const int> uses, const std::vector<int>& contributions,
                      int64_t microbatches) {
  const std::vector<UnitSpec> units = JobUnits(spec, job.train);
  const std::vector<PartitionSpec> partitions = BuildPartitions(units, job.service.partition_bytes);
  const std::vector<int64_t> wire = WireBytes(units, partitions, job.service.wire_type);
  StepTraffic traffic;
  std::vector<int64_t> last_use(units.size(), -1);
  for (int64_t position = 0; position < static_cast<int64_t>(uses.size()); ++position) {
    const auto unit = static_cast<size_t>(uses[static_cast<size_t>(position)]);
    const int64_t held_for =
        policy.residency == Residency::kStep ? position + 1 : job.train.prefetch_units;
    const bool stays = units[unit].frozen && policy.residency == Residency::kStep;
    if (!stays && (last_use[unit] < 0 || position - last_use[unit] > held_for)) {
      ++traffic.fetches;
      traffic.get_bytes += wire[unit];
    }
    last_use[unit] = position;
  }
  const int64_t rounds = policy.push == PushPolicy::kStep ? 1 : microbatches;
  const std::vector<int> per_pack = PushesPerPack(job, TrainedContributions(units, contributions));
  const auto pushes_of = [&](int unit) { return rounds * per_pack[static_cast<size_t>(unit)]; };
  for (const UnitSpec& unit : units) {
    traffic.push_bytes += pushes_of(unit.index) * unit.count * SizeOf(job.service.gradient_type);
  }
  for (const PartitionSpec& partition : partitions) {
    traffic.pushes += pushes_of(partition.unit);
  }
  return traffic;
}

absl::Status TooLittle(const MemoryPlan& plan, int64_t machine_bytes) {
  const WorkerMemory& worker = *std::ranges::max_element(plan.stages, {}, &WorkerMemory::total);
  const std::pair<const char*, int64_t> parts[] = {
      {"weights at the workers", worker.weights + worker.wire},
      {"gradients at the workers", worker.gradients},
      {"activations (lower data.microbatch_tokens)",
       worker.activations + worker.logits + worker.offloaded},
      {"messages between stages (lower data.microbatch_tokens)", worker.messages},
      {"pushes in flight (lower service.push_slots or service.partition_bytes)", worker.pushes}};
  const auto* largest =
      std::max_element(std::begin(parts), std::end(parts),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  int64_t server_bytes = 0;
  for (const ServerMemory& server : plan.servers) {
    server_bytes += server.total();
  }
  return ResourceExhausted(
      "the job needs {} of memory here ({} for {} servers, {} for each of {} workers, most of it "
      "{}), and {} are available",
      FormatBytes(plan.total()), FormatBytes(server_bytes), plan.servers.size(),
      FormatBytes(worker.total()), plan.groups * static_cast<int64_t>(plan.stages.size()),
      largest->first, FormatBytes(machine_bytes));
}

absl::Status TooLittleGpu(const MemoryPlan& plan, int64_t gpu_bytes) {
  const GpuMemory& gpu = std::ranges::max_element(plan.stages, {}, [](const WorkerMemory& worker) {
                           return worker.gpu.total();
                         })->gpu;
  return ResourceExhausted(
      "a worker needs {} of its GPU's memory ({} for weights, {} for gradients, {} for "
      "activations and logits, {} for workspaces), and {} are free there; {}",
      FormatBytes(gpu.total()), FormatBytes(gpu.weights), FormatBytes(gpu.gradients),
      FormatBytes(gpu.activations + gpu.logits), FormatBytes(gpu.workspace), FormatBytes(gpu_bytes),
      gpu.activations + gpu.logits > gpu.weights + gpu.gradients
          ? "lower data.microbatch_tokens, or say train.recompute: full or train.offload: full"
          : "say train.residency layer and train.push microbatch, lower train.prefetch_units, or "
            "split the model over cluster.pipeline.stages");
}

int64_t LargestOnGpu(const MemoryPlan& plan) {
  int64_t largest = 0;
  for (const WorkerMemory& worker : plan.stages) {
    largest = std::max(largest, worker.gpu.total());
  }
  return largest;
}

// Returns what servers leave of its GPU to one worker.
int64_t LeftByServers(const MemoryBudget& budget) {
  const ServersOnGpu& servers = budget.servers;
  const int64_t left = budget.gpu_bytes - servers.slots;
  if (budget.gpu_workers == 1) {
    return left;  // what they have allocated is already missing from it
  }
  return std::min(left,
                  budget.gpu_share_bytes - (servers.taken + servers.slots) / budget.gpu_workers);
}

}  // namespace

std::vector<WorkerPolicy> AllowedPolicies(const Job& job) {
  const TrainOptions& train = job.train;
  // The baseline that layer synchronization stands for keeps nothing, unless told to.
  const bool baseline = train.synchronization == Synchronization::kLayer;
  const Residency wanted_residency =
      baseline && train.residency == Residency::kAuto ? Residency::kLayer : train.residency;
  const bool sums_nothing = baseline || job.service.accumulate == Accumulate::kExact;
  const PushPolicy wanted_push =
      sums_nothing && train.push == PushPolicy::kAuto ? PushPolicy::kMicrobatch : train.push;
  std::vector<WorkerPolicy> policies;
  for (const Residency residency : {Residency::kStep, Residency::kLayer}) {
    for (const PushPolicy push : {PushPolicy::kStep, PushPolicy::kMicrobatch}) {
      if ((wanted_residency == Residency::kAuto || wanted_residency == residency) &&
          (wanted_push == PushPolicy::kAuto || wanted_push == push)) {
        policies.push_back({residency, push});
      }
    }
  }
  return policies;
}

int BuffersPerSize(const TrainOptions& train) { return static_cast<int>(train.prefetch_units) + 2; }

ActivationBytes PlanActivations(const ModelSpec& spec, DType compute, int64_t tokens,
                                const LossChunk& loss_chunk) {
  const int64_t rows = MicrobatchRows(tokens);
  return {.blocks = spec.layers * BlockActivationBytes(spec, compute, Recompute::kNone, rows),
          .other = MicrobatchInputBytes(tokens) +
                   ChunkScratchBytes(spec, compute, Recompute::kNone, tokens) +
                   NormScratchBytes(spec, compute, tokens) +
                   TensorBytes(compute, rows).Matrix(spec.hidden).bytes(),  // the head's input
          .logits = LogitBytes(spec, compute, tokens, loss_chunk)};
}

WorkerMemory PlanWorkerMemory(const ModelSpec& spec, const Job& job, const WorkerPolicy& policy,
                              int64_t push_bytes) {
  WorkerMemory memory = UnitBuffers(spec, job, policy, AllContributions(spec));
  // Emulated devices keep none.
  const ActivationBytes activations =
      job.emulate.enabled() ? ActivationBytes()
                            : PlanActivations(spec, ComputeDType(job), job.data.microbatch_tokens,
                                              LossChunkOf(job.train.device));
  int64_t& on_device = OnGpu(job) ? memory.gpu.activations : memory.activations;
  on_device = activations.blocks + activations.other;
  (OnGpu(job) ? memory.gpu.logits : memory.logits) = activations.logits;
  memory.pushes = push_bytes;
  return memory;
}

WorkerMemory PlanWorkerMemory(const ModelSpec& spec, const Job& job, const WorkerPolicy& policy,
                              int64_t push_bytes, const StageNeeds& stage) {
  WorkerMemory memory = UnitBuffers(spec, job, policy, StageContributions(spec, stage.chunks));
  (OnGpu(job) ? memory.gpu.activations : memory.activations) = stage.activations + stage.own;
  memory.offloaded = stage.offloaded;
  memory.messages = stage.messages;
  memory.pushes = push_bytes;
  return memory;
}

bool MayExchange(const Job& job) {
  return job.train.synchronization == Synchronization::kLayer &&
         job.train.device != DeviceKind::kCpu && !PushesEachContribution(job) &&
         job.lora.quantize == Quantize::kNone &&  // shards are of elements
         job.service.frozen == Frozen::kServers && !job.emulate.enabled() &&
         !job.cluster.pipeline.enabled();
}

bool StagesMayExchange(const Job& job) {
  return job.cluster.pipeline.stages > 1 && job.train.device != DeviceKind::kCpu &&
         !job.emulate.enabled();
}

bool PushesEachContribution(const Job& job) {
  return job.service.accumulate == Accumulate::kExact || job.cluster.pipeline.stages > 1;
}

std::vector<int> PushesPerPack(const Job& job, std::vector<int> contributions) {
  for (int& pushes : contributions) {
    pushes = PushesEachContribution(job) ? pushes : std::min(pushes, 1);
  }
  return contributions;
}

std::vector<int> KeysPerPack(const ModelSpec& spec, const Job& job) {
  return PushesPerPack(job,
                       TrainedContributions(JobUnits(spec, job.train), AllContributions(spec)));
}

std::vector<int> UseOrder(const ModelSpec& spec) {
  std::vector<int> order = ForwardUses(spec, AllUnits(spec));
  const std::vector<int> backward = BackwardUses(spec, AllUnits(spec));
  order.insert(order.end(), backward.begin(), backward.end());
  return order;
}

StepTraffic PlanTraffic(const ModelSpec& spec, const Job& job, const WorkerPolicy& policy,
                        int64_t microbatches) {
  if (microbatches == 0) {
    return {};
  }
  const std::vector<int> order = UseOrder(spec);
  std::vector<int> uses;
  for (int64_t i = 0; i < microbatches; ++i) {
    uses.insert(uses.end(), order.begin(), order.end());
  }
  return TrafficOf(spec, job, policy, uses, AllContributions(spec), microbatches);
}

StepTraffic PlanTraffic(const ModelSpec& spec, const Job& job, const WorkerPolicy& policy,
                        const StageNeeds& stage) {
  return TrafficOf(spec, job, policy, stage.uses, StageContributions(spec, stage.chunks),
                   stage.microbatches);
}

int64_t MemoryPlan::total() const {
  int64_t bytes = 0;
  for (const WorkerMemory& stage : stages) {
    bytes += groups * stage.total();
  }
  for (const ServerMemory& server : servers) {
    bytes += server.total();
  }
  return bytes;
}

absl::StatusOr<MemoryPlan> PlanMemory(const ModelSpec& spec, const Job& job, int servers,
                                      int workers, const MemoryBudget& budget,
                                      std::span<const StageNeeds> stages) {
  SHOAL_CHECK(servers > 0 && workers >= 0);
  const std::vector<PartitionSpec> partitions =
      BuildPartitions(JobUnits(spec, job.train), job.service.partition_bytes);
  const ShardMap map = WithBackups(partitions, PlaceShards(partitions, servers, 1),
                                   FirstServers(servers), job.service.replicas);
  MemoryPlan plan;
  plan.groups = workers / std::max<int64_t>(1, static_cast<int64_t>(stages.size()));
  plan.servers = PlanServers(job, partitions, map, servers, workers);
  const int64_t push_bytes =
      servers * job.service.push_slots * PushSlotBytes(partitions, job.service.gradient_type);
  const int64_t gpu_budget =
      budget.gpu_bytes == 0 ? 0 : std::max<int64_t>(1, LeftByServers(budget));
  const auto workers_with = [&](const WorkerPolicy& policy) {
    std::vector<WorkerMemory> memory;
    for (const StageNeeds& stage : stages) {
      memory.push_back(PlanWorkerMemory(spec, job, policy, push_bytes, stage));
    }
    if (memory.empty()) {
      memory.push_back(PlanWorkerMemory(spec, job, policy, push_bytes));
      if (OnGpu(job) && MayExchange(job) && workers > 1) {
        AddShards(spec, job, workers, memory.front());
      }
    }
    return memory;
  };
  const auto traffic_with = [&](const WorkerPolicy& policy) {
    StepTraffic traffic;
    for (const StageNeeds& stage : stages) {
      traffic += PlanTraffic(spec, job, policy, stage);
    }
    return (stages.empty() ? PlanTraffic(spec, job, policy, budget.microbatches) : traffic).total();
  };
  // Sorted by bytes moved, then by memory. If none fits, the error names the smallest.
  std::vector<std::pair<std::pair<int64_t, int64_t>, WorkerPolicy>> fitting;
  std::vector<std::pair<std::pair<int64_t, int64_t>, WorkerPolicy>> all;
  for (const WorkerPolicy& policy : AllowedPolicies(job)) {
    plan.stages = workers_with(policy);
    const int64_t bytes = plan.total();
    const int64_t gpu_bytes = LargestOnGpu(plan);
    all.push_back({{gpu_bytes, bytes}, policy});
    if ((budget.machine_bytes == 0 || bytes <= budget.machine_bytes) &&
        (gpu_budget == 0 || gpu_bytes <= gpu_budget)) {
      fitting.push_back({{traffic_with(policy), bytes + gpu_bytes}, policy});
    }
  }
  const auto by_key = [](const auto& a, const auto& b) { return a.first < b.first; };
  plan.policy = fitting.empty() ? std::ranges::min_element(all, by_key)->second
                                : std::ranges::min_element(fitting, by_key)->second;
  plan.stages = workers_with(plan.policy);
  if (fitting.empty()) {
    return gpu_budget > 0 && LargestOnGpu(plan) > gpu_budget
               ? TooLittleGpu(plan, gpu_budget)
               : TooLittle(plan, budget.machine_bytes);
  }
  return plan;
}

}  // namespace shoal::plan
