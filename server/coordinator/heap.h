// The heap of a coordinator's process.
#pragma once

#include <malloc.h>

namespace shoal::server {

// Called first in main.
inline void SetUpHeap() {
  mallopt(M_ARENA_MAX, 2);  // one for each of many threads grows with every job
  // What the messages of a step take, those of the next take again: the kernel does not get it back
  // in between. To set the first keeps the second from growing by itself, which large ones need.
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
}

}  // namespace shoal::server
