#include "plan/memory_plan.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "common/bytes.h"
#include "common/check.h"
#include "common/status.h"
#include "plan/activation_bytes.h"
#include "plan/stage_scratch.h"
#include "plan/stage_units.h"
#include "plan/tensor_bytes.h"

namespace shoal::plan {
namespace {

constexpr int64_t kPage = 4096;  // alignment of what the transport exposes and of server state
constexpr int64_t kPartitionHeader = 64;  // transport::PartitionHeader
constexpr int64_t kPushHeader = 128;      // transport::PushHeader

int64_t Pages(int64_t bytes) { return RoundUp(bytes, kPage); }

// An array of a partition on a server: whole pages, and the step by which the store staggers its
// arrays so that those that are walked together do not fall into the same cache sets.
int64_t StateArray(int64_t count, int64_t element) {
  constexpr int64_t kStagger = 256;
  return Pages(count * element) + kStagger;
}

DType ComputeDType(const Job& job) {
  return job.train.compute == ComputeType::kBf16 ? DType::kBF16 : DType::kF32;
}

// `per_size` buffers of each distinct unit size, or as many as there are units of that size where
// those are fewer.
int64_t BufferBytes(const std::vector<UnitSpec>& units, int64_t element, int64_t per_size) {
  std::map<int64_t, int64_t> units_of_size;
  for (const UnitSpec& unit : units) {
    ++units_of_size[unit.count];
  }
  int64_t bytes = 0;
  for (const auto& [count, number] : units_of_size) {
    bytes += std::min(number, per_size) * Pages(count * element);
  }
  return bytes;
}

std::vector<WorkerPolicy> AllowedPolicies(const Job& job) {
  const TrainOptions& train = job.train;
  // The baseline that layer synchronisation stands for keeps nothing, unless it is told to.
  const bool baseline = train.synchronization == Synchronization::kLayer;
  const Residency wanted_residency =
      baseline && train.residency == Residency::kAuto ? Residency::kLayer : train.residency;
  const bool sums_nothing = baseline || PushesEachContribution(job);
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

absl::Status TooLittle(const MemoryPlan& plan, int64_t machine_bytes) {
  const WorkerMemory& worker = plan.worker;
  const std::pair<const char*, int64_t> parts[] = {
      {"weights at the workers", worker.weights + worker.wire},
      {"gradients at the workers", worker.gradients},
      {"activations (lower data.microbatch_tokens)", worker.activations + worker.logits},
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
      FormatBytes(worker.total()), plan.workers, largest->first, FormatBytes(machine_bytes));
}

}  // namespace

int64_t PushSlotBytes(std::span<const PartitionSpec> held, DType gradient_type) {
  int64_t largest = 0;
  for (const PartitionSpec& partition : held) {
    largest = std::max(largest, partition.count);
  }
  return Pages(kPushHeader + largest * SizeOf(gradient_type));
}

ServerMemory PlanServerMemory(std::span<const PartitionSpec> held, const ServiceOptions& service,
                              int64_t clients) {
  ServerMemory memory;
  memory.weights = Pages(static_cast<int64_t>(held.size()) * kPartitionHeader);
  const int64_t sum_element = service.accumulate == Accumulate::kExact ? 8 : 4;
  for (const PartitionSpec& partition : held) {
    memory.weights += 2 * Pages(partition.count * SizeOf(service.wire_type));
    memory.master += StateArray(partition.count, 4);
    memory.moments += 2 * StateArray(partition.count, 4);
    memory.gradients += StateArray(partition.count, sum_element);
  }
  memory.slots = clients * service.push_slots * PushSlotBytes(held, service.gradient_type);
  return memory;
}

int FramesPerSize(const TrainOptions& train) { return static_cast<int>(train.prefetch_units) + 2; }

ActivationBytes PlanActivations(const ModelSpec& spec, DType compute, int64_t tokens) {
  const int64_t rows = MicrobatchRows(tokens);
  return {.blocks = spec.layers * BlockActivationBytes(spec, compute, Recompute::kNone, rows),
          .other = MicrobatchInputBytes(tokens) +
                   ChunkScratchBytes(spec, compute, Recompute::kNone, tokens) +
                   NormScratchBytes(spec, compute, tokens) +
                   TensorBytes(compute, rows).Matrix(spec.hidden).bytes(),  // the head's input
          .logits = LogitBytes(spec, compute, tokens)};
}

WorkerMemory PlanWorkerMemory(const ModelSpec& spec, const Job& job, const WorkerPolicy& policy,
                              int64_t push_bytes) {
  const std::vector<UnitSpec> units = BuildUnits(spec);
  const DType compute = ComputeDType(job);
  const auto all = static_cast<int64_t>(units.size());
  const int64_t frames = FramesPerSize(job.train);
  WorkerMemory memory;
  memory.weights =
      BufferBytes(units, SizeOf(compute), policy.residency == Residency::kStep ? all : frames);
  if (job.service.wire_type != compute) {
    memory.wire = BufferBytes(units, SizeOf(job.service.wire_type), frames);
  }
  memory.gradients =
      BufferBytes(units, 4, policy.push == PushPolicy::kStep ? all : kGradientBuffersPerSize);
  // Emulated devices keep none.
  const ActivationBytes activations =
      job.emulate.enabled() ? ActivationBytes()
                            : PlanActivations(spec, compute, job.data.microbatch_tokens);
  memory.activations = activations.blocks + activations.other;
  memory.logits = activations.logits;
  memory.pushes = push_bytes;
  return memory;
}

bool PushesEachContribution(const Job& job) { return job.service.accumulate == Accumulate::kExact; }

std::vector<int> UseOrder(const ModelSpec& spec) {
  std::vector<int> order = ForwardUses(spec, AllUnits(spec));
  const std::vector<int> backward = BackwardUses(spec, AllUnits(spec));
  order.insert(order.end(), backward.begin(), backward.end());
  return order;
}

StepTraffic PlanTraffic(const ModelSpec& spec, const Job& job, const WorkerPolicy& policy,
                        int64_t microbatches) {
  StepTraffic traffic;
  if (microbatches == 0) {
    return traffic;
  }
  const std::vector<UnitSpec> units = BuildUnits(spec);
  const int64_t wire = SizeOf(job.service.wire_type);
  std::vector<int64_t> last_use(units.size(), -1);
  const std::vector<int> order = UseOrder(spec);
  // The pattern of one microbatch repeats from the second on, so two are walked and the second is
  // counted again.
  int64_t position = 0;
  for (int64_t round = 0; round < std::min<int64_t>(2, microbatches); ++round) {
    const int64_t times = round == 0 ? 1 : microbatches - 1;
    for (const int unit : order) {
      const auto index = static_cast<size_t>(unit);
      const int64_t held_for =
          policy.residency == Residency::kStep ? position + 1 : job.train.prefetch_units;
      if (last_use[index] < 0 || position - last_use[index] > held_for) {
        traffic.fetches += times;
        traffic.get_bytes += times * units[index].count * wire;
      }
      last_use[index] = position++;
    }
  }
  const int64_t rounds = policy.push == PushPolicy::kStep ? 1 : microbatches;
  const UnitRange all = AllUnits(spec);
  const std::vector<int> contributions = StageContributions(spec, {&all, 1});
  const auto pushes_of = [&](int unit) {
    return rounds * (PushesEachContribution(job) ? contributions[static_cast<size_t>(unit)] : 1);
  };
  for (const UnitSpec& unit : units) {
    traffic.push_bytes += pushes_of(unit.index) * unit.count * SizeOf(job.service.gradient_type);
  }
  for (const PartitionSpec& partition : BuildPartitions(units, job.service.partition_bytes)) {
    traffic.pushes += pushes_of(partition.unit);
  }
  return traffic;
}

int64_t MemoryPlan::total() const {
  int64_t bytes = workers * worker.total();
  for (const ServerMemory& server : servers) {
    bytes += server.total();
  }
  return bytes;
}

absl::StatusOr<MemoryPlan> PlanMemory(const ModelSpec& spec, const Job& job, int servers,
                                      int workers, const MemoryBudget& budget) {
  SHOAL_CHECK(servers > 0 && workers >= 0);
  const std::vector<PartitionSpec> partitions =
      BuildPartitions(BuildUnits(spec), job.service.partition_bytes);
  const ShardMap map = PlaceShards(partitions, servers, 1);
  MemoryPlan plan;
  plan.workers = workers;
  int64_t push_bytes = 0;
  for (int server = 0; server < servers; ++server) {
    std::vector<PartitionSpec> held;
    for (const int id : PartitionsOf(map, server)) {
      held.push_back(partitions[static_cast<size_t>(id)]);
    }
    plan.servers.push_back(PlanServerMemory(held, job.service, workers));
    push_bytes += job.service.push_slots * PushSlotBytes(held, job.service.gradient_type);
  }
  // Of those that fit, by bytes moved, then by memory; where none fits the smallest is what the
  // error names.
  std::vector<std::pair<std::pair<int64_t, int64_t>, WorkerPolicy>> fitting;
  std::vector<std::pair<int64_t, WorkerPolicy>> all;
  for (const WorkerPolicy& policy : AllowedPolicies(job)) {
    plan.worker = PlanWorkerMemory(spec, job, policy, push_bytes);
    const int64_t bytes = plan.total();
    all.push_back({bytes, policy});
    if (budget.machine_bytes == 0 || bytes <= budget.machine_bytes) {
      fitting.push_back(
          {{PlanTraffic(spec, job, policy, budget.microbatches).total(), bytes}, policy});
    }
  }
  const auto by_key = [](const auto& a, const auto& b) { return a.first < b.first; };
  plan.policy = fitting.empty() ? std::ranges::min_element(all, by_key)->second
                                : std::ranges::min_element(fitting, by_key)->second;
  plan.worker = PlanWorkerMemory(spec, job, plan.policy, push_bytes);
  if (fitting.empty()) {
    return TooLittle(plan, budget.machine_bytes);
  }
  return plan;
}

}  // namespace shoal::plan
