// Guesses what somebody who misspelt a name meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// Returns the candidate that takes the fewest edits to become `text`; empty if even that takes
// edits at half of the letters.
std::string Nearest(std::string_view text, const std::vector<std::string>& candidates);

// For the end of a message: "did you mean X?", or "known are X, Y" where none is near.
std::string DidYouMean(std::string_view text, const std::vector<std::string>& candidates);

}  // namespace shoal
