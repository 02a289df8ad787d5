// Decides which commands fit where a server is in a step: a pure state machine.
//
//   ready -> open -> sealed -> committing -> ready -> ...
//
// Commands may be repeated (the reply was lost) or late (the sender gave up): a repeated one is
// answered as the first was, an older one refused by name. A newer attempt of the same step may
// begin at any time before the commit and drops the one before.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shoal::server {

// kFailed: the attempt's pushes are lost; it is over.
enum class Phase { kReady, kOpen, kSealed, kFailed, kCommitting };

// What to do with a command that fits.
enum class Decision { kExecute, kRepeat };

class StepState {
 public:
  // Of a job whose weights are loaded.
  explicit StepState(int64_t version = 0, int64_t generation = 0)
      : version_(version), generation_(generation) {}

  Phase phase() const { return phase_; }
  int64_t version() const { return version_; }
  int64_t step() const { return step_; }
  int64_t attempt() const { return attempt_; }
  int64_t generation() const { return generation_; }
  // "step 5 attempt 1 is open", for messages.
  std::string Describe() const;

  // Each decides; the state moves by the call after it.
  absl::StatusOr<Decision> BeginAttempt(int64_t step, int64_t attempt, int64_t generation) const;
  // The server holds other partitions, as of that generation, of a version that is published.
  void Moved(int64_t generation, int64_t version);
  void Opened(int64_t step, int64_t attempt);
  absl::StatusOr<Decision> Prepare(int64_t step, int64_t attempt) const;
  void Sealed() { phase_ = Phase::kSealed; }
  void SealingFailed() { phase_ = Phase::kFailed; }
  absl::StatusOr<Decision> Commit(int64_t step, int64_t attempt) const;
  void Committing() { phase_ = Phase::kCommitting; }
  void Committed();

  // Whether a push belongs to the attempt that is open, or was until it was sealed.
  bool TakesPushes() const { return phase_ == Phase::kOpen; }
  bool IsCurrentAttempt(int64_t step, int64_t attempt) const {
    return attempt_ > 0 && step == step_ && attempt == attempt_;
  }

 private:
  Phase phase_ = Phase::kReady;
  int64_t version_;
  int64_t generation_;
  int64_t step_ = 0;     // of the newest attempt; stays after its commit
  int64_t attempt_ = 0;  // counts from 1; 0: none yet
};

}  // namespace shoal::server
