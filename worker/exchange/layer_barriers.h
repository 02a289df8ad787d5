// The barriers of a step at layers (train.synchronization: layer), shared by the source, whose gets
// are barriers, and the sink, whose pushes are. All workers make the same calls in the same order,
// since they have equally many microbatches, so barrier numbers match.
//
// A fetch started ahead arrives at its barrier when it starts; its use waits until all have started
// it. Only one push is in progress: each waits until all have started the one before.
//
// Off, all calls do nothing. Compute thread only.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "client/parameter_client.h"
#include "core/base/time_kind_clock.h"

namespace shoal::worker {

class LayerBarriers {
 public:
  LayerBarriers(bool on, client::ParameterClient* client, TimeKindClock* time_kinds)
      : on_(on), client_(client), time_kinds_(time_kinds) {}

  bool on() const { return on_; }
  // Arrives at the next barrier, as a fetch starts. Returns its number.
  int64_t StartGet() { return on_ ? client_->ArriveAtBarrier() : 0; }
  absl::Status WaitForGet(int64_t number) { return Wait(number); }
  // Call before starting a push, and after.
  absl::Status BeforePush() { return Wait(last_push_); }
  void StartedPush() { last_push_ = on_ ? client_->ArriveAtBarrier() : 0; }
  void BeginStep() { last_push_ = 0; }

 private:
  absl::Status Wait(int64_t number) {
    if (!on_ || number == 0) {
      return absl::OkStatus();
    }
    const TimeKindClock::Scope wait(*time_kinds_, TimeKind::kLayerWait);
    return client_->WaitAtBarrier(number);
  }

  const bool on_;
  client::ParameterClient* const client_;
  TimeKindClock* const time_kinds_;
  int64_t last_push_ = 0;
};

}  // namespace shoal::worker
