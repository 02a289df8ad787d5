// Bugs planted on purpose, each behind its name, to prove that the simulation finds such bugs
// (tests/simulation/plants.h). Only a library that is built for tests with SHOAL_PLANTS has them;
// elsewhere a point is the constant false.
#pragma once

#include <string_view>

#ifdef SHOAL_PLANTS
namespace shoal {
inline constinit thread_local std::string_view planted;  // the one that is there; empty: none
}
#define SHOAL_PLANTED(name) (::shoal::planted == (name))
#else
#define SHOAL_PLANTED(name) false
#endif
