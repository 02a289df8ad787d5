#include "worker/job/worker_core.h"

#include <utility>

#include "core/base/logging.h"
#include "core/job/shard_map_message.h"

namespace shoal::worker {
namespace {

// Between tries if the coordinator does not answer. Tries go on until the lease is over, when this
// worker is ended from outside.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(100);

// Adds what an answer leaves out, as it was in the one before.
absl::Status Complete(const proto::JoinJobReply& known, proto::JoinJobReply& answer) {
  if (!known.has_shard_map()) {
    return InvalidArgument("it is told what has changed in a shard map of which it knows none");
  }
  if (answer.run() != known.run()) {
    return InvalidArgument("it is of run {}, the map known is of run {}", answer.run(),
                           known.run());
  }
  SHOAL_ASSIGN_OR_RETURN(const plan::MapChange change, plan::ChangeFromBytes(answer.map_change()));
  SHOAL_ASSIGN_OR_RETURN(const plan::ShardMap map,
                         plan::Apply(plan::FromMessage(known.shard_map()), change));
  *answer.mutable_shard_map() = plan::ToMessage(map);
  answer.clear_map_change();
  answer.set_job_id(known.job_id());
  *answer.mutable_job() = known.job();
  answer.set_token_file(known.token_file());
  answer.set_validation_file(known.validation_file());
  *answer.mutable_model_files() = known.model_files();
  if (known.has_pipeline()) {
    *answer.mutable_pipeline() = known.pipeline();
  }
  if (answer.servers().empty()) {
    *answer.mutable_servers() = known.servers();
  }
  if (answer.stages().empty()) {
    *answer.mutable_stages() = known.stages();
  }
  const bool is_told_peers = !answer.peers().empty() || !answer.without_peers().empty();
  if (!is_told_peers && answer.workers() > 1) {
    *answer.mutable_peers() = known.peers();
    answer.set_without_peers(known.without_peers());
  }
  return absl::OkStatus();
}

}  // namespace

bool IsTransient(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status);
}

bool IsSamePart(proto::JoinJobReply a, proto::JoinJobReply b) {
  for (proto::JoinJobReply* const join : {&a, &b}) {
    join->clear_shard_map();
    join->clear_formation();
    join->clear_term();
  }
  return a.SerializeAsString() == b.SerializeAsString();
}

WorkerCore::What WorkerCore::Next(absl::Time now) {
  if (what_ == What::kAsk && out_of_grace(now) && !question_.has_finished()) {
    LeaveJob();
  }
  return what_;
}

absl::Duration WorkerCore::pause() const {
  return unanswered_ ? kRetryDelay : absl::ZeroDuration();
}

void WorkerCore::Leave(const absl::Status& why) {
  what_ = What::kLeave;
  end_ = why;
}

void WorkerCore::LeaveJob() {
  left_a_job_ = true;
  Leave(absl::OkStatus());
}

void WorkerCore::Fail(const absl::Status& why) { Leave(why); }

proto::JoinJobRequest WorkerCore::JoinQuestion(uint64_t incarnation) const {
  proto::JoinJobRequest question;
  question.set_incarnation(incarnation);
  if (join_.has_shard_map()) {
    question.mutable_known()->set_job_id(join_.job_id());
    question.mutable_known()->set_run(join_.run());
    question.mutable_known()->set_generation(join_.shard_map().generation());
  }
  return question;
}

proto::JoinJobRequest WorkerCore::join_question() const {
  proto::JoinJobRequest question = JoinQuestion(question_.incarnation());
  question.set_wait_seconds(kPollSeconds);
  return question;
}

void WorkerCore::OnLeftBehind() {
  what_ = What::kJoin;
  has_work_ = false;
}

