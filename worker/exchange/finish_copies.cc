#include "worker/exchange/finish_copies.h"

#include "core/base/status.h"

namespace shoal::worker {

absl::Status FinishCopies(Stream& stream, absl::Duration timeout, std::string_view copies) {
  if (!stream.Record()->WaitDone(timeout)) {
    return DeadlineExceeded("{}: not done within {}", copies, absl::FormatDuration(timeout));
  }
  stream.Synchronize().IgnoreError();
  return absl::OkStatus();
}

}  // namespace shoal::worker
