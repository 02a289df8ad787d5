// Copies of more than the core's own cache holds, around the caches.
//
// memcpy brings every line of the destination into the cache before it overwrites it, so memory is
// read twice and written once, and hardware prefetching starts anew at each page. Here the
// destination is written past the caches, and four pages are copied side by side, so that as many
// streams are prefetched: 1.7 times memcpy on the machine of bench/results. What is copied is not
// in the cache afterwards; of so much only the end would be.
#pragma once

#include <cstddef>

namespace shoal::transport {

// From how many bytes on, of all that is copied in one go, StreamingCopy pays: half of the second
// level cache, which both sides of the copy share.
size_t StreamingCopyBytes();

// As memcpy. Visible to other threads and processes in the order of the stores around it.
void StreamingCopy(std::byte* to, const std::byte* from, size_t size);

}  // namespace shoal::transport
