#include "core/job/assignment.h"

namespace shoal::plan {
namespace {

template <typename E, size_t N>
std::string_view NameIn(const std::array<std::pair<std::string_view, E>, N>& names, E value) {
  for (const auto& [name, candidate] : names) {
    if (candidate == value) {
      return name;
    }
  }
  return "unknown";
}

}  // namespace

std::string_view Name(Assignment assignment) { return NameIn(kAssignmentNames, assignment); }

std::string_view Name(Synchronization synchronization) {
  return NameIn(kSynchronizationNames, synchronization);
}

Assignment Resolved(Assignment assignment, Synchronization synchronization) {
  if (assignment != Assignment::kAuto) {
    return assignment;
  }
  return synchronization == Synchronization::kLayer ? Assignment::kLbMicro : Assignment::kLbMini;
}

}  // namespace shoal::plan
