// How long an emulated device takes at each unit of a microbatch: worker/paced waits that long,
// and the simulator reckons with the same.
#pragma once

#include <cstdint>
#include <span>

#include "core/job/job.h"
#include "core/plan/step/cost_model.h"

namespace shoal::plan {

// Seconds at one unit of each kind. The embedding's are none worth counting.
struct UnitSeconds {
  double forward_block = 0;
  double backward_block = 0;
  double head = 0;  // forward and backward, one after the other

  double Microbatch(int64_t layers) const {
    return head + static_cast<double>(layers) * (forward_block + backward_block);
  }
};

// Pace of a device of speed 1, in emulated seconds: FLOPs of the shape over device_flops. The shape
// is known to exist (core/job/job_schema.cc).
class DevicePace {
 public:
  explicit DevicePace(const EmulateOptions& options);

  // What microbatches cost in seconds, for planning.
  const CostModel& cost() const { return cost_; }
  // Of a microbatch of these sequences over a model of `layers` blocks (that whose weights travel,
  // which need not have as many as the shape): the shape's blocks are spread over them evenly.
  UnitSeconds Units(std::span<const int64_t> sequence_tokens, int64_t layers) const;

 private:
  CostModel cost_;
  double head_per_token_ = 0;
};

}  // namespace shoal::plan
