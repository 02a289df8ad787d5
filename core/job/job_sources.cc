#include "core/job/job_sources.h"

#include "core/base/status.h"

namespace shoal::plan {

std::string Place(const JobSources& sources, const std::string& a, const std::string& b,
                  const std::string& file_name) {
  const auto first = sources.find(a);
  const auto second = sources.find(b);
  if (first == sources.end() && second == sources.end()) {
    return file_name;
  }
  if (first == sources.end() ||
      (second != sources.end() && second->second.level > first->second.level)) {
    return second->second.where;
  }
  return first->second.where;
}

const JobSource* Highest(const JobSources& sources, const std::vector<std::string>& paths) {
  const JobSource* highest = nullptr;
  for (const std::string& path : paths) {
    const auto found = sources.find(path);
    if (found != sources.end() && (highest == nullptr || found->second.level > highest->level)) {
      highest = &found->second;
    }
  }
  return highest;
}

absl::Status Contradicts::operator()(const char* key, const char* with, const char* why) const {
  return InvalidArgument("{}: {} contradicts {}: {}", Place(sources_, key, with, file_name_), key,
                         with, why);
}

}  // namespace shoal::plan
