// How much memory each process of a job needs, how many bytes a step moves, and which residency and
// push policy follow from that. Pure formulas over the shapes; `shoal plan` prints them, programs
// check them before they allocate, and the worker takes its buffer counts from here, so that what
// is planned is what is allocated.
//
// Every figure has a part of its own, so that one that disagrees with a measurement is easy to
// find. Sizes are rounded as the code that allocates them rounds.
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
// compiles and keeps, and heap. Measured between 50 and 70 MiB, more with more threads. Operands
// packed for AMX (bf16; up to 16 MiB a thread for large weights) are not in it.
inline constexpr int64_t kWorkerProcessBytes = int64_t{64} << 20;
// What operators on a GPU keep of its memory for themselves: workspaces of matrix products and our
// own attention's. (What the driver and the libraries take is not there to be given out.)
inline constexpr int64_t kGpuWorkspaceBytes = int64_t{128} << 20;

// --- workers ---

struct WorkerPolicy {
  Residency residency = Residency::kLayer;    // never kAuto
  PushPolicy push = PushPolicy::kMicrobatch;  // never kAuto

  bool operator==(const WorkerPolicy&) const = default;
};

// Those that the job leaves open to choose from, one at least.
std::vector<WorkerPolicy> AllowedPolicies(const Job& job);

// Buffers of each distinct unit size (or as many as there are units of that size, where those are
// fewer): for weights with layer residency: those prefetched, and two that are held (the head and a
// tied embedding);
int FramesPerSize(const TrainOptions& train);
// for gradients pushed after each microbatch: one being filled and two that wait for credits.
inline constexpr int kGradientBuffersPerSize = 3;

// Of a worker's GPU, in its own memory.
struct GpuMemory {
  // As WorkerMemory's where there is none. Where workers may exchange weights and gradients, also
  // the worker's shards of all, and of weights where they land.
  int64_t weights = 0;
  int64_t gradients = 0;    // likewise
  int64_t activations = 0;  // likewise
  int64_t logits = 0;       // likewise, of larger chunks
  // kGpuWorkspaceBytes, and what cuDNN's attention may take (core/plan/memory/attention_scratch.h).
  int64_t workspace = 0;

  int64_t total() const { return weights + gradients + activations + logits + workspace; }
};

// With P the model's elements (padding included), c and w the compute and the wire type's bytes, T
// the rows of the largest microbatch (rounded up to 64), H hidden, Q = heads x head_dim, K =
// kv_heads x head_dim, I intermediate, L layers:
// On a GPU these are in its memory instead (`gpu`), and the host has FramesPerSize buffers for
// weights and kGradientBuffersPerSize for gradients of each unit size, pinned, on their way; it
// needs none where transports reach the GPU's memory.
struct WorkerMemory {
  int64_t weights =
      0;  // step residency: c P; layer: FramesPerSize buffers of c x each unit size; pages
  int64_t wire =
      0;  // where wire and compute type differ: FramesPerSize buffers of w x each unit size
  int64_t gradients = 0;  // 4 B elements: all of P with push per step, else kGradientBuffersPerSize
                          // of each unit size
  int64_t activations = 0;  // L x (c T (4 H + 2 Q + 2 K + 3 I) + 4 T (2 + heads)), the same once
                            // without L for the gradients of one block, and a few rows of H
  // One chunk of rows (core/plan/memory/loss_chunk.h): fp32 logits, and their gradient in compute
  // type.
  int64_t logits = 0;
  int64_t offloaded = 0;  // activations on the host, of a stage
  int64_t messages = 0;   // to and from the stages beside it
  int64_t pushes = 0;     // for each server: push_slots x its push slot
  int64_t process = kWorkerProcessBytes;
  GpuMemory gpu;  // where it computes on one

  // Of the host.
  int64_t total() const {
    return weights + wire + gradients + activations + logits + offloaded + messages + pushes +
           process;
  }
};

// A stage of a pipeline, in a step that is as heavy as steps get: its share of the model, and what
// its list needs (core/plan/pipeline/job_pipeline.h). Weights and gradients are those of its units
// alone.
struct StageNeeds {
  std::vector<UnitRange> chunks;
  int64_t microbatches = 0;
  std::vector<int> uses;    // the units that it gets, in order
  int64_t activations = 0;  // with their gradients and messages within the stage
  int64_t offloaded = 0;
  int64_t messages = 0;  // to and from the stages beside it
  int64_t own = 0;       // inputs and scratch of the model; on a GPU, messages on their way too
};

