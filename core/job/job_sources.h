// Where the keys of a job were given, and refusals that name it. Internal to core/job.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace shoal::plan {

// The source of a key's value.
struct JobSource {
  enum Level { kFile, kOverride };
  Level level = kFile;
  std::string where;  // "job.yaml:7" or "--set a.b=c"
};
using JobSources = std::map<std::string, JobSource>;  // by path, for the keys that were given

// Returns where the last given of two keys was; `file_name` if none was.
std::string Place(const JobSources& sources, const std::string& a, const std::string& b,
                  const std::string& file_name);

// Returns the highest source of these keys; null if none was given.
const JobSource* Highest(const JobSources& sources, const std::vector<std::string>& paths);

// Refuses a key for another one.
class Contradicts {
 public:
  // They must outlive it.
  Contradicts(const JobSources& sources, const std::string& file_name)
      : sources_(sources), file_name_(file_name) {}
  absl::Status operator()(const char* key, const char* with, const char* why) const;

 private:
  const JobSources& sources_;
  const std::string& file_name_;
};

}  // namespace shoal::plan
