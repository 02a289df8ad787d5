#include "core/base/refusal_log.h"

#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal {

void RefusalLog::Refused(const absl::Status& why) {
  const absl::Time now = RealClock().Now();
  absl::MutexLock lock(&mutex_);
  if (now < next_) {
    ++left_out_;
    return;
  }
  LogWarning("{}: {}{}", what_, Message(why),
             left_out_ > 0 ? fmt::format(" ({} more since the last such line)", left_out_) : "");
  next_ = now + absl::Seconds(1);
  left_out_ = 0;
}

}  // namespace shoal
