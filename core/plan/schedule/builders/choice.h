// Which schedule, as a value with a name: what a job file asks for and a planner answers. All
// stages build the same table from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/schedule.h"

namespace shoal::plan {

enum class ScheduleKind : uint8_t {
  kGPipe,
  kOneForwardOneBackward,
  kInterleaved,
  kGrouped,      // GIS(g); with as many as there are stages GIS
  kGroupedHalf,  // GIS-H: the smallest group
  kUniform,
  kZeroBubbleH1,
  kZeroBubbleH2,
  kZeroBubbleV,
  kVHalf,
  kVMin,
  kAccumulation,  // one stage
};

struct ScheduleChoice {
  ScheduleKind kind = ScheduleKind::kOneForwardOneBackward;
  int group = 0;  // of kGrouped: microbatches; 0: as many as there are stages

  bool operator==(const ScheduleChoice&) const = default;
};

// "GPipe", "1F1B", "interleaved", "GIS(4)", "GIS", "GIS-H", "PO", "ZB-H1", "ZB-H2", "ZB-V",
// "V-Half", "V-Min", "accumulation".
std::string ToString(const ScheduleChoice& choice);
// InvalidArgument with all names for anything else; capitals do not matter.
absl::StatusOr<ScheduleChoice> ParseScheduleName(std::string_view name);

// How a schedule's chunks lie.
Placement PlacementOf(const ScheduleChoice& choice);

// InvalidArgument where the schedule is not made for so many stages or chunks, with those it is
// made for.
absl::Status CheckChoice(const ScheduleChoice& choice, int stages, int chunks);

// With messages and without transfers. The choice passes CheckChoice. Schedules whose order depends
// on how long passes take (PO, V-shaped) are made for `costs`; none: all take the same time.
Schedule BuildSchedule(const ScheduleChoice& choice, int stages, int chunks, int microbatches,
                       const ScheduleCosts* costs = nullptr);

}  // namespace shoal::plan
