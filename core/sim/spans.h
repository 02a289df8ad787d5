// What simulated workers do when, for timelines, with the phases and names of real workers
// (core/base/time_kind.h).
#pragma once

#include <cstdint>

#include "core/base/time_kind.h"

namespace shoal::sim {

// In seconds from the start of the step. The spans of a worker follow each other without gaps.
struct SimulatedSpan {
  int64_t worker = 0;
  TimeKind kind = TimeKind::kForward;
  int64_t microbatch = -1;  // of this worker's step; -1: none
  double begin = 0;
  double end = 0;
};

class SpanSink {
 public:
  virtual ~SpanSink() = default;
  virtual void Add(const SimulatedSpan& span) = 0;
};

// Joins consecutive equal spans, and omits those that take no time.
class SpanWriter {
 public:
  SpanWriter(SpanSink* sink, int64_t worker) : sink_(sink) { open_.worker = worker; }

  bool enabled() const { return sink_ != nullptr; }
  void Add(TimeKind kind, int64_t microbatch, double begin, double end) {
    if (kind == open_.kind && microbatch == open_.microbatch) {
      open_.end = end;
      return;
    }
    Finish();
    open_ = {open_.worker, kind, microbatch, begin, end};
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
