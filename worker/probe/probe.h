// Measures this machine's plan::PipelinePace, the rates by which pipelines are planned.
//
// Runs one block of the model on random values, its forward and both parts of its backward, with
// the longest sequences and with short ones, which separates attention from matrices; the head; and
// copies of a block's activations to host memory and back: one direction at a time, both
// concurrently, and concurrently with the compute. Times are by the device's streams, medians of a
// few rounds after a warm-up. `shoal plan` and `shoal train` measure if a job leaves its pace open.
// Takes about a second on a CPU for a block of some millions of parameters, and memory for the
// block, its gradients, and its activations a few times over.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "core/base/dtype.h"
#include "core/job/pipeline_options.h"
#include "core/model/model_spec.h"
#include "worker/ops/compute_device.h"

namespace shoal::worker {

struct ProbeOptions {
  DType compute = DType::kF32;
  int64_t tokens = 2048;        // per microbatch
  int64_t sequence_tokens = 0;  // the longest sequence; 0: the microbatch is one
  int rounds = 5;
  // Whether offloads and reloads will run concurrently: the pace then has their rates when they do.
  bool duplex = false;
};

struct ProbeResult {
  // Rates of messages between stages are left at 0: not counted.
  plan::PipelinePace pace;
  // Bytes per second each way while both run.
  double duplex_offload_bytes_per_second = 0;
  double duplex_reload_bytes_per_second = 0;
  // Factor by which copies in both directions slow down a block's forward.
  double forward_beside_copies = 0;
};

absl::StatusOr<ProbeResult> Probe(const plan::ModelSpec& spec, const ProbeOptions& options,
                                  ComputeDevice compute_device);

struct CpuProbeOptions {
  ProbeOptions probe;
  int threads = 0;  // 0: one per available core
  // The bus that the CPU's copies emulate (CpuCopyOptions).
  double copy_bytes_per_second = 0;
};
absl::StatusOr<plan::PipelinePace> ProbePace(const plan::ModelSpec& spec,
                                             const CpuProbeOptions& options);

}  // namespace shoal::worker
