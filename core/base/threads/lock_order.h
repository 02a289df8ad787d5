// Debian builds Abseil with deadlock detection on: every Lock of a Mutex enters a graph of lock
// orders, under a lock of the whole process, which costs several hundred instructions. Tests keep
// it; programs turn it off first thing in main.
#pragma once

namespace shoal {

void StopCheckingLockOrder();

}  // namespace shoal
