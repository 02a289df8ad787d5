// What simulated workers do when, for timelines: the phases and names of real workers
// (worker/trainer/phase_clock.h).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace shoal::sim {

enum class Phase { kForward, kBackward, kGetWait, kPutWait, kLayerWait, kOptimizerWait };
inline constexpr std::array<std::string_view, 6> kPhaseNames = {
    "forward", "backward", "get_wait", "put_wait", "layer_wait", "optimizer_wait"};
inline constexpr std::string_view Name(Phase phase) {
  return kPhaseNames[static_cast<size_t>(phase)];
}

// Seconds from the step's begin. The spans of a worker follow each other without gaps.
struct SimulatedSpan {
  int64_t worker = 0;
  Phase phase = Phase::kForward;
  int64_t microbatch = -1;  // of this worker's step; -1: none
  double begin = 0;
  double end = 0;
};

class SpanSink {
 public:
  virtual ~SpanSink() = default;
  virtual void Add(const SimulatedSpan& span) = 0;
};

// Joins what follows on without a change, and leaves out what takes no time.
class SpanWriter {
 public:
  SpanWriter(SpanSink* sink, int64_t worker) : sink_(sink) { open_.worker = worker; }

  bool enabled() const { return sink_ != nullptr; }
  void Add(Phase phase, int64_t microbatch, double begin, double end) {
    if (phase == open_.phase && microbatch == open_.microbatch) {
      open_.end = end;
      return;
    }
    Finish();
    open_ = {open_.worker, phase, microbatch, begin, end};
  }
  void Finish() {
    if (open_.end > open_.begin) {
      sink_->Add(open_);
    }
    open_.begin = open_.end;
  }

 private:
  SpanSink* sink_;
  SimulatedSpan open_;
};

}  // namespace shoal::sim
