// What must hold between the keys of a job. Internal to plan/job_*.cc.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "core/job/job.h"
#include "proto/job.pb.h"

namespace shoal::plan {

// Where a key's value comes from.
struct JobSource {
  enum Level { kFile, kOverride };
  Level level = kFile;
  std::string where;  // "job.yaml:7" or "--set a.b=c"
};
using JobSources = std::map<std::string, JobSource>;  // by path, of the keys that were given

// Settles the form of the cluster, of which `cluster` is what was given, and refuses
// contradictions, naming both keys.
absl::Status CheckJob(Job& job, const proto::ClusterOptions& cluster, const JobSources& sources,
                      const std::string& file_name);

}  // namespace shoal::plan
