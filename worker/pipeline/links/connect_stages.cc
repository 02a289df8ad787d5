#include "worker/pipeline/links/connect_stages.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/transport/negotiate.h"
#include "worker/pipeline/links/link_layout.h"

namespace shoal::worker {
namespace {

// Between calls to a stage that cannot be reached yet.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(50);
constexpr absl::Duration kNoticeAfter = absl::Seconds(10);

}  // namespace

LinkMemory MemoryBetween(std::span<const plan::MessageQueue> queues, int stage, int peer,
                         int64_t longest) {
  const LinkLayout to = LayOut(queues, stage, peer, longest);
  const LinkLayout from = LayOut(queues, peer, stage, longest);
  return {.slots = from.slot_capacity(),
          .buffers = to.buffer_capacity(),
          .peer_slots = to.slot_capacity(),
          .peer_buffers = from.buffer_capacity()};
}

StageConnections::StageConnections(Options options, StageClient* client, StageService* service)
    : options_(std::move(options)),
      best_(options_.device != nullptr ? kCudaIpc : options_.preferred),
      unavailable_(options_.unavailable),
      client_(client),
      service_(service),
      lent_(options_.group.workers.size()) {
  if (options_.device != nullptr) {
    const auto opens_gpus = std::ranges::find_if(options_.transports, [](const auto* transport) {
      return !transport->capabilities().opens_gpus.empty();
    });
    if (opens_gpus == options_.transports.end()) {
      unavailable_.push_back(fmt::format("{}: no transport here opens memory of GPUs", kCudaIpc));
    } else {
      paths_.push_back({.transport = *opens_gpus, .on_device = true});
      names_.emplace_back(kCudaIpc);
    }
  }
  for (transport::Transport* transport : options_.transports) {
    paths_.push_back({.transport = transport});
    names_.emplace_back(transport->name());
  }
}

void StageConnections::Cancel(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (!cancelled_.ok()) {
      return;
    }
    cancelled_ = why;
  }
  service_->Close(why);
  client_->Cancel();
}

