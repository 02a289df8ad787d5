#include "worker/pipeline/links/linked_pair.h"

#include <utility>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace shoal::worker {

LinkedPair::LinkedPair(CommunicatorPair::Options options)
    : options_(std::move(options)), control_(options_.stage, options_.peer), communicators_([this] {
        CommunicatorPair::Options with = options_;
        with.check = [this] { return Check(); };
        return with;
      }()) {}

absl::Status LinkedPair::BeginStep(StageLinks& host, std::span<const plan::MessageQueue> control) {
  const bool anew = !communicators_.connected();
  SHOAL_RETURN_IF_ERROR(control_.BeginStep(host, control, anew));
  if (!anew) {
    return absl::OkStatus();
  }
  LinkIds ids;
  if (control_.lower()) {
    SHOAL_ASSIGN_OR_RETURN(ids, communicators_.NewIds());
    SHOAL_RETURN_IF_ERROR(control_.SayIds(ids));
  } else {
    SHOAL_ASSIGN_OR_RETURN(ids, HearIds());
  }
  Watch(&host);
  const absl::Status connected = communicators_.Connect(ids);
  Watch(nullptr);
  return connected;
}

absl::StatusOr<LinkIds> LinkedPair::HearIds() {
  const absl::Time deadline = RealClock().Now() + options_.timeout;
  absl::StatusOr<LinkIds> ids = control_.HearIds([&]() -> absl::Status {
    if (RealClock().Now() >= deadline) {
      return DeadlineExceeded("stage {} did not say them within {}", options_.peer,
                              absl::FormatDuration(options_.timeout));
    }
    return options_.check ? options_.check() : absl::OkStatus();
  });
  if (!ids.ok()) {
    return Annotate(ids.status(), "the ids of communicators");
  }
  return ids;
}

absl::Status LinkedPair::Check() {
  if (options_.check) {
    SHOAL_RETURN_IF_ERROR(options_.check());
  }
  absl::MutexLock lock(&mutex_);
  return connecting_over_ != nullptr ? connecting_over_->status() : absl::OkStatus();
}

void LinkedPair::Watch(StageLinks* host) {
  absl::MutexLock lock(&mutex_);
  connecting_over_ = host;
}

}  // namespace shoal::worker
