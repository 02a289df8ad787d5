// What of a machine's GPUs bears on training, each with what to do: a pure function of the facts.
#pragma once

#include <vector>

#include "client/cli/finding.h"
#include "client/cli/gpu_machine.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {

std::vector<Finding> JudgeGpus(const GpuMachine& machine);
nlohmann::json GpusJson(const GpuMachine& machine);

}  // namespace shoal::cli
