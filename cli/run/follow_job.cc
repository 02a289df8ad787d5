#include "cli/run/follow_job.h"

#include <optional>

#include "cli/terminal/terminal.h"
#include "core/base/status.h"
#include "core/rpc/coordinator_service.h"
#include "server/coordinator/record/event_log.h"

namespace shoal::cli {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(50);
// A process that dies has often told the coordinator why: its failed event says more than an exit
// status. Only then the coordinator is asked to end the job.
constexpr absl::Duration kExplanationWait = absl::Seconds(2);

class Follower {
 public:
  Follower(std::shared_ptr<rpc::Channel> stream, std::shared_ptr<rpc::Channel> calls,
           const FollowOptions& options, RunReporter& reporter, Clock& clock)
      : options_(options),
        reporter_(reporter),
        clock_(clock),
        calls_(std::move(calls)),
        watch_(std::move(stream), options.job_id, options.patience, options.as_told, clock) {}

  RunEnd Run() {
    while (true) {
      const auto event = watch_.Next(kPoll);
      for (const std::string& notice : watch_.TakeNotices()) {
        reporter_.OnNotice(notice);
      }
      if (event.has_value()) {
        if (Handle(*event)) {
          return end_;
        }
      } else if (const absl::Status status = watch_.status(); !status.ok()) {
        return Fail(!lost_.ok() ? std::string(Message(lost_)) : std::string(Message(status)));
      }
      // Also between events: steps may follow each other faster than any pause would show.
      if (ProcessLost() || StopGivenUp()) {
        return end_;
      }
    }
  }

 private:
  RunEnd Fail(std::string message) {
    end_.kind = RunEnd::Kind::kFailed;
    end_.message = std::move(message);
    return end_;
  }

  // True when the job is over.
  bool Handle(const proto::JobEvent& event) {
    if (server::RepeatsStep(last_step_, event)) {
      return false;
    }
    reporter_.OnEvent(event);
    if (event.has_step()) {
      last_step_ = event;
      end_.step = event.step().step();
      end_.loss = event.step().loss();
      if (options_.on_first_step && !stepped_) {
        options_.on_first_step();
      }
      stepped_ = true;
      reporter_.OnStep(event.step());
    } else if (event.has_validation()) {
      reporter_.OnValidation(event.validation());
    } else if (event.has_checkpoint() && !event.checkpoint().error().empty()) {
      reporter_.OnNotice(
          fmt::format("warning: the checkpoint of step {} failed and is tried again: {}",
                      event.checkpoint().step(), event.checkpoint().error()));
    } else if (event.has_checkpoint()) {
      end_.checkpoint = event.checkpoint().path();
      reporter_.OnCheckpoint(event.checkpoint());
    } else if (event.has_restart()) {
      reporter_.OnNotice(
          fmt::format("coordinator restarted ({:.1f} s)", event.restart().seconds()));
    } else if (!event.warning().empty()) {
      reporter_.OnNotice("warning: " + MakePrintable(event.warning()));
    } else if (event.has_wanted_servers()) {
      reporter_.OnNotice(fmt::format("the job is to have {} servers", event.wanted_servers()));
      if (options_.on_wanted && lost_.ok()) {
        lost_ = options_.on_wanted(event.wanted_servers());
        lost_at_ = clock_.Now();
      }
    } else if (event.has_state()) {
      reporter_.OnState(event.state().state());
    } else if (event.has_done()) {
      end_.kind = event.done().interrupted() ? RunEnd::Kind::kInterrupted : RunEnd::Kind::kReached;
      end_.step = event.done().step();
      end_.loss = event.done().loss();
      end_.checkpoint = event.done().checkpoint();
      end_.best_checkpoint = event.done().best_checkpoint();
      end_.early = event.done().early();
      if (event.done().has_validation()) {
        end_.validation = event.done().validation();
      }
      if (event.done().interrupted() && !lost_.ok()) {
        Fail(std::string(Message(lost_)));
      }
      return true;
    } else if (event.has_failed()) {
      end_.kind = event.failed().non_finite() ? RunEnd::Kind::kNonFinite : RunEnd::Kind::kFailed;
      end_.message = event.failed().message();
      if (options_.check_processes && lost_.ok()) {
        lost_ = options_.check_processes();
      }
      if (!lost_.ok()) {
        end_.message += fmt::format(" ({})", Message(lost_));
      }
      return true;
    }
    return false;
  }

