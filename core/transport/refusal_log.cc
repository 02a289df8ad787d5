#include "core/transport/refusal_log.h"

#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::transport {

void RefusalLog::Refused(const absl::Status& why) {
  const absl::Time now = RealClock().Now();
  absl::MutexLock lock(&mutex_);
  if (now < next_) {
    ++left_out_;
    return;
  }
  LogWarning("{}: refused a dial: {}{}", transport_, Message(why),
             left_out_ > 0 ? fmt::format(" ({} more since the last such line)", left_out_) : "");
  next_ = now + absl::Seconds(1);
  left_out_ = 0;
}

}  // namespace shoal::transport
