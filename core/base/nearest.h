// What somebody who misspelt a name may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// Of `candidates` the one that takes the fewest edits to become `text`; empty where there is none.
std::string Nearest(std::string_view text, const std::vector<std::string>& candidates);

}  // namespace shoal
