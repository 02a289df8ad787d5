// How long an emulated device takes for each unit of a microbatch: worker/paced waits that long,
// and the simulator uses the same times.
#pragma once

#include <cstdint>
#include <span>

#include "core/job/job.h"
#include "core/plan/step/cost_model.h"

namespace shoal::plan {

// Seconds for one unit of each kind. The embedding takes a negligible time.
struct UnitSeconds {
  double forward_block = 0;
  double backward_block = 0;
  double head = 0;  // forward and backward together

  double Microbatch(int64_t layers) const {
    return head + static_cast<double>(layers) * (forward_block + backward_block);
  }
};

// The pace of a device of speed 1, in emulated seconds: FLOPs of the shape over device_flops. The
// shape must exist (core/job/job_schema.cc checks it).
class DevicePace {
 public:
  explicit DevicePace(const EmulateOptions& options);

  // What microbatches cost in seconds, for planning.
  const CostModel& cost() const { return cost_; }
  // For a microbatch of these sequences over a model of `layers` blocks (the model whose weights
  // travel, which may have fewer or more than the shape): the shape's blocks are spread evenly over
  // them.
  UnitSeconds Units(std::span<const int64_t> sequence_tokens, int64_t layers) const;

 private:
  CostModel cost_;
  double head_per_token_ = 0;
};

}  // namespace shoal::plan
