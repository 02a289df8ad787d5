// What one microbatch does, use by use of the model's units (plan::UseOrder): where in its compute
// a use begins, whether the unit is fetched for it, and which gradients are complete at its end.
// Everything that does not depend on lengths is computed here once, so that a use costs the
// simulator a few additions.
#pragma once

#include <cstdint>
#include <vector>

#include "core/job/job.h"
#include "core/model/model_spec.h"
#include "core/plan/memory/memory_plan.h"

namespace shoal::sim {

// Compute times of a microbatch on the worker that runs it.
struct MicrobatchTime {
  double block = 0;  // forward of one block; its backward takes twice that
  double head = 0;   // head and loss, forward and backward
  double total = 0;  // of everything: blocks x 3 x block + head, as the cost model rounds it

  bool operator==(const MicrobatchTime&) const = default;
};

// Units of the same size share gradient buffers: blocks, the head, the embedding.
enum class BufferClass { kBlock, kHead, kEmbedding };
inline constexpr int kBufferClasses = 3;

struct Push {
  int unit = 0;
  BufferClass buffer = BufferClass::kBlock;
  int64_t bytes = 0;
};

// How far a microbatch's compute has come: multiples of its `block` and of its `head`.
struct Progress {
  double blocks = 0;
  double heads = 0;
  bool all = false;

  double Of(const MicrobatchTime& time) const {
    return all ? time.total : blocks * time.block + heads * time.head;
  }
};

struct Use {
  int unit = 0;
  bool backward = false;  // the head's use counts as backward, as in the worker's phases
  Progress begin;
  Progress end;
  // Bytes fetched for it in a worker's first microbatch of a step, and in later ones; 0: it uses
  // what is held.
  int64_t first_get_bytes = 0;
  int64_t later_get_bytes = 0;
  // Waits for a gradient buffer of the class before it asks for its weights, or after.
  bool waits_for_block_buffer = false;
  bool waits_for_head_buffer = false;
  bool waits_for_embedding_buffer = false;
  std::vector<Push> pushes;  // complete at its end
};

struct UsePattern {
  std::vector<Use> uses;
  int64_t prefetch_units = 0;
  bool keep_for_step = false;  // residency step: everything is fetched from the start of the step
  bool push_per_step = false;
  int buffers[kBufferClasses] = {1, 1, 1};  // of each class, with push per microbatch
  int64_t layers = 0;
};

// `policy` must not contain kAuto. The bytes agree with plan::PlanTraffic.
UsePattern BuildUsePattern(const plan::ModelSpec& spec, const plan::Job& job,
                           const plan::WorkerPolicy& policy);

}  // namespace shoal::sim
