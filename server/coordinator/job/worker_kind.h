// What a worker's bits depend on beside the job: workers of one kind round alike. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/job/job.h"
#include "server/coordinator/members/membership.h"

namespace shoal::server {

// What it computes on in this job: "GPU NVIDIA H200", "CPU x86-64-v4, oneDNN avx512_core_amx".
// Empty where it does not say, and where devices are emulated.
std::string WorkerKind(const Member& worker, const plan::Job& job);

// Not OK: it cannot take part in this job.
absl::Status CheckWorker(const Member& worker, const plan::Job& job);

// Drops those of other kinds than `kind`; where that is empty, than the kind that most have, of
// several that which comes first. Who does not say is of any kind.
void KeepOneKind(const plan::Job& job, std::string kind, std::vector<Member>& workers);

}  // namespace shoal::server
