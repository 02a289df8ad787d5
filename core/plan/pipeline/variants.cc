#include "core/plan/pipeline/variants.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/base/status.h"

namespace shoal::plan {
namespace {

constexpr int kMostChunks = 8;

std::vector<int> ChunksOf(const PipelineRequest& request) {
  if (request.chunks > 0) {
    return {request.chunks};
  }
  std::vector<int> chunks;
  for (int count = 1; count <= kMostChunks; ++count) {
    if (int64_t{count} * request.stages <= request.spec.layers + 2) {
      chunks.push_back(count);
    }
  }
  // Of a single stage with few chunks there is little that may leave.
  const double offload = request.offload.value;
  if (request.stages == 1 && offload != OffloadedChunks::kAuto && offload != 0) {
    return {chunks.back()};
  }
  return chunks;
}

// Returns all schedules that support the shape, except GPipe, which must be asked for.
std::vector<ScheduleChoice> SchedulesOf(const PipelineRequest& request, int chunks) {
  std::vector<ScheduleChoice> all;
  if (request.schedule.has_value()) {
    all = {*request.schedule};
  } else if (request.stages == 1) {
    // Splitting the backwards of a single stage gains nothing.
    all = {{.kind = ScheduleKind::kAccumulation}, {.kind = ScheduleKind::kInterleaved}};
  } else {
    all = {
        {.kind = chunks == 1 ? ScheduleKind::kOneForwardOneBackward : ScheduleKind::kInterleaved},
        {.kind = ScheduleKind::kGrouped}};
    // With one chunk all groups give the same schedule. Of many sizes some are enough.
    const int step = std::max(1, request.stages / 16);
    for (int group = request.stages - step; chunks > 1 && group > SmallestGroup(request.stages);
         group -= step) {
      all.push_back({.kind = ScheduleKind::kGrouped, .group = group});
    }
    if (chunks > 1) {
      all.push_back({.kind = ScheduleKind::kGroupedHalf});
    }
    for (const ScheduleKind kind :
         {ScheduleKind::kUniform, ScheduleKind::kZeroBubbleH1, ScheduleKind::kZeroBubbleH2,
          ScheduleKind::kZeroBubbleV, ScheduleKind::kVHalf, ScheduleKind::kVMin}) {
      all.push_back({.kind = kind});
    }
  }
  std::erase_if(all, [&](const ScheduleChoice& choice) {
    return !CheckChoice(choice, request.stages, chunks).ok();
  });
  return all;
}

}  // namespace

std::vector<double> StageSums(const PipelineChoice& choice, std::span<const double> unit_costs) {
  const ScheduleShape shape = choice.ShapeOf(1);
  std::vector<double> stages(static_cast<size_t>(choice.stages));
  for (int place = 0; place < shape.VirtualStages(); ++place) {
    for (int unit = choice.split[place].first; unit < choice.split[place].end(); ++unit) {
      stages[shape.At(place).stage] += unit_costs[unit];
    }
  }
  return stages;
}

absl::StatusOr<std::vector<Variant>> VariantsOf(const PipelineRequest& request) {
  std::vector<Recompute> recomputes = {Recompute::kNone, Recompute::kLight, Recompute::kFull};
  if (request.recompute.has_value()) {
    recomputes = {*request.recompute};
  }
  std::vector<Variant> variants;
  for (const Recompute recompute : recomputes) {
    const std::vector<double> unit_costs =
        UnitCosts({.spec = request.spec, .compute = request.compute, .recompute = recompute},
                  request.microbatches, request.pace);
    for (const int chunks : ChunksOf(request)) {
      std::vector<UnitRange> splits[2];  // by placement
      for (const ScheduleChoice& schedule : SchedulesOf(request, chunks)) {
        const Placement placement = PlacementOf(schedule);
        std::vector<UnitRange>& split = splits[placement == Placement::kVShaped ? 1 : 0];
        if (split.empty()) {
          SHOAL_ASSIGN_OR_RETURN(split, SplitLayers(unit_costs, request.stages, chunks, placement));
        }
        PipelineChoice choice{.schedule = schedule,
                              .stages = request.stages,
                              .chunks = chunks,
                              .recompute = recompute,
                              .split = split};
        const double least = std::ranges::max(StageSums(choice, unit_costs));
        variants.push_back({.choice = std::move(choice), .least_seconds = least});
      }
    }
  }
  if (variants.empty()) {
    if (request.schedule.has_value() && request.chunks > 0) {
      SHOAL_RETURN_IF_ERROR(CheckChoice(*request.schedule, request.stages, request.chunks));
    }
    return InvalidArgument("no schedule {}is made for {} stages over the {} units of the model",
                           request.schedule.has_value() ? ToString(*request.schedule) + " " : "",
                           request.stages, request.spec.layers + 2);
  }
  return variants;
}

}  // namespace shoal::plan
