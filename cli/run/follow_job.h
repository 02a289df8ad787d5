// A submitted job followed to its end: events go to the reporter, a stop request becomes StopJob
// (and a second one gives up at once), and a local process that is lost for good ends the run by
// name, after a checkpoint where the servers are whole. Decides how the run ended; starts and stops
// no process.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/run/command.h"
#include "cli/run/event_watch.h"
#include "core/base/clock.h"
#include "core/rpc/channel.h"
#include "proto/coordinator.pb.h"

namespace shoal::cli {

// Told of everything as it happens. Called on the thread that runs FollowJob.
class RunReporter {
 public:
  virtual ~RunReporter() = default;
  virtual void OnStep(const proto::StepEvent& event) = 0;
  virtual void OnValidation(const proto::ValidationEvent& event) = 0;
  virtual void OnCheckpoint(const proto::CheckpointEvent& event) = 0;
  virtual void OnState(const std::string& state) = 0;
  // Every event, before the call for its kind.
  virtual void OnEvent(const proto::JobEvent& /*event*/) {}
  // For a person: "stopping ...".
  virtual void OnNotice(const std::string& text) = 0;
};

struct RunEnd {
  enum class Kind { kReached, kInterrupted, kFailed, kNonFinite };
  Kind kind = Kind::kFailed;
  int64_t step = 0;
  double loss = 0;
  std::string checkpoint;       // newest complete one known of; empty: none
  std::string best_checkpoint;  // as DoneEvent has it
  std::string message;          // why it failed; one line, then maybe the end of a log
  bool early = false;           // reached by train.early_stop
  std::optional<proto::ValidationEvent> validation;  // the newest
};

// Interrupted with nothing to go on from is a failure.
ExitCode ExitCodeOf(const RunEnd& end);

struct FollowOptions {
  std::string job_id;
  std::function<int()> stop_requests;  // how many so far
  std::function<const char*()> stop_reason;
  std::function<absl::Status()> check_processes;  // an error is a loss; empty: a remote cluster
  std::function<void()> on_first_step;            // once a step is committed; may be empty
  // The job is to have so many servers; may be empty. An error is a loss.
  std::function<absl::Status(int64_t servers)> on_wanted;
  absl::Duration patience = absl::Seconds(10);  // without a connection to the coordinator
  bool as_told = true;  // patience is as long as the coordinator said, if that is longer
  absl::Duration stop_limit = absl::Minutes(30);  // for the checkpoint that a stop asks for
};

RunEnd FollowJob(std::shared_ptr<rpc::Channel> stream, std::shared_ptr<rpc::Channel> calls,
                 const FollowOptions& options, RunReporter& reporter, Clock& clock = RealClock());

}  // namespace shoal::cli
