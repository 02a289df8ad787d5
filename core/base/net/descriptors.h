// How many descriptors connections may take of a process, so that some are left for its files.
#pragma once

namespace shoal {

// Raises the soft limit of this process, as far as connections use more and the hard one allows.
// Call once, when a program starts.
void RaiseDescriptorLimit();

// Of all descriptors of this process at least as many are in use as the number of one that was just
// opened: the kernel takes the lowest that is free. A connection whose number is not below this one
// is one too many. It bounds how many connections there are, too.
int FirstDescriptorForFiles();

}  // namespace shoal
