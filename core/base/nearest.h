// Guesses what somebody who misspelt a name meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// Returns the candidate that takes the fewest edits to become `text`; empty if there is none.
std::string Nearest(std::string_view text, const std::vector<std::string>& candidates);

}  // namespace shoal
