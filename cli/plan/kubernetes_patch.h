// A job's counts, memory and grace periods, as a patch of deploy/kubernetes (base and workers).
#pragma once

#include <string>

#include "core/job/job.h"
#include "core/plan/memory/memory_plan.h"

namespace shoal::cli {

// Returns it as YAML, for kustomize. `job_file` is named in its first line.
std::string KubernetesPatch(const std::string& job_file, const plan::Job& job,
                            const plan::MemoryPlan& memory);

}  // namespace shoal::cli
