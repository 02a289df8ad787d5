// What this machine offers for computing on GPUs: the GPUs as CUDA shows them, how fast they copy,
// and which of the libraries are there that are used where they are found. Read once;
// gpu_checks.h judges it.
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
  absl::Status usable;                     // why we cannot compute on it
  std::optional<int64_t> free_bytes;       // nullopt: not told
  int64_t budget_bytes = 0;                // of it, what a worker takes at most
  std::optional<worker::CopyRates> rates;  // where it is usable and lets itself be measured
  std::string rates_problem;               // why there are none
};

// One of those that a GPU does better with, and not worse than slower without.
struct FoundLibrary {
  std::string name;     // "cuBLASLt"
  std::string path;     // empty: not found
  std::string problem;  // why not
};

struct GpuSurvey {
  absl::Status found;  // why no GPU is seen: no driver, no GPU, a build without CUDA
  int driver_version = 0;
  int runtime_version = 0;
  std::vector<FoundGpu> gpus;
  std::vector<FoundLibrary> libraries;  // looked for where there is a GPU
  bool devices = false;                 // the kernel shows GPUs, whatever CUDA says
};

// Takes a GPU for a moment to measure its copies.
GpuSurvey ExamineGpus();

}  // namespace shoal::cli
