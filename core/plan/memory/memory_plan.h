// How much memory each process of a job needs, how many bytes a step moves, and which residency and
// push policy follow from that. Pure formulas over the shapes. `shoal plan` prints them, programs
// check them before they allocate, and the worker takes its buffer counts from here, so that it
// allocates what was planned.
//
// Every figure is a separate part, so that one that disagrees with a measurement is easy to find.
// Sizes are rounded as the allocating code rounds them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/dtype.h"
#include "core/job/job.h"
#include "core/model/model_spec.h"
#include "core/model/partition.h"
#include "core/model/shard_map.h"
#include "core/plan/memory/loss_chunk.h"
#include "core/plan/memory/server_memory.h"
#include "core/plan/schedule/layer_split.h"

namespace shoal::plan {

// What a worker takes besides, measured: 24 MiB of programs and libraries; the rest is what oneDNN
// compiles and keeps, and heap. Measured between 50 and 70 MiB, more with more threads. Does not
// include operands packed for AMX (bf16; up to 16 MiB per thread for large weights).
inline constexpr int64_t kWorkerProcessBytes = int64_t{64} << 20;
// GPU memory that operators keep for themselves: workspaces of matrix products and of our own
// attention. (The driver and the libraries take theirs before the rest is handed out.)
inline constexpr int64_t kGpuWorkspaceBytes = int64_t{128} << 20;

// --- workers ---

struct WorkerPolicy {
  Residency residency = Residency::kLayer;    // never kAuto
  PushPolicy push = PushPolicy::kMicrobatch;  // never kAuto

  bool operator==(const WorkerPolicy&) const = default;
};

// Returns the policies that the job leaves open, at least one.
std::vector<WorkerPolicy> AllowedPolicies(const Job& job);

// Buffers for weights with layer residency, for each distinct unit size: those prefetched, and two
// that are held (the head and a tied embedding). At most as many as there are units of that size.
int BuffersPerSize(const TrainOptions& train);
// Buffers for gradients pushed after each microbatch, counted the same way: one being filled and
// two that wait for credits.
inline constexpr int kGradientBuffersPerSize = 3;

// Memory of a worker's GPU.
struct GpuMemory {
  // Same as WorkerMemory's without a GPU. If workers may exchange weights and gradients, also the
  // worker's shards of all, and the room where shards of weights arrive.
  int64_t weights = 0;
  int64_t gradients = 0;    // same as above
  int64_t activations = 0;  // same as above
  int64_t logits = 0;       // same as above, of larger chunks
  // kGpuWorkspaceBytes, and what cuDNN's attention may take (core/plan/memory/attention_scratch.h).
  int64_t workspace = 0;

  int64_t total() const { return weights + gradients + activations + logits + workspace; }
};

// A worker's memory on its host. If it computes on a GPU, weights, gradients, activations and
// logits are in the GPU's memory instead (`gpu`), and the host has BuffersPerSize buffers for
// weights and kGradientBuffersPerSize for gradients of each unit size, pinned, for data on its way;
// it needs none where transports reach the GPU's memory.
//
//   P     the model's elements (padding included)
//   c, w  bytes of the compute and of the wire type
//   T     rows of the largest microbatch (rounded up to 64)
//   H     hidden
//   Q, K  heads x head_dim, kv_heads x head_dim
//   I, L  intermediate, layers
struct WorkerMemory {
  // step residency: c P; layer residency: BuffersPerSize buffers of c x each unit size; pages
  int64_t weights = 0;
  // if wire and compute type differ: BuffersPerSize buffers of w x each unit size
  int64_t wire = 0;
  // elements of 4 B, of units that train: all of them with push per step, else
  // kGradientBuffersPerSize of each unit size
  int64_t gradients = 0;
  // L x (c T (4 H + 2 Q + 2 K + 3 I) + 4 T (2 + heads)), the same once without L for the gradients
  // of one block, and a few rows of H; docs/pipeline.md has what norms of q, k and outputs add
  int64_t activations = 0;
  // One chunk of rows (core/plan/memory/loss_chunk.h): fp32 logits, and their gradient in compute
  // type.
  int64_t logits = 0;
  int64_t offloaded = 0;  // a stage's activations on the host
  int64_t messages = 0;   // to and from the neighbouring stages
  int64_t pushes = 0;     // for each server: push_slots x its push slot
  int64_t process = kWorkerProcessBytes;
  GpuMemory gpu;  // if it computes on one

