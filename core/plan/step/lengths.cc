#include "core/plan/step/lengths.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "core/base/status.h"

namespace shoal::plan {
namespace {

using Kind = LengthDistribution::Kind;

constexpr int64_t kMaxTokens = int64_t{1} << 30;

const std::map<std::string, LengthDistribution, std::less<>>& Named() {
  static const auto& named = *new std::map<std::string, LengthDistribution, std::less<>>{
      {"longalign", {Kind::kLognormal, 9.497, 0.75, 1000, 65536}},
      {"swe-smith", {Kind::kLognormal, 10.275, 0.66, 2000, 131072}},
      {"aime", {Kind::kLognormal, 9.011, 0.60, 500, 24000}},
  };
  return named;
}

std::vector<std::string_view> Split(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t colon = text.find(':');
    parts.push_back(text.substr(0, colon));
    if (colon == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(colon + 1);
  }
}

// Parses the numbers after the name; nullopt if one is not a number.
std::optional<std::vector<double>> Numbers(const std::vector<std::string_view>& parts) {
  std::vector<double> numbers;
  for (size_t i = 1; i < parts.size(); ++i) {
    double value = 0;
    const char* last = parts[i].data() + parts[i].size();
    const auto [end, error] = std::from_chars(parts[i].data(), last, value);
    if (error != std::errc() || end != last || !std::isfinite(value)) {
      return std::nullopt;
    }
    numbers.push_back(value);
  }
  return numbers;
}

LengthDistribution Scaled(LengthDistribution distribution, double longest) {
  const double factor = longest / static_cast<double>(distribution.high);
  distribution.mu += std::log(factor);
  distribution.low =
      std::max<int64_t>(1, std::llround(static_cast<double>(distribution.low) * factor));
  distribution.high = std::llround(longest);
  return distribution;
}

std::optional<LengthDistribution> Build(std::string_view name, const std::vector<double>& numbers) {
  const auto named = Named().find(name);
  if (named != Named().end() && numbers.size() <= 1) {
    return numbers.empty() ? named->second : Scaled(named->second, numbers[0]);
  }
  const auto tokens = [&](size_t i) { return static_cast<int64_t>(numbers[i]); };
  if (name == "fixed" && numbers.size() == 1) {
    return LengthDistribution{Kind::kUniform, 0, 0, tokens(0), tokens(0)};
  }
  if (name == "uniform" && numbers.size() == 2) {
    return LengthDistribution{Kind::kUniform, 0, 0, tokens(0), tokens(1)};
  }
  if (name == "lognormal" && numbers.size() == 4) {
    return LengthDistribution{Kind::kLognormal, numbers[0], numbers[1], tokens(2), tokens(3)};
  }
  return std::nullopt;
}

// A lognormal must have something to draw between its ends, or drawing would not end.
bool IsUsable(const LengthDistribution& d) {
  if (d.low < 1 || d.high < d.low || d.high > kMaxTokens) {
    return false;
  }
  const double low = std::log(static_cast<double>(d.low));
  const double high = std::log(static_cast<double>(d.high));
  return d.kind == Kind::kUniform ||
         (d.sigma > 0 && d.mu >= low && d.mu <= high && high - low >= d.sigma / 100);
}

}  // namespace

std::vector<std::string> LengthForms() {
  return {"longalign, swe-smith, aime: as in those data sets",
          "longalign:N (or another name): scaled so that the longest has N tokens", "fixed:N",
          "uniform:LOW:HIGH",
          "lognormal:MU:SIGMA:LOW:HIGH: of the logarithm of the tokens, cut off at both ends; "
          "exp(MU) lies between them"};
}

absl::StatusOr<LengthDistribution> ParseLengths(std::string_view text) {
  const std::vector<std::string_view> parts = Split(text);
  const auto numbers = Numbers(parts);
  // Bounds first: casting a large double would be undefined.
  const bool in_range = numbers && std::all_of(numbers->begin(), numbers->end(), [](double value) {
                          return std::abs(value) <= static_cast<double>(kMaxTokens);
                        });
  const auto distribution = in_range ? Build(parts[0], *numbers) : std::nullopt;
  if (!distribution || !IsUsable(*distribution)) {
    return InvalidArgument("lengths '{}': expected one of {}", text.substr(0, 100),
                           fmt::join(LengthForms(), "; "));
  }
  return *distribution;
}

int64_t DrawLength(const LengthDistribution& distribution, Random& random) {
  if (distribution.kind == Kind::kUniform) {
    return random.Between(distribution.low, distribution.high);
  }
  while (true) {
    const double value = std::exp(distribution.mu + distribution.sigma * random.Normal());
    if (value >= static_cast<double>(distribution.low) &&
        value <= static_cast<double>(distribution.high)) {
      return std::llround(value);
    }
  }
}

}  // namespace shoal::plan