struct ActivationBytes {
  int64_t blocks = 0;  // saved by forward for backward
  int64_t other = 0;   // gradients of one block, the stream between blocks, the head's input, ids
  int64_t logits = 0;
};
// Of a microbatch of that many tokens (all of them targets, which is the most).
ActivationBytes PlanActivations(const ModelSpec& spec, DType compute, int64_t tokens,
                                const LossChunk& loss_chunk = kCpuLossChunk);

// `push_bytes`: of all servers together, the sum of push_slots x PushSlotBytes.
WorkerMemory PlanWorkerMemory(const ModelSpec& spec, const Job& job, const WorkerPolicy& policy,
                              int64_t push_bytes);
WorkerMemory PlanWorkerMemory(const ModelSpec& spec, const Job& job, const WorkerPolicy& policy,
                              int64_t push_bytes, const StageNeeds& stage);

// --- bytes moved ---

// In exact mode a worker adds nothing up: each contribution to a unit's gradient
// (core/plan/schedule/stage_units.h) is a push of its own, so that the sum does not depend on who
// ran what, nor on how layers are split over stages. Push per microbatch alone.
bool PushesEachContribution(const Job& job);

// With layer synchronization, workers with a GPU each may exchange weights and gradients among
// themselves, as collective sharded training does, and each moves just its own shards
// (core/model/unit_shards.h) to and from the servers, once a step. Whether the job allows it: in
// exact mode sums are the servers' alone.
bool MayExchange(const Job& job);
// Stages of a pipeline with a GPU each may send each other activations and gradients likewise.
bool StagesMayExchange(const Job& job);

// The units in the order in which one microbatch uses them: embedding, blocks, head (and with tied
// embeddings the embedding again), blocks in reverse. The embedding's backward needs no weights.
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

// Of one worker in one step with that many microbatches. Step residency fetches each unit once;
// layer residency fetches it for each use, unless it is still held because it was used at most
// `prefetch_units` uses before. Gradients go out once per unit and step, or per microbatch (or
// contribution). A worker without microbatches moves nothing.
StepTraffic PlanTraffic(const ModelSpec& spec, const Job& job, const WorkerPolicy& policy,
                        int64_t microbatches);
// Of a stage in its step.
StepTraffic PlanTraffic(const ModelSpec& spec, const Job& job, const WorkerPolicy& policy,
                        const StageNeeds& stage);

// --- the whole job ---

struct MemoryPlan {
  std::vector<ServerMemory> servers;
  // Of a worker group, by stage; without a pipeline a group is one worker.
  std::vector<WorkerMemory> stages;
  WorkerPolicy policy;  // of all
  int64_t groups = 0;

  int64_t total() const;  // of all processes, on their hosts
};

struct MemoryBudget {
  // What the machine has to give to all local processes; 0: not known, everything fits.
  int64_t machine_bytes = 0;
  // What a worker's GPU has to give to it and to slots that servers keep there, measured when they
  // had taken all the rest; 0: not known, everything fits.
  int64_t gpu_bytes = 0;
  // On that GPU.
  ServersOnGpu servers;
  // Of several workers on it: how many, and one's share of all its memory, which servers take from
  // as they do from what is free.
  int64_t gpu_workers = 1;
  int64_t gpu_share_bytes = 0;
  // Of an average worker and step, for the choice of the policy.
  int64_t microbatches = 4;
};

// Of the policies that the job allows, the one that fits and moves the fewest bytes (then: needs
// the least memory). `job` is resolved; `stages` are those of a group where it has a pipeline.
// ResourceExhausted names what is needed, what there is and the largest part, where none fits.
// Where workers compute (train.device) is known, or taken for the CPU.
absl::StatusOr<MemoryPlan> PlanMemory(const ModelSpec& spec, const Job& job, int servers,
                                      int workers, const MemoryBudget& budget,
                                      std::span<const StageNeeds> stages = {});

}  // namespace shoal::plan
