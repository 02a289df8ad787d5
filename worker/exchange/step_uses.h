// The order in which a step uses units, and how far ahead it starts each; for all sources.
//
// Requesting use k also starts uses k + 1 to k + prefetch_units. A use shares an earlier use of the
// same unit that is still held or started; so fetches follow from the order alone, not from timing,
// and plan::PlanTraffic counts them exactly. The order covers the whole step: a schedule's
// (plan::StageUseOrder), or one microbatch's (plan::UseOrder) repeated. With step residency
// everything starts when the step begins.
//
// With barriers at layers, a use starts at the same point of the order whether or not there is a
// free buffer to fetch to.
//
// Compute thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "worker/exchange/layer_barriers.h"

namespace shoal::worker {

class StepUses {
 public:
  struct Options {
    bool keep_for_step = false;
    int64_t prefetch_units = 2;
    int64_t units = 0;  // of the model
  };
  StepUses(const Options& options, LayerBarriers* barriers)
      : options_(options), barriers_(barriers) {}

  void BeginStep(std::span<const int> uses);
  void AddUses(std::span<const int> uses);

  int64_t count() const { return static_cast<int64_t>(uses_.size()); }
  int unit(int64_t use) const { return uses_[static_cast<size_t>(use)].unit; }
  // The use expected next.
  int64_t next() const { return next_; }
  bool Expects(int unit) const { return next_ < count() && this->unit(next_) == unit; }
  // Call when the expected use is requested: uses now due arrive at their barriers.
  void Advance();
  // Uses before this one must be started.
  int64_t due() const { return due_; }
  // Waits until all workers have started the last Advance's use.
  absl::Status WaitAtBarrier();

 private:
  struct Use {
    int unit = 0;
    bool first = false;  // of the unit in this step
  };
  // Whether the use has a transfer that all workers start together.
  bool HasBarrier(int64_t use) const;
  void ArriveBefore(int64_t end);
  void RaiseDue(int64_t end);

  const Options options_;
  LayerBarriers* const barriers_;
  std::deque<int64_t> started_;  // barriers of uses from the next on; 0: none
  int64_t arrived_ = 0;          // uses started
  int64_t barrier_ = 0;          // of the last Advance's use
  std::vector<Use> uses_;        // of this step
  std::vector<bool> used_;       // by unit, in uses_
  int64_t next_ = 0;
  int64_t due_ = 0;
};

}  // namespace shoal::worker
