#include "core/base/nearest.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace shoal {
namespace {

// Returns Levenshtein's distance.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
    }
  }
  return row.back();
}

}  // namespace

std::string Nearest(std::string_view text, const std::vector<std::string>& candidates) {
  text = text.substr(0, 100);  // a hostile key must not cost a long comparison
  std::string best;
  size_t best_distance = std::numeric_limits<size_t>::max();
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(text, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return 2 * best_distance < std::max(text.size(), best.size()) ? best : "";
}

std::string DidYouMean(std::string_view text, const std::vector<std::string>& candidates) {
  const std::string nearest = Nearest(text, candidates);
  return nearest.empty() ? fmt::format("known are {}", fmt::join(candidates, ", "))
                         : fmt::format("did you mean {}?", nearest);
}

}  // namespace shoal
