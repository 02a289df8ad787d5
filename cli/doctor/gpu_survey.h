// Facts about this machine's GPUs: what CUDA shows, how fast they copy, which optional libraries
// are there. Read once; gpu_checks.h judges them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/gpu/gpus.h"
#include "worker/backend/open/copy_rates.h"

namespace shoal::cli {

struct FoundGpu {
  gpu::GpuDescription gpu;
  absl::Status usable;                     // else why we cannot compute on it
  std::optional<int64_t> free_bytes;       // nullopt: unknown
  int64_t budget_bytes = 0;                // the most that a worker takes of it
  std::optional<worker::CopyRates> rates;  // if usable and measurable
  std::string rates_problem;               // else why not
};

// An optional library: without it GPUs are slower.
struct FoundLibrary {
  std::string name;     // "cuBLASLt"
  std::string path;     // empty: not found
  std::string problem;  // why not
};

struct GpuSurvey {
  absl::Status found;  // else no driver, no GPU, or a build without CUDA
  int driver_version = 0;
  int runtime_version = 0;
  std::vector<FoundGpu> gpus;
  std::vector<FoundLibrary> libraries;  // looked for only if there is a GPU
  bool devices = false;                 // the kernel shows GPUs, even if CUDA does not
};

// Uses each GPU briefly to measure its copies.
GpuSurvey ExamineGpus();

}  // namespace shoal::cli
