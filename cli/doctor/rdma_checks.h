// Judges RDMA for `shoal doctor`: a pure function of the facts.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/doctor/check.h"
#include "cli/doctor/rdma_survey.h"
#include "core/transport/verbs/topology/device_choice.h"

namespace shoal::cli {

// What a run on this machine would need.
struct RdmaNeeds {
  transport::DevicePreferences preferences;     // service.rdma and flags
  int64_t registered_bytes = int64_t{1} << 30;  // by one process
  bool of_a_job = false;                        // else registered_bytes are a small run's
};

// Returns one check if there is no device. Requires nothing: without RDMA machines use tcp.
std::vector<Check> JudgeRdma(const RdmaSurvey& survey, const RdmaNeeds& needs);

}  // namespace shoal::cli
