#include "core/transport/verbs/connection.h"

#include <sched.h>

#include <algorithm>

#include "absl/time/clock.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace shoal::transport {

VerbsConnectionState::VerbsConnectionState(const ConnectionOptions& options,
                                           const VerbsOptions& verbs,
                                           std::shared_ptr<VerbsQueueCore> queue,
                                           std::shared_ptr<const RegistrationTable> table,
                                           std::shared_ptr<GpuRegistrar> gpus, const Terms& terms)
    : id_(NextConnectionId()),
      options_(options),
      verbs_(verbs),
      terms_(terms),
      credit_step_(static_cast<uint64_t>(std::max<int64_t>(1, terms.doorbells_here / 4))),
      queue_(std::move(queue)),
      outstanding_(options.max_outstanding),
      table_(std::move(table)),
      gpus_(std::move(gpus)),
      cache_(table_.get()) {}

VerbsConnectionState::~VerbsConnectionState() = default;

absl::Status VerbsConnectionState::Start(std::vector<std::unique_ptr<ConnectionRail>> rails,
                                         int64_t doorbells_there) {
  absl::MutexLock lock(&mutex_);
  doorbells_there_ = doorbells_there;
  rails_ = std::move(rails);
  largest_piece_ = LargestPiece();
  for (const auto& region : options_.exposed) {
    NoteGpu(static_cast<const VerbsRegion&>(*region).registration());
  }
  for (const auto& rail : rails_) {
    // Also opens the acceptor's windows, so that they exist when it welcomes the peer.
    SHOAL_ASSIGN_OR_RETURN(rail->told, rail->Expose(options_.exposed));
    if (!terms_.is_acceptor) {
      SHOAL_RETURN_IF_ERROR(
          rail->Send(ConnectionRail::Slot::kGreeting, EncodeHello(terms_.secret, rail->told)));
    }
  }
  PostWaiting();
  return failed_;
}

absl::Status VerbsConnectionState::end_status() const {
  absl::MutexLock lock(&mutex_);
  return end_status_;
}

std::vector<int64_t> VerbsConnectionState::remote_region_sizes() const {
  absl::MutexLock lock(&mutex_);
  std::vector<int64_t> sizes;
  for (const RemoteRegion& region : remote_regions_) {
    sizes.push_back(region.bytes);
  }
  return sizes;
}

absl::Status VerbsConnectionState::WhyUnusable() const {
  if (closing_ || ended() || !failed_.ok()) {
    return Unavailable("{}: the connection is closed", peer());
  }
  return FailedPrecondition("{}: the peer has not completed the handshake yet", peer());
}

void VerbsConnectionState::Fail(const absl::Status& status) {
  if (failed_.ok()) {
    failed_ = status;
  }
}

bool VerbsConnectionState::HasWaiting() const {
  absl::MutexLock lock(&mutex_);
  return std::ranges::any_of(
      rails_, [](const auto& rail) { return rail != nullptr && rail->sends().pending(); });
}

void VerbsConnectionState::PostOn(size_t index) {
  SendQueue& sends = rails_[index]->sends();
  const absl::Status posted = sends.Post();
  if (!posted.ok()) [[unlikely]] {
    if (index == 0) {
      Fail(Annotate(posted, peer()));
    } else {
      GiveUpRail(index, posted);
    }
  } else if (sends.pending()) {
    queue_->AskForHelp();
  }
}

void VerbsConnectionState::NoteGpu(const Registration& target) {
  const GpuRegistration* gpu = target.gpu();
  if (gpu != nullptr &&
      std::ranges::find(gpu_targets_, gpu->gpu, &GpuRegistration::gpu) == gpu_targets_.end()) {
    gpu_targets_.push_back(*gpu);
  }
}

bool VerbsConnectionState::AwaitGpus() {
  for (const GpuRegistration& target : gpu_targets_) {
    if (const absl::Status visible = gpus_->AwaitVisible(target); !visible.ok()) {
      Fail(Annotate(visible, peer()));
      return false;
    }
  }
  return true;
}

void VerbsConnectionState::GiveCredit() {
  if (doorbells_polled_.load(std::memory_order_relaxed) == 0) {
    return;
  }
  absl::MutexLock lock(&mutex_);
  if (CreditIsDue()) {
    GiveCreditLocked();
  }
}

void VerbsConnectionState::GiveCreditLocked() {
  if (!open() || closing_) {
    return;
  }
  const uint64_t polled = doorbells_polled_.load(std::memory_order_relaxed);
  // If one is in flight, the next one carries its news as well.
  if (rails_[0]->Send(ConnectionRail::Slot::kCredit, EncodeCredit(polled)).ok()) {
    credit_given_ = polled;
    PostWaiting();
  }
}

