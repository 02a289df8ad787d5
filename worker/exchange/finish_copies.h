// The end of a step's copies between a device and the host.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/backend/backend.h"

namespace shoal::worker {

// Waits until nothing on the stream is under way, so that what its copies read and write may be
// used for something else. A copy that failed was told to whoever wanted it and is forgotten, for
// the next attempt starts anew. DeadlineExceeded, which calls them `copies`: they are still under
// way after `timeout`.
absl::Status FinishCopies(Stream& stream, absl::Duration timeout, std::string_view copies);

}  // namespace shoal::worker
