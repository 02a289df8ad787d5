// Links of a stage whose messages are made and used in memory of a device, layered over other links
// that reach its neighbours: step after step the stage's runner attaches them to the links of the
// step, and uses them instead. Each kind decides what the underlying links carry, and what goes
// another way: copies of the messages (device_links.h), or only control messages about them
// (communicator_links.h).
//
// A stage's runner owns one. What is passed to Attach must stay valid until EndStep has returned
// or, after a failure, Abandon.
#pragma once

#include "absl/status/status.h"
#include "worker/pipeline/links/stage_links.h"

namespace shoal::worker {

class AttachedLinks : public StageLinks {
 public:
  // Attaches to the links of the step that begins next.
  virtual void Attach(StageLinks& host) = 0;
  // Call when the step has failed. Returns when nothing touches messages any more, except work of
  // the compute stream, and when that work waits for no other stage.
  virtual void Abandon(const absl::Status& why) = 0;
  // Call when no step follows: releases what was kept from step to step with the neighbours.
  virtual void Disconnect() {}
};

}  // namespace shoal::worker
