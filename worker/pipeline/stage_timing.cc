#include "worker/pipeline/stage_timing.h"

#include <algorithm>
#include <numeric>

#include "fmt/format.h"

namespace shoal::worker {

std::string NameOf(const Awaited& awaited) {
  const auto [operation, chunk, microbatch] = awaited.action;
  switch (awaited.what) {
    case Awaited::What::kOffload:
      return plan::NameOf(plan::Action{plan::Operation::kOffload, chunk, microbatch});
    case Awaited::What::kReload:
      return plan::NameOf(plan::Action{plan::Operation::kReload, chunk, microbatch});
    case Awaited::What::kMessage:
      return fmt::format("{} from stage {}", NameOf(awaited.message), awaited.message.peer);
    case Awaited::What::kRoom:
      return fmt::format("room for {} to stage {}", NameOf(awaited.message), awaited.message.peer);
    case Awaited::What::kArrival:
      return "its last messages to arrive";
  }
  return "";
}

void StageTiming::Begin(StageSpan::Kind kind, const Awaited& of) {
  Stretch& stretch = stretches_.emplace_back(Stretch{.kind = kind, .of = of});
  if (compute_ != nullptr) {
    stretch.begun = compute_->Record();
  } else {
    stretch.begin = clock_.Now();
  }
}

void StageTiming::End() {
  Stretch& stretch = stretches_.back();
  if (compute_ != nullptr) {
    stretch.ended = compute_->Record();
  } else {
    stretch.end = clock_.Now();
  }
}

void StageTiming::Fill(StageReport& report, bool spans) const {
  report.neighbour_seconds.assign(static_cast<size_t>(shape_.stages), 0);
  report.microbatch_seconds = microbatch_seconds_;
  if (compute_ != nullptr) {
    std::ranges::fill(report.microbatch_seconds, 0);
  }
  for (const Stretch& stretch : stretches_) {
    const absl::Time begin = stretch.begun != nullptr ? stretch.begun->at() : stretch.begin;
    const absl::Duration length =
        (stretch.ended != nullptr ? stretch.ended->at() : stretch.end) - begin;
    const double seconds = absl::ToDoubleSeconds(length);
    const Awaited& of = stretch.of;
    if (spans) {
      report.spans.push_back({stretch.kind, of.action, begin, length});
    }
    if (stretch.kind == StageSpan::Kind::kCompute) {
      if (compute_ != nullptr) {
        report.microbatch_seconds[static_cast<size_t>(of.action.microbatch)] += seconds;
      }
      continue;
    }
    StallTime& time =
        report.stalls[static_cast<size_t>(of.IsTransfer() ? Stall::kTransfer : Stall::kNeighbour)];
    time.seconds += seconds;
    if (of.IsForAStage()) {
      report.neighbour_seconds[static_cast<size_t>(of.message.peer)] += seconds;
    }
    if (seconds > time.longest_seconds) {
      time.longest_seconds = seconds;
      time.longest = NameOf(of);
    }
  }
  report.compute_seconds =
      std::accumulate(report.microbatch_seconds.begin(), report.microbatch_seconds.end(), 0.0);
}

}  // namespace shoal::worker
