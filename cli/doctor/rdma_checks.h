// What `shoal doctor` says of RDMA: a pure function of the facts.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/doctor/check.h"
#include "cli/doctor/rdma_survey.h"
#include "core/transport/verbs/topology/device_choice.h"

namespace shoal::cli {

// What a run on this machine would ask for.
struct RdmaNeeds {
  transport::DevicePreferences preferences;     // service.rdma and flags
  int64_t registered_bytes = int64_t{1} << 30;  // by one process
  bool of_a_job = false;  // registered_bytes were planned for one, else they are a small run's
};

// One check where there is no device. Nothing here is required: machines talk over tcp then.
std::vector<Check> JudgeRdma(const RdmaSurvey& survey, const RdmaNeeds& needs);

}  // namespace shoal::cli
