// Judges a machine's GPUs for training: pure functions of the facts.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/doctor/check.h"
#include "cli/doctor/gpu_survey.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {

// GPU memory that a job's servers would take.
struct GpuNeeds {
  std::vector<int64_t> servers;  // bytes, by server; empty: no job, or none on a GPU
  bool local = false;            // servers run here, in turn over the usable GPUs
  int64_t workers = 0;           // compute on the same GPUs
};

std::vector<Check> JudgeGpus(const GpuSurvey& survey, const GpuNeeds& needs = {});
nlohmann::json GpusJson(const GpuSurvey& survey, const GpuNeeds& needs = {});

}  // namespace shoal::cli
