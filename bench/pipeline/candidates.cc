#include "bench/pipeline/candidates.h"

#include <algorithm>
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

class Collection {
 public:
  explicit Collection(double copy_ratio) : copy_ratio_(copy_ratio) {}

  // The first `offloaded` chunks of each stage go to the host and back.
  absl::Status Add(std::string name, std::string_view colour, plan::Schedule schedule,
                   int offloaded = 0) {
    const plan::ScheduleCosts costs = CandidateCosts(schedule.shape, copy_ratio_);
    if (offloaded > 0) {
      SHOAL_ASSIGN_OR_RETURN(
          plan::OffloadPlan plan,
          plan::AddOffloads(schedule, costs, plan::FirstChunks(schedule.shape, offloaded)));
      schedule = std::move(plan.schedule);
    }
    SHOAL_ASSIGN_OR_RETURN(plan::ScheduleTimes times, plan::SimulateSchedule(schedule, costs));
    candidates_.push_back({.name = std::move(name),
                           .colour = colour,
                           .schedule = std::move(schedule),
                           .copy_ratio = copy_ratio_,
                           .times = std::move(times)});
    return absl::OkStatus();
  }

  std::vector<Candidate> Take() { return std::move(candidates_); }

 private:
  const double copy_ratio_;
  std::vector<Candidate> candidates_;
};

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
  Collection all(/*copy_ratio=*/0);
  SHOAL_RETURN_IF_ERROR(
      all.Add("GPipe", kGPipeColour, plan::GPipe(stages, /*chunks=*/1, microbatches)));
  SHOAL_RETURN_IF_ERROR(all.Add("1F1B", kOneForwardOneBackwardColour,
                                plan::OneForwardOneBackward(stages, microbatches)));
  SHOAL_RETURN_IF_ERROR(
      all.Add("interleaved 1F1B", kInterleavedColour,
              plan::InterleavedOneForwardOneBackward(stages, chunks, microbatches)));
  SHOAL_RETURN_IF_ERROR(all.Add("GIS", kGroupedColour,
                                plan::GroupedInterleaved(stages, chunks, microbatches, stages)));
  SHOAL_RETURN_IF_ERROR(
      all.Add("GIS-H", kGroupedColour,
              plan::GroupedInterleaved(stages, chunks, microbatches, plan::SmallestGroup(stages))));
  SHOAL_RETURN_IF_ERROR(all.Add("PO, nothing offloaded", kUniformColour,
                                plan::UniformPipe(stages, chunks, microbatches)));
  SHOAL_RETURN_IF_ERROR(
      all.Add("ZB-H1", kZeroBubbleColour, plan::ZeroBubbleH1(stages, microbatches)));
  SHOAL_RETURN_IF_ERROR(
      all.Add("ZB-H2", kZeroBubbleColour, plan::ZeroBubbleH2(stages, microbatches)));
  SHOAL_RETURN_IF_ERROR(all.Add("ZB-V", kVShapedColour, plan::ZeroBubbleV(stages, microbatches)));
  SHOAL_RETURN_IF_ERROR(all.Add("V-Half", kVShapedColour, plan::VHalf(stages, microbatches)));
  SHOAL_RETURN_IF_ERROR(all.Add("V-Min", kVShapedColour, plan::VMin(stages, microbatches)));
  return all.Take();
}

absl::StatusOr<std::vector<Candidate>> WithOffload(int stages, int chunks, int microbatches,
                                                   double copy_ratio) {
  Collection all(copy_ratio);
  const int half = (chunks + 1) / 2;
  SHOAL_RETURN_IF_ERROR(all.Add("1F1B, all offloaded", kOneForwardOneBackwardColour,
                                plan::OneForwardOneBackward(stages, microbatches), 1));
  SHOAL_RETURN_IF_ERROR(
      all.Add("interleaved, half offloaded", kInterleavedColour,
              plan::InterleavedOneForwardOneBackward(stages, chunks, microbatches), half));
  SHOAL_RETURN_IF_ERROR(all.Add(
      "GIS-H, half offloaded", kGroupedColour,
      plan::GroupedInterleaved(stages, chunks, microbatches, plan::SmallestGroup(stages)), half));
  SHOAL_RETURN_IF_ERROR(
      all.Add("PO-H", kUniformColour, plan::UniformPipe(stages, chunks, microbatches), half));
  SHOAL_RETURN_IF_ERROR(
      all.Add("PO-F", kUniformColour, plan::UniformPipe(stages, chunks, microbatches), chunks));
  return all.Take();
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
