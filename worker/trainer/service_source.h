// The model's weights from the service: UnitSource over ParameterClient, with prefetch ahead along
// the order of use.
//
// When use k is asked for, uses k + 1 to k + prefetch_units are started as well. A use that comes
// up while an earlier use of the same unit is still held or prefetched shares it; so what is
// fetched follows from the order alone and not from timing, and plan::PlanTraffic counts it
// exactly. The order is that of the whole step, across microbatches: a schedule's
// (plan::StageUseOrder), or that of one microbatch (plan::UseOrder) time and again. With step
// residency everything is started when the step begins.
//
// Where workers meet at layers, a use is started at the same point of the order, whether a buffer
// was free to prefetch into or not.
//
// Used by the compute thread alone.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "client/parameter_client.h"
#include "common/phase_clock.h"
#include "worker/model/unit_access.h"
#include "worker/trainer/layer_meetings.h"

namespace shoal::worker {

class ServiceSource final : public UnitSource {
 public:
  struct Options {
    DType compute_type = DType::kF32;
    bool keep_for_step = false;
    int64_t prefetch_units = 2;
    int64_t units = 0;  // of the model
  };
  ServiceSource(const Options& options, client::ParameterClient* client, LayerMeetings* meetings,
                PhaseClock* phases)
      : options_(options), client_(client), meetings_(meetings), phases_(phases) {}

  // After the client's BeginStep.
  void BeginStep(std::span<const int> uses);
  // More, which were not known when the step began.
  void AddUses(std::span<const int> uses);

  absl::StatusOr<WeightsView> Get(int unit) override;
  void Release(int unit) override { client_->Release(unit); }

 private:
  struct Use {
    int unit = 0;
    bool first = false;  // of the unit in this step
  };
  int64_t uses() const { return static_cast<int64_t>(uses_.size()); }
  const Use& UseAt(int64_t use) const { return uses_[static_cast<size_t>(use)]; }
  void PrefetchBefore(int64_t end);
  // Where workers meet at layers: whether that use has a transfer that all start together.
  bool Meets(int64_t use) const;
  void MeetBefore(int64_t end);

  const Options options_;
  client::ParameterClient* const client_;
  LayerMeetings* const meetings_;
  PhaseClock* const phases_;
  std::deque<int64_t> started_;  // meetings of the uses from next_ on; 0: that use has none
  int64_t met_ = 0;              // uses started
  std::vector<Use> uses_;        // of this step
  std::vector<bool> used_;       // by unit, in uses_
  int64_t next_ = 0;             // the use that Get should be asked for
  int64_t prefetched_ = 0;       // uses before this one were started (or were got without)
};

}  // namespace shoal::worker
