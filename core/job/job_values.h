// Reads and prints single values of files of keys and values: jobs, and described clusters
// (core/sim).
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace YAML {
class Node;
}

namespace shoal::plan {

struct IntegerRange {
  int64_t low = 0;
  int64_t high = std::numeric_limits<int64_t>::max();
};
struct NumberRange {
  double low = 0;
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;   // excludes low
  bool high_open = false;  // excludes high
};

std::string Describe(const IntegerRange& range);  // "integer from 1 to 10"
std::string Describe(const NumberRange& range);   // "number above 0"

// Errors read "is 'x', expected ...".
absl::StatusOr<std::string> ParseScalar(const YAML::Node& node, const std::string& expected);
absl::StatusOr<int64_t> ParseInteger(const YAML::Node& node, const IntegerRange& range);
absl::StatusOr<uint64_t> ParseSeed(const YAML::Node& node);
absl::StatusOr<int64_t> ParseByteCount(const YAML::Node& node, const IntegerRange& range);
absl::StatusOr<double> ParseNumber(const YAML::Node& node, const NumberRange& range);
absl::StatusOr<bool> ParseBoolean(const YAML::Node& node);
absl::StatusOr<std::string> ParseText(const YAML::Node& node);
absl::StatusOr<std::vector<std::string>> ParseTextList(const YAML::Node& node);
absl::StatusOr<std::vector<double>> ParseNumberList(const YAML::Node& node,
                                                    const NumberRange& range);
// HOST:PORT, or several with commas.
absl::StatusOr<std::string> ParseAddresses(const YAML::Node& node);
// Parses "25Gb/s" (bits), "3.1GB/s", "12.5GiB/s" to bytes per second.
absl::StatusOr<double> ParseRate(std::string_view text);

std::string PrintNumber(double value);
// Prints "4MiB" if it is a whole number of those, otherwise KiB or bytes.
std::string PrintBytes(int64_t bytes);

}  // namespace shoal::plan
