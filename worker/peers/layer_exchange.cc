#include "worker/peers/layer_exchange.h"

#include <utility>

#include "core/base/status.h"

namespace shoal::worker {

LayerExchange::LayerExchange(Options options)
    : peers_(std::move(options.peers)),
      client_(std::move(options.client)),
      service_(options.service),
      collectives_(options.collectives.ok() ? *std::move(options.collectives) : nullptr),
      check_(std::move(options.check)),
      peer_timeout_(options.peer_timeout),
      timeout_(options.timeout),
      rendezvous_({.peers = peers_,
                   .client = client_.get(),
                   .service = service_,
                   .collectives = collectives_.get(),
                   .unavailable = std::string(
                       collectives_ != nullptr ? "" : Message(options.collectives.status())),
                   .cancellation = options.cancellation,
                   .timeout = options.peer_timeout,
                   .call_timeout = options.call_timeout}) {
  if (options.device != nullptr) {
    stream_ = options.device->NewStream();
  }
}

LayerExchange::~LayerExchange() {
  service_->Close(absl::CancelledError("this worker is leaving"));
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
    exchange->service_->Open(exchange->peers_, [collectives = exchange->collectives_.get()] {
      return collectives->NewId();
    });
  }
  SHOAL_ASSIGN_OR_RETURN(
      proto::JoinRendezvousReply reply,
      exchange->rendezvous_.Join({}, generation, [] { return absl::OkStatus(); }));
  if (reply.id().empty()) {
    exchange->why_not_ = reply.reason().empty() ? "no reason was given" : reply.reason();
  }
  exchange->first_id_ = std::move(*reply.mutable_id());
  return exchange;
}

absl::Status LayerExchange::BeginAttempt(const StepAttempt& attempt, int64_t generation) {
  if (attempt.attempt == 1 && first_id_.empty()) {
    return status();
  }
  std::string id = std::exchange(first_id_, "");
  if (attempt.attempt > 1) {
    SHOAL_ASSIGN_OR_RETURN(proto::JoinRendezvousReply reply,
                           rendezvous_.Join(attempt, generation, check_));
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
  stream_->Synchronize().IgnoreError();  // the next attempt recreates it
}

void LayerExchange::Cancel(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  cancelled_ = cancelled_.ok() ? why : cancelled_;
  if (communicator_ != nullptr) {
    communicator_->Abort(cancelled_);
  }
}

}  // namespace shoal::worker
