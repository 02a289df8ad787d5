// Length distributions of post-training data, as seeded generators for synthetic data, benchmarks
// and the planner's tests. Parameters of the named ones are fits to the means that the ODC paper
// (arXiv 2601.19362) reports for LongAlign, SWE-Smith and AIME; the spread of AIME is a guess.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/random.h"

namespace shoal::plan {

// A lognormal distribution cut off at both ends, or a uniform one.
struct LengthDistribution {
  enum class Kind { kUniform, kLognormal };
  Kind kind = Kind::kUniform;
  double mu = 0;  // of the logarithm
  double sigma = 0;
  int64_t low = 1;  // tokens, inclusive
  int64_t high = 1;

  bool operator==(const LengthDistribution&) const = default;
};

// Parses "longalign", "swe-smith" or "aime", each optionally scaled so that its longest is N
// ("longalign:2048"), or "fixed:N", "uniform:LOW:HIGH", "lognormal:MU:SIGMA:LOW:HIGH".
// InvalidArgument says what is expected.
absl::StatusOr<LengthDistribution> ParseLengths(std::string_view text);

// For help texts: one line per form.
std::vector<std::string> LengthForms();

int64_t DrawLength(const LengthDistribution& distribution, Random& random);

}  // namespace shoal::plan
