#include "worker/trainer/layer_exchange.h"

#include <utility>

#include "absl/time/clock.h"
#include "common/status.h"

namespace shoal::worker {
namespace {

// Between calls to a peer that does not answer yet.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(50);
// Of why a worker cannot take part.
constexpr size_t kLongestText = 1000;

}  // namespace

LayerExchange::LayerExchange(Options options)
    : peers_(std::move(options.peers)),
      port_(std::move(options.port)),
      door_(options.door),
      collectives_(options.collectives.ok() ? *std::move(options.collectives) : nullptr),
      unavailable_(collectives_ != nullptr ? "" : Message(options.collectives.status())),
      check_(std::move(options.check)),
      peer_timeout_(options.peer_timeout),
      call_timeout_(options.call_timeout),
      timeout_(options.timeout) {
  if (options.device != nullptr) {
    stream_ = options.device->NewStream();
  }
}

LayerExchange::~LayerExchange() {
  door_->Close(absl::CancelledError("this worker is leaving"));
  Disconnect();  // before the stream, which waits for what is on it
}

void LayerExchange::Disconnect() {
  std::unique_ptr<Communicator> left;
  absl::MutexLock lock(&mutex_);
  left = std::move(communicator_);
}

absl::StatusOr<std::unique_ptr<LayerExchange>> LayerExchange::Create(Options options) {
  const int64_t generation = options.generation;
  std::unique_ptr<LayerExchange> exchange(new LayerExchange(std::move(options)));
  if (exchange->rank() == 0) {
    // Not called where this worker has none.
    exchange->door_->Open(exchange->peers_, [collectives = exchange->collectives_.get()] {
      return collectives->NewId();
    });
  }
  SHOAL_ASSIGN_OR_RETURN(proto::MeetPeersReply reply,
                         exchange->Meet({}, generation, [] { return absl::OkStatus(); }));
  if (reply.id().empty()) {
    exchange->why_not_ = reply.reason().empty() ? "no reason was given" : reply.reason();
  }
  exchange->first_id_ = std::move(*reply.mutable_id());
  return exchange;
}

proto::MeetPeersRequest LayerExchange::RequestFor(const StepAttempt& attempt,
                                                  int64_t generation) const {
  proto::MeetPeersRequest request;
  request.set_incarnation(peers_.workers[static_cast<size_t>(rank())].incarnation);
  request.set_peer(peers_.workers[0].incarnation);
  request.set_rank(rank());
  request.set_peers(ranks());
  request.set_step(attempt.step);
  request.set_attempt(attempt.attempt);
  request.set_generation(generation);
  if (collectives_ != nullptr) {
    request.set_gpu(collectives_->gpu());
    request.set_version(collectives_->version());
  }
  request.set_unavailable(unavailable_.substr(0, kLongestText));
  return request;
}

absl::StatusOr<proto::MeetPeersReply> LayerExchange::Meet(
    const StepAttempt& attempt, int64_t generation, const std::function<absl::Status()>& check) {
  const proto::MeetPeersRequest request = RequestFor(attempt, generation);
  const absl::Time deadline = absl::Now() + peer_timeout_;
  while (true) {
    absl::StatusOr<proto::MeetPeersReply> reply =
        rank() == 0 ? door_->MeetPeers(request) : port_->MeetPeers(0, request, call_timeout_);
    {
      absl::MutexLock lock(&mutex_);
      SHOAL_RETURN_IF_ERROR(cancelled_);
    }
    if (!absl::IsUnavailable(reply.status()) && !absl::IsDeadlineExceeded(reply.status())) {
      return reply;
    }
    SHOAL_RETURN_IF_ERROR(check());
    if (absl::Now() >= deadline) {
      return DeadlineExceeded("not all {} workers met within {}: {}", ranks(),
                              absl::FormatDuration(peer_timeout_), Message(reply.status()));
    }
    absl::SleepFor(kRetryDelay);
  }
}

absl::Status LayerExchange::BeginAttempt(const StepAttempt& attempt, int64_t generation) {
  if (attempt.attempt == 1 && first_id_.empty()) {
    return status();
  }
  std::string id = std::exchange(first_id_, "");
  if (attempt.attempt > 1) {
    SHOAL_ASSIGN_OR_RETURN(proto::MeetPeersReply reply, Meet(attempt, generation, check_));
    if (reply.id().empty()) {
      return FailedPrecondition("workers cannot exchange any more: {}", reply.reason());
    }
    id = std::move(*reply.mutable_id());
  }
  return Connect(attempt, id);
}

absl::Status LayerExchange::Connect(const StepAttempt& attempt, const std::string& id) {
  std::unique_ptr<Communicator> old;
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_RETURN_IF_ERROR(cancelled_);
    old = std::move(communicator_);
  }
  if (old != nullptr) {  // others may have left it: no farewell
    old->Abort(Aborted("step {} attempt {} begins", attempt.step, attempt.attempt));
    old.reset();
  }
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<Communicator> communicator,
      collectives_->Join({.name = fmt::format("{} from step {} attempt {}", library(), attempt.step,
                                              attempt.attempt),
                          .id = id,
                          .rank = rank(),
                          .ranks = ranks(),
                          .connect_timeout = peer_timeout_,
                          .timeout = timeout_,
                          .check = check_}));
  absl::MutexLock lock(&mutex_);
  communicator_ = std::move(communicator);
  if (!cancelled_.ok()) {
    communicator_->Abort(cancelled_);
  }
  return cancelled_;
}

absl::StatusOr<Communicator*> LayerExchange::Usable() {
  absl::MutexLock lock(&mutex_);
  SHOAL_RETURN_IF_ERROR(cancelled_);
  if (communicator_ == nullptr) {
    return Internal("workers are not connected for the attempt at hand");
  }
  return communicator_.get();
}

absl::Status LayerExchange::status() {
  SHOAL_ASSIGN_OR_RETURN(const Communicator* communicator, Usable());
  return communicator->status();
}

absl::Status LayerExchange::AllGather(const void* from, void* to, int64_t count, DType dtype,
                                      std::string_view what) {
  SHOAL_ASSIGN_OR_RETURN(Communicator * communicator, Usable());
  ++statistics_.all_gathers;
  statistics_.gathered_bytes += (ranks() - 1) * count * SizeOf(dtype);
  return communicator->AllGather(from, to, count, dtype, *stream_, what);
}

absl::Status LayerExchange::ReduceScatter(const void* from, void* to, int64_t count, DType dtype,
                                          std::string_view what) {
  SHOAL_ASSIGN_OR_RETURN(Communicator * communicator, Usable());
  ++statistics_.reduce_scatters;
  statistics_.reduced_bytes += (ranks() - 1) * count * SizeOf(dtype);
  return communicator->ReduceScatter(from, to, count, dtype, *stream_, what);
}

void LayerExchange::EndAttempt(const absl::Status& how) {
  if (how.ok()) {
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    if (communicator_ != nullptr) {
      communicator_->Abort(how);
    }
  }
  stream_->Synchronize().IgnoreError();  // the next attempt starts anew
}

void LayerExchange::Cancel(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = cancelled_.ok() ? why : cancelled_;
    if (communicator_ != nullptr) {
      communicator_->Abort(cancelled_);
    }
  }
  door_->Close(why);
  port_->Cancel();
}

}  // namespace shoal::worker
