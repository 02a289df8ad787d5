#include "core/rpc/newest_term.h"

#include <algorithm>

#include "core/base/status.h"
#include "core/base/testing/planted.h"

namespace shoal::rpc {

absl::Status NewestTerm::Admit(int64_t term, std::string_view what) {
  absl::MutexLock lock(&mutex_);
  if (term < newest_ && !SHOAL_PLANTED("term-unchecked")) {
    return Aborted(
        "{} is of term {} of the coordinator, and term {} has begun: a later life has taken over, "
        "end the earlier one",
        what, term, newest_);
  }
  newest_ = std::max(newest_, term);
  return absl::OkStatus();
}

void NewestTerm::Forget() {
  absl::MutexLock lock(&mutex_);
  newest_ = 0;
}

}  // namespace shoal::rpc
