// Decides for a worker what it does next, without waiting: it asks to join a job, makes its part in
// that, asks for work, runs it, leaves. Trainer does what this says with calls and threads, the
// simulation with a loop of events.
//
// Thread-safe are only the two functions that say so.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/rpc/newest_term.h"
#include "proto/coordinator.pb.h"

namespace shoal::worker {

// Whether the coordinator may answer the same question a little later.
bool IsTransient(const absl::Status& status);
// Whether a worker has the same part by both, but for where partitions are.
bool IsSamePart(proto::JoinJobReply a, proto::JoinJobReply b);

class WorkerCore {
 public:
  enum class What {
    kJoin,   // ask JoinJob with join_question(), then OnJoined
    kMake,   // make this worker's part in join(), then OnMade, OnLeftBehind or Fail
    kAsk,    // ask NextStep with question(), then OnAnswered
    kRun,    // run work(), then OnRan
    kLeave,  // end() says why
  };
  // How long a question waits at the coordinator, and so how late the end of a worker is noticed
  // between steps.
  static constexpr int kPollSeconds = 1;

  // `stays`: for job after job.
  WorkerCore(uint64_t incarnation, bool stays) : stays_(stays) {
    question_.set_incarnation(incarnation);
  }

  What Next(absl::Time now);
  // Before that: it follows a question that was not answered.
  absl::Duration pause() const;

  // Says which shard map is known; an answer that says what has changed since then is completed
  // from that, and one that does not fit to it is none: then nothing is known.
  proto::JoinJobRequest join_question() const;
  void OnJoined(const absl::StatusOr<proto::JoinJobReply>& answer);
  const proto::JoinJobReply& join() const { return join_; }
  void OnMade(proto::NextStepRequest::Pushes pushes);
  // Whether the job goes on with others, or by another shard map, than join() says: a question, and
  // its answer. Thread-safe.
  proto::JoinJobRequest left_behind_question(uint64_t incarnation) const;
  bool IsLeftBehind(const absl::StatusOr<proto::JoinJobReply>& answer);
  // It does.
  void OnLeftBehind();
  void Fail(const absl::Status& why);

  // In a job, for all that it knows: while it is to join anew, too.
  bool has_part() const { return has_part_; }

  // Has the report of the last work until an answer says that it was taken.
  const proto::NextStepRequest& question() const { return question_; }
  void OnAnswered(const absl::StatusOr<proto::NextStepReply>& answer, absl::Time now);
  const proto::StepWork& work() const { return work_; }
  void OnRan(proto::FinishedReport report);

  // It is told to leave. With a part in a job that is made, it does once nothing is in its hands,
  // and at `until` with what is.
  void Drain(absl::Time until);
  // Else, at once.
  void DrainNow();
  bool out_of_grace(absl::Time now) const {
    return drained_until_.has_value() && now >= *drained_until_;
  }
  // Whether it left a job that goes on, and in which it had a part, because it was told to.
  bool left_a_job() const { return left_a_job_; }
  const absl::Status& end() const { return end_; }

  // Unavailable in place of an answer of an earlier life of the coordinator. Thread-safe.
  template <typename Reply>
  absl::StatusOr<Reply> OfNewestTerm(const absl::StatusOr<Reply>& answer) {
    const absl::Status admitted =
        answer.ok() ? term_.Admit(answer->term(), "the coordinator's answer") : absl::OkStatus();
    return admitted.ok() ? answer : Unavailable("{}", Message(admitted));
  }
  // A question about the work at hand, and whether its answer says that nobody waits for that.
  proto::NextStepRequest over_question() const;
  // Thread-safe.
  bool IsOver(const absl::StatusOr<proto::NextStepReply>& answer);

 private:
  proto::JoinJobRequest JoinQuestion(uint64_t incarnation) const;
  void Leave(const absl::Status& why);
  void LeaveJob();

  const bool stays_;
  rpc::NewestTerm term_;
  What what_ = What::kJoin;
  bool unanswered_ = false;
  bool has_part_ = false;  // in a job
  proto::JoinJobReply join_;
  proto::NextStepRequest question_;
  proto::StepWork work_;
  bool has_work_ = false;  // to be run once its part is made
  std::optional<absl::Time> drained_until_;
  bool left_a_job_ = false;
  absl::Status end_;
};

}  // namespace shoal::worker
