#include "worker/data/lengths.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"

namespace shoal::worker {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr int kMaxDraws = 1000;  // before a draw is taken to be as good as impossible

struct Named {
  std::string_view name;
  double mu;
  double sigma;
  double low;
  double high;
};
constexpr Named kNamed[] = {{"longalign", 9.497, 0.75, 1000, 65536},
                            {"swe-smith", 10.275, 0.66, 2000, 131072},
                            {"aime", 9.011, 0.60, 500, 24000}};

std::vector<std::string_view> SplitAtColons(std::string_view text) {
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

std::optional<double> Number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(value)
             ? std::optional(value)
             : std::nullopt;
}

absl::Status Malformed(std::string_view text, std::string_view why) {
  return InvalidArgument(
      "lengths '{}': {}; forms are uniform:LO:HI, lognormal:MU:SIGMA:LO:HI, longalign, swe-smith "
      "and aime (with :SCALE)",
      text, why);
}

}  // namespace

absl::StatusOr<LengthDistribution> LengthDistribution::Parse(std::string_view text) {
  const std::vector<std::string_view> parts = SplitAtColons(text);
  std::vector<double> numbers;
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::optional<double> number = Number(parts[i]);
    if (!number.has_value()) {
      return Malformed(text, fmt::format("'{}' is not a number", parts[i]));
    }
    numbers.push_back(*number);
  }
  double low = 0;
  double high = 0;
  double mu = 0;
  double sigma = 0;
  const bool lognormal = parts[0] != "uniform";
  const auto named = std::find_if(std::begin(kNamed), std::end(kNamed),
                                  [&](const Named& entry) { return entry.name == parts[0]; });
  if (parts[0] == "uniform" && numbers.size() == 2) {
    low = numbers[0];
    high = numbers[1];
  } else if (parts[0] == "lognormal" && numbers.size() == 4) {
    mu = numbers[0];
    sigma = numbers[1];
    low = numbers[2];
    high = numbers[3];
  } else if (named != std::end(kNamed) && numbers.size() <= 1) {
    const double scale = numbers.empty() ? 1.0 : numbers[0];
    if (!(scale > 0)) {
      return Malformed(text, "the scale must be positive");
    }
    mu = named->mu + std::log(scale);
    sigma = named->sigma;
    low = std::max(1.0, std::floor(named->low * scale));
    high = std::max(low, std::ceil(named->high * scale));
  } else {
    return Malformed(text, "not a known form");
  }
  if (!(low >= 1 && low <= high && high <= static_cast<double>(kMaxTokens)) || sigma < 0) {
    return Malformed(
        text, fmt::format("lengths must be from 1 to {} and LO <= HI, SIGMA >= 0", kMaxTokens));
  }
  return LengthDistribution(lognormal, mu, sigma, static_cast<int64_t>(low),
                            static_cast<int64_t>(high));
}

int64_t LengthDistribution::Draw(Random& random) const {
  if (!lognormal_) {
    return random.Between(low_, high_);
  }
  for (int draw = 0; draw < kMaxDraws; ++draw) {
    const double length = std::exp(mu_ + sigma_ * random.Normal());
    if (length >= static_cast<double>(low_) && length <= static_cast<double>(high_)) {
      return std::llround(length);
    }
  }
  return mu_ < std::log(static_cast<double>(low_)) ? low_ : high_;
}

}  // namespace shoal::worker