void WorkerCore::OnJoined(const absl::StatusOr<proto::JoinJobReply>& answer) {
  absl::StatusOr<proto::JoinJobReply> reply = OfNewestTerm(answer);
  if (reply.ok() && reply->has_map_change()) {
    if (const absl::Status completed = Complete(join_, *reply); !completed.ok()) {
      LogWarning("what the coordinator says has changed in the shard map does not fit: {}",
                 Message(completed));
      // Asks for all of it, once.
      reply = join_.has_shard_map() ? Unavailable("{}", Message(completed)) : completed;
      join_.clear_shard_map();
    }
  }
  unanswered_ = !reply.ok();
  if (!reply.ok()) {
    if (!IsTransient(reply.status())) {
      Fail(Annotate(reply.status(), "join the job"));
    }
  } else if (reply->shut_down()) {
    Leave(absl::OkStatus());
  } else if (reply->ready()) {
    join_ = *std::move(reply);
    has_part_ = true;
    what_ = What::kMake;
  }
}

void WorkerCore::OnMade(proto::NextStepRequest::Pushes pushes) {
  const uint64_t incarnation = question_.incarnation();
  question_.Clear();
  question_.set_job_id(join_.job_id());
  question_.set_run(join_.run());
  question_.set_incarnation(incarnation);
  question_.set_pushes(pushes);
  question_.set_formation(join_.formation());
  question_.set_leaving(drained_until_.has_value());
  question_.set_wait_seconds(kPollSeconds);
  question_.set_known_generation(join_.shard_map().generation());
  what_ = std::exchange(has_work_, false) && !question_.leaving() ? What::kRun : What::kAsk;
}

void WorkerCore::OnAnswered(const absl::StatusOr<proto::NextStepReply>& answer, absl::Time now) {
  const absl::StatusOr<proto::NextStepReply> reply = OfNewestTerm(answer);
  unanswered_ = !reply.ok();
  if (!reply.ok()) {  // the report is sent again, and counts once
    if (!IsTransient(reply.status())) {
      Fail(Annotate(reply.status(), "ask for the next step"));
    } else if (out_of_grace(now)) {
      question_.clear_finished();
    }
    return;
  }
  question_.clear_finished();
  const bool draining = drained_until_.has_value();
  const bool joins = reply->has_join();
  if ((reply->join_again() || joins) && draining) {
    LeaveJob();
  } else if (joins) {
    OnLeftBehind();
    OnJoined(reply->join());
    has_work_ = what_ == What::kMake && reply->has_work();
    work_ = reply->work();
  } else if (reply->job_over() || reply->join_again()) {
    has_part_ = has_part_ && !reply->job_over();
    LogInfo("{} {}", join_.job_id(), reply->job_over() ? "is over" : "goes on with others");
    reply->join_again() || (stays_ && !draining) ? OnLeftBehind() : Leave(absl::OkStatus());
  } else if (reply->has_work() && !draining) {
    work_ = reply->work();
    what_ = What::kRun;
  }
}

void WorkerCore::OnRan(proto::FinishedReport report) {
  *question_.mutable_finished() = std::move(report);
  what_ = What::kAsk;
}

void WorkerCore::Drain(absl::Time until) {
  drained_until_ = until;
  question_.set_leaving(true);
}

void WorkerCore::DrainNow() {
  left_a_job_ = has_part_;
  Leave(absl::OkStatus());
}

proto::NextStepRequest WorkerCore::over_question() const {
  proto::NextStepRequest question = question_;
  question.clear_finished();
  question.clear_leaving();
  question.clear_wait_seconds();
  question.clear_known_generation();
  return question;
}

proto::JoinJobRequest WorkerCore::left_behind_question(uint64_t incarnation) const {
  proto::JoinJobRequest question = JoinQuestion(incarnation);
  question.set_job_id(join_.job_id());
  return question;
}

bool WorkerCore::IsLeftBehind(const absl::StatusOr<proto::JoinJobReply>& answer) {
  const absl::StatusOr<proto::JoinJobReply> reply = OfNewestTerm(answer);
  return reply.ok() ? !reply->ready() || reply->run() != join_.run() ||
                          reply->formation() != join_.formation()
                    : !IsTransient(reply.status());
}

bool WorkerCore::IsOver(const absl::StatusOr<proto::NextStepReply>& answer) {
  const absl::StatusOr<proto::NextStepReply> reply = OfNewestTerm(answer);
  return reply.ok() && (reply->job_over() || reply->join_again());
}

}  // namespace shoal::worker