absl::Status StageConnections::cancelled() const {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

absl::StatusOr<std::unique_ptr<TransportLinks>> StageConnections::NewLinks(
    int stage, size_t path, const LinkMemory& memory) {
  return TransportLinks::Create({.stage = options_.group.stage,
                                 .transport = paths_[path].transport,
                                 .slots = memory.slots,
                                 .buffers = memory.buffers,
                                 .device = paths_[path].on_device ? options_.device : nullptr,
                                 .lent = &lent_[static_cast<size_t>(stage)],
                                 .host = options_.host,
                                 .handshake_timeout = options_.call_timeout});
}

void StageConnections::Tell(int stage, const std::string& path, const std::string& reason) {
  const bool on_device = path == kCudaIpc;
  proto::DataConnection& connection = connections_[stage];
  connection.set_peer(options_.group.NameOf(stage));
  connection.set_transport(path);
  connection.set_reason(path == best_ ? "" : reason);
  if (path == best_) {
    LogInfo("{}: connected over {}", options_.group.NameOf(stage), path);
  } else {
    LogWarning("{}: connected over {}, not {}: {}", options_.group.NameOf(stage), path, best_,
               reason);
  }
  fallbacks_ += on_device || path == options_.preferred ? 0 : 1;
  passed_host_ = passed_host_ || (!on_device && options_.device != nullptr);
}

absl::Status StageConnections::AskUntil(int stage, const proto::ConnectStageRequest& request,
                                        absl::Time deadline) {
  absl::Time notice = RealClock().Now() + kNoticeAfter;
  while (true) {
    const absl::Status answer =
        client_->ConnectStage(stage, request, options_.call_timeout).status();
    SHOAL_RETURN_IF_ERROR(cancelled());
    SHOAL_RETURN_IF_ERROR(service_->CheckExpected());
    if (!absl::IsUnavailable(answer) && !absl::IsDeadlineExceeded(answer)) {
      return answer;
    }
    if (RealClock().Now() >= deadline) {
      return DeadlineExceeded("{} did not connect for step {} attempt {} in time: {}",
                              options_.group.NameOf(stage), request.step(), request.attempt(),
                              Message(answer));
    }
    if (RealClock().Now() >= notice) {
      LogWarning("{} at {} does not answer yet, asking until {}: {}", options_.group.NameOf(stage),
                 options_.group.workers[static_cast<size_t>(stage)].address,
                 absl::FormatTime("%H:%M:%S", deadline, absl::LocalTimeZone()), Message(answer));
      notice = deadline;  // once
    }
    absl::SleepFor(kRetryDelay);
  }
}

absl::StatusOr<std::unique_ptr<TransportLinks>> StageConnections::Call(int stage,
                                                                       const LinkMemory& memory,
                                                                       const StepAttempt& attempt,
                                                                       absl::Time deadline) {
  const StageGroup& group = options_.group;
  proto::ConnectStageRequest request;
  request.set_job_id(group.job_id);
  request.set_incarnation(group.workers[static_cast<size_t>(group.stage)].incarnation);
  request.set_peer(group.workers[static_cast<size_t>(stage)].incarnation);
  request.set_stages(group.stages());
  request.set_from(group.stage);
  request.set_to(stage);
  request.set_step(attempt.step);
  request.set_attempt(attempt.attempt);
  request.set_round(attempt.round);
  request.set_callee_bytes(memory.peer_slots.bytes);
  request.set_caller_bytes(memory.slots.bytes);
  // Offers expire: they are made once the peer is there to take them.
  SHOAL_RETURN_IF_ERROR(AskUntil(stage, request, deadline));

  std::vector<std::unique_ptr<TransportLinks>> links(names_.size());
  const auto offer = [&](size_t i) -> absl::StatusOr<std::string> {
    SHOAL_ASSIGN_OR_RETURN(links[i], NewLinks(stage, i, memory));
    return links[i]->Offer(stage);
  };
  const auto ask = [&](const std::vector<transport::NamedOffer>& offers)
      -> absl::StatusOr<transport::TakenOffer> {
    request.clear_offers();
    transport::WriteOffers(offers, *request.mutable_offers());
    SHOAL_ASSIGN_OR_RETURN(const proto::ConnectStageReply reply,
                           client_->ConnectStage(stage, request, options_.call_timeout));
    return transport::TakenOffer{reply.transport(), reply.answer(), reply.reason()};
  };
  const auto complete = [&](size_t i, const std::string& answer) {
    return links[i]->Complete(stage, answer);
  };
  SHOAL_ASSIGN_OR_RETURN(const transport::Negotiated negotiated,
                         transport::Negotiate({.peer = group.NameOf(stage),
                                               .transports = names_,
                                               .left_out = std::vector<bool>(names_.size(), false),
                                               .offer = offer,
                                               .ask = ask,
                                               .complete = complete}));
  request.clear_offers();
  request.set_confirmed(names_[negotiated.transport]);
  SHOAL_RETURN_IF_ERROR(AskUntil(stage, request, deadline));
  Tell(stage, names_[negotiated.transport], negotiated.reason);
  return std::move(links[negotiated.transport]);
}

absl::StatusOr<transport::TakenOffer> StageConnections::Accept(
    const proto::ConnectStageRequest& request, const LinkMemory& memory) {
  const int from = request.from();
  if (request.callee_bytes() != memory.slots.bytes ||
      request.caller_bytes() != memory.peer_slots.bytes) {
    return FailedPrecondition(
        "{} plans {} and {} bytes for messages to and from this stage, which plans {} and {}: they "
        "have different schedules",
        options_.group.NameOf(from), request.callee_bytes(), request.caller_bytes(),
        memory.slots.bytes, memory.peer_slots.bytes);
  }
  std::unique_ptr<TransportLinks> links;
  {
    absl::MutexLock lock(&mutex_);
    links = std::move(accepted_[from].links);
  }
  links.reset();  // of an earlier call, whose answer was lost
  SHOAL_ASSIGN_OR_RETURN(
      transport::TakenOffer taken,
      transport::TakeOffer(names_, transport::ReadOffers(request.offers()),
                           options_.group.NameOf(from), unavailable_,
                           [&](size_t i, const std::string& offer) -> absl::StatusOr<std::string> {
                             SHOAL_ASSIGN_OR_RETURN(links, NewLinks(from, i, memory));
                             return links->Accept(from, offer);
                           }));
  absl::MutexLock lock(&mutex_);
  accepted_[from] = {std::move(links), taken.reason};
  return taken;
}

void StageConnections::AwaitLentMemory(const std::map<int, LinkMemory>& neighbours) {
  const absl::Time deadline = RealClock().Now() + options_.parting_patience;
  for (const auto& [stage, memory] : neighbours) {
    const auto stop = [this] { return !cancelled().ok(); };
    if (!lent_[static_cast<size_t>(stage)].AwaitGone(deadline - RealClock().Now(), stop) &&
        !stop()) {
      LogWarning("{} still has memory of {} open that it had for earlier messages",
                 options_.group.NameOf(stage), options_.device->name());
    }
  }
}

absl::StatusOr<StageConnections::Links> StageConnections::Connect(
    const std::map<int, LinkMemory>& neighbours, const StepAttempt& attempt,
    absl::Duration timeout) {
  const absl::Time deadline = RealClock().Now() + timeout;
  AwaitLentMemory(neighbours);
  SHOAL_RETURN_IF_ERROR(cancelled());
  SHOAL_RETURN_IF_ERROR(service_->Expect(
      attempt,
      [&](const proto::ConnectStageRequest& request) -> absl::StatusOr<transport::TakenOffer> {
        const auto neighbour = neighbours.find(request.from());
        if (neighbour == neighbours.end()) {
          return FailedPrecondition("{} is no neighbour in this schedule, or is connected",
                                    options_.group.NameOf(request.from()));
        }
        return Accept(request, neighbour->second);
      }));
  auto links = ConnectExpected(neighbours, attempt, deadline);
  service_->EndExpect();
  std::map<int, Accepted> unconfirmed;  // destroyed without the lock: waits for their end
  absl::MutexLock lock(&mutex_);
  unconfirmed.swap(accepted_);
  return links;
}

absl::StatusOr<StageConnections::Links> StageConnections::ConnectExpected(
    const std::map<int, LinkMemory>& neighbours, const StepAttempt& attempt, absl::Time deadline) {
  Links links;
  for (const auto& [stage, memory] : neighbours) {
    if (stage > options_.group.stage) {
      SHOAL_ASSIGN_OR_RETURN(links[stage], Call(stage, memory, attempt, deadline));
    }
  }
  for (const auto& [stage, memory] : neighbours) {
    if (stage < options_.group.stage) {
      SHOAL_ASSIGN_OR_RETURN(const std::string transport,
                             service_->AwaitConfirmed(stage, deadline));
      absl::MutexLock lock(&mutex_);
      Tell(stage, transport, accepted_[stage].reason);
      links[stage] = std::move(accepted_[stage].links);
    }
  }
  return links;
}

}  // namespace shoal::worker