  // True when a process is gone and nothing more is to be had of the job: servers that hold every
  // weight write a checkpoint first.
  bool ProcessLost() {
    if (options_.check_processes && lost_.ok()) {
      lost_ = options_.check_processes();
      lost_at_ = clock_.Now();
    }
    if (lost_.ok() || clock_.Now() - lost_at_ < kExplanationWait) {
      return false;
    }
    if (!save_requested_) {
      save_requested_ = true;
      const std::string_view lost = Message(lost_);  // its log follows the first line
      const std::string name(lost.substr(0, lost.find('\n')));
      reporter_.OnNotice(name + ": writing a checkpoint of the last step, if servers can");
      if (RequestStop(name).ok()) {
        return false;
      }
    } else if (clock_.Now() - lost_at_ < options_.stop_limit) {
      return false;
    }
    Fail(std::string(Message(lost_)));
    return true;
  }

  absl::Status RequestStop(const std::string& reason) {
    proto::StopJobRequest request;
    request.set_job_id(options_.job_id);
    request.set_reason(reason);
    return calls_->Call(&rpc::CoordinatorService::StopJob, request).status();
  }

  // Passes the first stop request on; true when a second one comes or the checkpoint takes too
  // long.
  bool StopGivenUp() {
    const int requests = options_.stop_requests ? options_.stop_requests() : 0;
    if (requests == 0) {
      return false;
    }
    if (!stop_requested_at_.has_value()) {
      stop_requested_at_ = clock_.Now();
      reporter_.OnNotice(
          fmt::format("{}: writing a checkpoint, then stopping (Ctrl-C in two seconds or later: "
                      "stop at once, without it)",
                      options_.stop_reason()));
    }
    const absl::Duration since = clock_.Now() - *stop_requested_at_;
    if (requests > 1 || since > options_.stop_limit) {
      end_.kind = RunEnd::Kind::kInterrupted;
      end_.message = requests > 1 ? "stopped at once" : "the checkpoint took too long";
      return true;
    }
    if (stop_sent_) {
      return false;
    }
    const absl::Status asked = RequestStop(options_.stop_reason());
    stop_sent_ = asked.ok();
    // A local coordinator may be about to come back.
    if (stop_sent_ || (options_.check_processes && since < options_.patience)) {
      return false;
    }
    Fail(fmt::format("the coordinator could not be asked to stop: {}", Message(asked)));
    return true;
  }

  const FollowOptions& options_;
  RunReporter& reporter_;
  Clock& clock_;
  const std::shared_ptr<rpc::Channel> calls_;
  EventWatch watch_;
  RunEnd end_;
  proto::JobEvent last_step_;
  bool stepped_ = false;
  absl::Status lost_;
  absl::Time lost_at_;
  bool save_requested_ = false;  // because of lost_
  std::optional<absl::Time> stop_requested_at_;
  bool stop_sent_ = false;  // because of that
};

}  // namespace

ExitCode ExitCodeOf(const RunEnd& end) {
  switch (end.kind) {
    case RunEnd::Kind::kReached:
      return ExitCode::kDone;
    case RunEnd::Kind::kInterrupted:
      return end.checkpoint.empty() ? ExitCode::kFailure : ExitCode::kInterrupted;
    case RunEnd::Kind::kNonFinite:
      return ExitCode::kNonFinite;
    case RunEnd::Kind::kFailed:
      return ExitCode::kFailure;
  }
  return ExitCode::kFailure;
}

RunEnd FollowJob(std::shared_ptr<rpc::Channel> stream, std::shared_ptr<rpc::Channel> calls,
                 const FollowOptions& options, RunReporter& reporter, Clock& clock) {
  Follower follower(std::move(stream), std::move(calls), options, reporter, clock);
  return follower.Run();
}

}  // namespace shoal::cli
