#include "bench/pipeline/candidates.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "core/base/status.h"
#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/builders/offload.h"

namespace shoal::bench {
namespace {

constexpr std::string_view kOneForwardOneBackwardColour = "#7f7f7f";
constexpr std::string_view kInterleavedColour = "#d55e00";
constexpr std::string_view kGroupedColour = "#0072b2";
constexpr std::string_view kUniformColour = "#009e73";
constexpr std::string_view kVShapedColour = "#cc79a7";
constexpr std::string_view kZeroBubbleColour = "#e69f00";
constexpr std::string_view kGPipeColour = "#000000";

struct Entry {
  std::string_view name;
  std::string_view colour;
  plan::Schedule schedule;
  int offloaded = 0;  // the first chunks of each stage, which go to the host and back
};

absl::StatusOr<std::vector<Candidate>> Simulated(double copy_ratio, std::vector<Entry> entries) {
  std::vector<Candidate> candidates;
  for (Entry& entry : entries) {
    plan::Schedule& schedule = entry.schedule;
    const plan::ScheduleCosts costs = CandidateCosts(schedule.shape, copy_ratio);
    if (entry.offloaded > 0) {
      SHOAL_ASSIGN_OR_RETURN(
          plan::OffloadPlan plan,
          plan::AddOffloads(schedule, costs, plan::FirstChunks(schedule.shape, entry.offloaded)));
      schedule = std::move(plan.schedule);
    }
    SHOAL_ASSIGN_OR_RETURN(plan::ScheduleTimes times, plan::SimulateSchedule(schedule, costs));
    candidates.push_back({.name = std::string(entry.name),
                          .colour = entry.colour,
                          .schedule = std::move(schedule),
                          .copy_ratio = copy_ratio,
                          .times = std::move(times)});
  }
  return candidates;
}

}  // namespace

plan::ScheduleCosts CandidateCosts(const plan::ScheduleShape& shape, double copy_ratio) {
  const double chunks = shape.chunks;
  const double copy = copy_ratio * kStageSeconds / 2 / chunks;
  const int64_t bytes = kStageBytes / shape.chunks;
  return plan::ScheduleCosts(shape, {.forward = 1 / chunks,
                                     .backward_input = 1 / chunks,
                                     .backward_weights = 1 / chunks,
                                     .offload = copy,
                                     .reload = copy,
                                     .activation_bytes = bytes,
                                     .offload_bytes = bytes});
}

double Candidate::Throughput() const {
  return kStageSeconds * schedule.shape.microbatches / times.makespan;
}

double Candidate::PeakShare() const {
  return static_cast<double>(times.PeakDeviceBytes()) /
         static_cast<double>(kStageBytes * schedule.shape.stages);
}

absl::StatusOr<std::vector<Candidate>> WithoutOffload(int stages, int chunks, int microbatches) {
  const auto grouped = [&](int group) {
    return plan::GroupedInterleaved(stages, chunks, microbatches, group);
  };
  return Simulated(
      /*copy_ratio=*/0,
      {{"GPipe", kGPipeColour, plan::GPipe(stages, /*chunks=*/1, microbatches)},
       {"1F1B", kOneForwardOneBackwardColour, plan::OneForwardOneBackward(stages, microbatches)},
       {"interleaved 1F1B", kInterleavedColour,
        plan::InterleavedOneForwardOneBackward(stages, chunks, microbatches)},
       {"GIS", kGroupedColour, grouped(stages)},
       {"GIS-H", kGroupedColour, grouped(plan::SmallestGroup(stages))},
       {"PO, nothing offloaded", kUniformColour, plan::UniformPipe(stages, chunks, microbatches)},
       {"ZB-H1", kZeroBubbleColour, plan::ZeroBubbleH1(stages, microbatches)},
       {"ZB-H2", kZeroBubbleColour, plan::ZeroBubbleH2(stages, microbatches)},
       {"ZB-V", kVShapedColour, plan::ZeroBubbleV(stages, microbatches)},
       {"V-Half", kVShapedColour, plan::VHalf(stages, microbatches)},
       {"V-Min", kVShapedColour, plan::VMin(stages, microbatches)}});
}

absl::StatusOr<std::vector<Candidate>> WithOffload(int stages, int chunks, int microbatches,
                                                   double copy_ratio) {
  const int half = (chunks + 1) / 2;
  const plan::Schedule uniform = plan::UniformPipe(stages, chunks, microbatches);
  return Simulated(
      copy_ratio,
      {{"1F1B, all offloaded", kOneForwardOneBackwardColour,
        plan::OneForwardOneBackward(stages, microbatches), 1},
       {"interleaved, half offloaded", kInterleavedColour,
        plan::InterleavedOneForwardOneBackward(stages, chunks, microbatches), half},
       {"GIS-H, half offloaded", kGroupedColour,
        plan::GroupedInterleaved(stages, chunks, microbatches, plan::SmallestGroup(stages)), half},
       {"PO-H", kUniformColour, uniform, half},
       {"PO-F", kUniformColour, uniform, chunks}});
}

absl::StatusOr<std::vector<Candidate>> AllCandidates(int stages, int chunks, int microbatches,
                                                     double copy_ratio) {
  SHOAL_ASSIGN_OR_RETURN(std::vector<Candidate> all, WithoutOffload(stages, chunks, microbatches));
  SHOAL_ASSIGN_OR_RETURN(std::vector<Candidate> offloaded,
                         WithOffload(stages, chunks, microbatches, copy_ratio));
  std::ranges::move(offloaded, std::back_inserter(all));
  return all;
}

std::vector<size_t> ParetoFront(const std::vector<Candidate>& candidates) {
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t index) {
    return std::pair(candidates[index].PeakShare(), -candidates[index].Throughput());
  });
  std::vector<size_t> front;
  for (const size_t index : order) {
    if (front.empty() || candidates[index].Throughput() > candidates[front.back()].Throughput()) {
      front.push_back(index);
    }
  }
  return front;
}

}  // namespace shoal::bench
