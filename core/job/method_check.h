// What a job may say of adapters (lora) and of pairs of replies (preference), and what it has in
// place of a default with them. Internal to core/job.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "core/job/job.h"
#include "core/job/job_sources.h"
#include "proto/job.pb.h"

namespace shoal::plan {

// Refuses what adapters cannot have; leaves nothing of them where there are none.
absl::Status SettleLora(Job& job, const proto::LoraOptions& said, const JobSources& sources,
                        const std::string& file_name);

// Gives keys of train that were not said the value that goes with adapters and pairs.
void SettleDefaults(const JobSources& sources, Job& job);

absl::Status CheckPreference(const Job& job, const JobSources& sources,
                             const std::string& file_name);

}  // namespace shoal::plan