void VerbsConnectionState::Tick(EventSink& sink) {
  absl::MutexLock lock(&mutex_);
  if (!open()) {
    return;
  }
  for (size_t index = 0; index < rails_.size(); ++index) {
    ConnectionRail* rail = rails_[index].get();
    if (rail == nullptr || !rail->ready) {
      continue;
    }
    rail->silent_ticks = rail->heard ? 0 : rail->silent_ticks + 1;
    rail->heard = false;
    if (rail->silent_ticks == 0) {
      continue;
    }
    if (rail->sends().idle()) {
      rail->sends().Add({.kind = Work::Kind::kProbe});
      rail->silent_ticks = 0;
    } else if (rail->silent_ticks >= kTicksPerKeepAlive) {
      // The device retries and gives up by itself, but if it does not, nobody waits forever.
      const absl::Status silent = Unavailable(
          "{}: the peer does not answer; nothing was heard of it within the keep-alive", peer());
      if (index == 0) {
        Fail(silent);
      } else {
        GiveUpRail(index, silent);
      }
    }
  }
  PostWaiting();
  if (!failed_.ok()) {
    EndLocked(failed_, sink);
  }
}

void VerbsConnectionState::Arm(EventSink& sink) {
  absl::MutexLock lock(&mutex_);
  for (const auto& rail : rails_) {
    if (rail != nullptr) {
      if (const absl::Status armed = rail->Arm(); !armed.ok()) {
        EndLocked(Annotate(armed, peer()), sink);
        return;
      }
    }
  }
}

void VerbsConnectionState::HearEvent(const ibv_cq* cq) {
  absl::MutexLock lock(&mutex_);
  for (const auto& rail : rails_) {
    if (rail != nullptr && rail->pair().cq() == cq) {
      rail->Disarm();
    }
  }
}

bool VerbsConnectionState::Uses(const ibv_context* context, uint32_t queue_pair) const {
  absl::MutexLock lock(&mutex_);
  return std::ranges::any_of(rails_, [&](const auto& rail) {
    return rail != nullptr && rail->pair().device().context() == context &&
           (queue_pair == kAnyQueuePair || rail->pair().number() == queue_pair);
  });
}

// Completes what a reset queue pair has done; the rest completes with `why`.
void VerbsConnectionState::EndLocked(const absl::Status& why, EventSink& sink) {
  if (ended()) {
    return;
  }
  const bool announced = terms_.is_acceptor || open();
  for (size_t index = 0; index < rails_.size(); ++index) {
    if (rails_[index] != nullptr) {
      DrainRail(index, sink);
    }
  }
  absl::Status told = why;
  if (goodbye_heard_ && !closing_) {
    told = absl::OkStatus();
  }
  const absl::Status lost =
      told.ok() ? Unavailable("{}: the peer closed the connection", peer()) : told;
  std::vector<Work> left;
  for (const auto& rail : rails_) {
    if (rail != nullptr) {
      rail->sends().TakeAll([&](const Work& work) { left.push_back(work); });
    }
  }
  rails_.clear();  // nothing is transferred from here on
  phase_.store(Phase::kEnded);
  end_status_ = told;
  for (const Work& work : left) {
    EndOperation(work, lost, sink);
  }
  if (announced) {
    sink.Push(*this, {.kind = Event::Kind::kClosed,
                      .connection = id_,
                      .operation = 0,
                      .immediate = 0,
                      .status = told});
  }
}

void VerbsConnectionState::End(const absl::Status& why, EventSink& sink) {
  absl::MutexLock lock(&mutex_);
  EndLocked(why, sink);
}

bool VerbsConnectionState::SayGoodbye() {
  absl::MutexLock lock(&mutex_);
  const bool first = !closing_;
  closing_ = true;
  if (!first || !open() || !failed_.ok()) {
    return open();
  }
  if (rails_[0]->Send(ConnectionRail::Slot::kGoodbye, EncodeGoodbye()).ok()) {
    PostWaiting();
  }
  return failed_.ok();
}

bool VerbsConnectionState::GoodbyeIsOut() const {
  absl::MutexLock lock(&mutex_);
  return ended() || rails_[0]->sends().idle();
}

void VerbsConnectionState::Close(const absl::Status& why) {
  if (SayGoodbye()) {
    const absl::Time patience = RealClock().Now() + verbs_.goodbye_patience;
    for (int look = 0; !GoodbyeIsOut() && RealClock().Now() < patience; ++look) {
      // It usually takes microseconds; a slow peer gets the rest of the time.
      if (look < 100) {
        sched_yield();
      } else {
        absl::SleepFor(absl::Microseconds(50));
      }
      queue_->Drive(*this);
    }
  }
  queue_->End(*this, why);
}

}  // namespace shoal::transport
