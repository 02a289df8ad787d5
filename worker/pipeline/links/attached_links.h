// Links of a stage whose messages are made and used in memory of a device, around others that reach
// its neighbours: in step after step the stage's runner attaches them to those of the step, and
// uses them in their place. What the ones around carry, and what goes through the others, is each
// kind's own: copies of the messages (device_links.h), or just words about them
// (communicator_links.h).
//
// A stage's runner owns one. What Attach is given must stay until EndStep has returned or, after a
// failure, Abandon.
#pragma once

#include "absl/status/status.h"
#include "worker/pipeline/links/stage_links.h"

namespace shoal::worker {

class AttachedLinks : public StageLinks {
 public:
  // For the step that begins next.
  virtual void Attach(StageLinks& host) = 0;
  // The step has failed. Returns when nothing touches messages any more, but for work of the
  // compute stream, and when that waits for no other stage.
  virtual void Abandon(const absl::Status& why) = 0;
  // There is no step any more: lets go of what was kept from step to step with the neighbours.
  virtual void Disconnect() {}
};

}  // namespace shoal::worker
