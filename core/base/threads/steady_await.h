// absl::Mutex::AwaitWithTimeout whose limits keep to the steady clock: absl waits until a time of
// the wall's clock, so one that is set back keeps it waiting for as long.
//
// One thread of the process ends all waits whose limit is over. It sleeps until the earliest of
// them, and a wait that ends before its limit does not wake it.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace shoal {

// Blocks until `condition` holds or `limit` is over; returns whether it holds. Releases `mutex`
// meanwhile, and returns with it held.
bool AwaitFor(absl::Mutex* mutex, const absl::Condition& condition, absl::Duration limit)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

// Same as above until `deadline` of RealClock().
bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, absl::Time deadline)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

}  // namespace shoal
