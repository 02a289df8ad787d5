// What this machine reaches: the rates by which pipelines are planned (plan/pipeline_pace.h).
//
// Measured by running: one block of the model on random values, its forward and both parts of its
// backward, with sequences as long as they get and with short ones, which tells attention from
// matrices; the head; and copies of a block's activations to host memory and back. Medians of a few
// rounds after a first one that does not count. `shoal plan` and `shoal train` ask when a job
// leaves its pace open. Takes a second or so for a block of some millions of parameters, and memory
// for one block's activations twice over.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/dtype.h"
#include "plan/model_spec.h"
#include "plan/pipeline_pace.h"

namespace shoal::worker {

struct ProbeOptions {
  DType compute = DType::kF32;
  int threads = 0;              // 0: one per available core
  int64_t tokens = 2048;        // of a microbatch
  int64_t sequence_tokens = 0;  // of the longest sequence; 0: the microbatch is one
  int rounds = 5;
  // The bus that the CPU's copies emulate (CpuCopyOptions), and whether offloads and reloads are to
  // run beside each other on it.
  double copy_bytes_per_second = 0;
  bool duplex = false;
};

// On the CPU. Rates of messages between stages are left at 0: not counted.
absl::StatusOr<plan::PipelinePace> ProbePace(const plan::ModelSpec& spec,
                                             const ProbeOptions& options);

}  // namespace shoal::worker
