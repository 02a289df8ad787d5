// A schedule as a value with a name: what a job file asks for and a planner answers. All stages
// build the same table from it.
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
  kGrouped,      // GIS(g); GIS if g is the number of stages
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
  int group = 0;  // of kGrouped: microbatches; 0: the number of stages

  bool operator==(const ScheduleChoice&) const = default;
};

// "GPipe", "1F1B", "interleaved", "GIS(4)", "GIS", "GIS-H", "PO", "ZB-H1", "ZB-H2", "ZB-V",
// "V-Half", "V-Min", "accumulation".
std::string ToString(const ScheduleChoice& choice);
// Ignores case. InvalidArgument, listing all names, for anything else.
absl::StatusOr<ScheduleChoice> ParseScheduleName(std::string_view name);

// Returns how a schedule's chunks are placed.
Placement PlacementOf(const ScheduleChoice& choice);

// InvalidArgument if the schedule does not support this many stages or chunks, saying which it
// supports.
absl::Status CheckChoice(const ScheduleChoice& choice, int stages, int chunks);

// Includes messages, but no transfers. The choice must pass CheckChoice. Schedules whose order
// depends on how long passes take (PO, V-shaped) are made for `costs`; none: all take the same
// time.
Schedule BuildSchedule(const ScheduleChoice& choice, int stages, int chunks, int microbatches,
                       const ScheduleCosts* costs = nullptr);

}  // namespace shoal::plan
