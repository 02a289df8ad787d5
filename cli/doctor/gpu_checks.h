// What of a machine's GPUs bears on training, each with what to do: a pure function of the facts.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/doctor/check.h"
#include "cli/doctor/gpu_survey.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {

// What a job would take of GPUs for its servers.
struct GpuNeeds {
  std::vector<int64_t> servers;  // bytes, by server; empty: no job, or none on a GPU
  bool local = false;            // they run here, in turn over the GPUs that can be used
  int64_t workers = 0;           // that compute on those GPUs too
};

std::vector<Check> JudgeGpus(const GpuSurvey& survey, const GpuNeeds& needs = {});
nlohmann::json GpusJson(const GpuSurvey& survey, const GpuNeeds& needs = {});

}  // namespace shoal::cli