  // Of the host.
  int64_t total() const {
    return weights + wire + gradients + activations + logits + offloaded + messages + pushes +
           process;
  }
};

// A stage of a pipeline, in a step as heavy as steps get: its share of the model, and what its list
// needs (core/plan/pipeline/job_pipeline.h). Counts weights and gradients only of its own units.
struct StageNeeds {
  std::vector<UnitRange> chunks;
  int64_t microbatches = 0;
  std::vector<int> uses;    // the units whose weights it gets, in order
  int64_t activations = 0;  // including their gradients and messages within the stage
  int64_t offloaded = 0;
  int64_t messages = 0;  // to and from the neighbouring stages
  int64_t own = 0;       // inputs and scratch of the model; on a GPU also messages in flight
};

struct ActivationBytes {
  int64_t blocks = 0;  // saved by forward for backward
  int64_t other = 0;   // gradients of one block, the stream between blocks, the head's input, ids
  int64_t logits = 0;
};
// For a microbatch of that many tokens (all of them targets, which is the most).
ActivationBytes PlanActivations(const ModelSpec& spec, DType compute, int64_t tokens,
                                const LossChunk& loss_chunk = kCpuLossChunk);

// `push_bytes`: over all servers, the sum of push_slots x PushSlotBytes.
WorkerMemory PlanWorkerMemory(const ModelSpec& spec, const Job& job, const WorkerPolicy& policy,
                              int64_t push_bytes);
WorkerMemory PlanWorkerMemory(const ModelSpec& spec, const Job& job, const WorkerPolicy& policy,
                              int64_t push_bytes, const StageNeeds& stage);

// --- bytes moved ---

// In exact mode a worker adds nothing up: each contribution to a unit's gradient
// (core/plan/schedule/stage_units.h) is a separate push, so that the sum depends neither on who ran
// what nor on how layers are split over stages. So it is with several stages, of which one may have
// both ends of the model and meet packs at each in another order. Only with push per microbatch.
bool PushesEachContribution(const Job& job);
// By unit: how many pushes a worker that makes these contributions (TrainedContributions) makes for
// a pack, and the keys that a pack has in all (core/model/contribution.h).
std::vector<int> PushesPerPack(const Job& job, std::vector<int> contributions);
std::vector<int> KeysPerPack(const ModelSpec& spec, const Job& job);

// Whether the job allows workers with a GPU each, under layer synchronization, to exchange weights
// and gradients among themselves, as collective sharded training does. Each then moves only its own
// shards (core/model/unit_shards.h) to and from the servers, once a step. Not in exact mode, where
// only servers compute sums.
bool MayExchange(const Job& job);
// Whether stages of a pipeline with a GPU each may send each other activations and gradients in the
// same way.
bool StagesMayExchange(const Job& job);

// Returns the units in the order in which one microbatch uses them: embedding, blocks, head (and
// with tied embeddings the embedding again), blocks in reverse. The embedding's backward needs no
// weights.
std::vector<int> UseOrder(const ModelSpec& spec);

struct StepTraffic {
  int64_t get_bytes = 0;   // of weights, in the wire type
  int64_t push_bytes = 0;  // of gradients, in their type
  int64_t fetches = 0;     // units fetched
  int64_t pushes = 0;      // partitions pushed

  int64_t total() const { return get_bytes + push_bytes; }
  StepTraffic& operator+=(const StepTraffic& other) {
    get_bytes += other.get_bytes;
    push_bytes += other.push_bytes;
    fetches += other.fetches;
    pushes += other.pushes;
    return *this;
  }
};

// For one worker in one step with that many microbatches.
// - Step residency fetches each unit once; a frozen one once a run, which is not counted. Layer
//   residency fetches it for each use, unless it is still held because it was used at most
//   `prefetch_units` uses before.
// - Gradients of what trains go out once per unit and step, or per microbatch (or contribution).
// - A worker without microbatches moves nothing.
StepTraffic PlanTraffic(const ModelSpec& spec, const Job& job, const WorkerPolicy& policy,
                        int64_t microbatches);
// For a stage in its step.
StepTraffic PlanTraffic(const ModelSpec& spec, const Job& job, const WorkerPolicy& policy,
                        const StageNeeds& stage);

// --- the whole job ---

struct MemoryPlan {
  std::vector<ServerMemory> servers;
  // Of a worker group, by stage; without a pipeline a group is one worker.
  std::vector<WorkerMemory> stages;
  WorkerPolicy policy;  // of all workers
  int64_t groups = 0;

  int64_t total() const;  // of all processes, on their hosts
};

struct MemoryBudget {
  // What the machine can give to all local processes; 0: unknown, everything fits.
  int64_t machine_bytes = 0;
  // What a worker's GPU can give to it and to slots that servers keep there, measured after servers
  // took everything else; 0: unknown, everything fits.
  int64_t gpu_bytes = 0;
  // What servers keep on that GPU.
  ServersOnGpu servers;
  // With several workers on it: how many, and one's share of all its memory, which servers reduce
  // too.
  int64_t gpu_workers = 1;
  int64_t gpu_share_bytes = 0;
  // Of an average worker and step, for choosing the policy.
  int64_t microbatches = 4;
};

// Returns, of the policies that the job allows, the one that fits and moves the fewest bytes (then:
// needs the least memory). `job` must be resolved; `stages` are those of a group if it has a
// pipeline. ResourceExhausted if none fits, naming what is needed, what is available and the
// largest part. train.device must be known; otherwise the CPU is assumed.
absl::StatusOr<MemoryPlan> PlanMemory(const ModelSpec& spec, const Job& job, int servers,
                                      int workers, const MemoryBudget& budget,
                                      std::span<const StageNeeds> stages = {});

}  // namespace shoal::plan
