#include "core/job/job_values.h"

#include <charconv>
#include <cmath>
#include <map>

#include "core/base/bytes.h"
#include "core/base/net/address.h"
#include "core/base/status.h"
#include "yaml-cpp/yaml.h"

namespace shoal::plan {
namespace {

// Returns the text in the file, shortened for a message.
std::string Found(const YAML::Node& node) {
  if (!node.IsDefined() || node.IsNull()) {
    return "is empty";
  }
  if (node.IsMap()) {
    return "is a map";
  }
  if (node.IsSequence()) {
    return "is a list";
  }
  std::string text = node.Scalar();
  if (text.size() > 60) {
    text = text.substr(0, 57) + "...";
  }
  return fmt::format("is '{}'", text);
}

absl::Status Unexpected(const YAML::Node& node, std::string_view expected) {
  return InvalidArgument("{}, expected {}", Found(node), expected);
}

template <typename T>
bool ParseWhole(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string Describe(const IntegerRange& range) {
  return range.high == std::numeric_limits<int64_t>::max()
             ? fmt::format("integer of at least {}", range.low)
             : fmt::format("integer from {} to {}", range.low, range.high);
}

std::string Describe(const NumberRange& range) {
  std::string text =
      fmt::format("number {} {}", range.low_open ? "above" : "of at least", range.low);
  if (std::isfinite(range.high)) {
    text += fmt::format(" and {} {}", range.high_open ? "below" : "at most", range.high);
  }
  return text;
}

absl::StatusOr<std::string> ParseScalar(const YAML::Node& node, const std::string& expected) {
  if (!node.IsScalar()) {
    return Unexpected(node, expected);
  }
  return node.Scalar();
}

absl::StatusOr<int64_t> ParseInteger(const YAML::Node& node, const IntegerRange& range) {
  int64_t value = 0;
  if (!node.IsScalar() || !ParseWhole(node.Scalar(), value) || value < range.low ||
      value > range.high) {
    return Unexpected(node, "an " + Describe(range));
  }
  return value;
}

absl::StatusOr<uint64_t> ParseSeed(const YAML::Node& node) {
  uint64_t value = 0;
  if (!node.IsScalar() || !ParseWhole(node.Scalar(), value)) {
    return Unexpected(node, "an integer from 0 to 2^64 - 1");
  }
  return value;
}

absl::StatusOr<int64_t> ParseByteCount(const YAML::Node& node, const IntegerRange& range) {
  const absl::StatusOr<int64_t> value =
      node.IsScalar() ? ParseBytes(node.Scalar()) : absl::StatusOr<int64_t>(-1);
  if (!value.ok() || *value < range.low || *value > range.high) {
    return Unexpected(node, fmt::format("bytes from {} to {}, like 4MiB", FormatBytes(range.low),
                                        FormatBytes(range.high)));
  }
  return value;
}

absl::StatusOr<double> ParseNumber(const YAML::Node& node, const NumberRange& range) {
  double value = 0;
  const bool parsed = node.IsScalar() && ParseWhole(node.Scalar(), value) && std::isfinite(value);
  const bool low = range.low_open ? value > range.low : value >= range.low;
  const bool high = range.high_open ? value < range.high : value <= range.high;
  if (!parsed || !low || !high) {
    return Unexpected(node, "a " + Describe(range));
  }
  return value;
}

absl::StatusOr<bool> ParseBoolean(const YAML::Node& node) {
  if (node.IsScalar() && (node.Scalar() == "true" || node.Scalar() == "false")) {
    return node.Scalar() == "true";
  }
  return Unexpected(node, "true or false");
}

absl::StatusOr<std::string> ParseText(const YAML::Node& node) {
  if (!node.IsScalar() || node.Scalar().empty()) {
    return Unexpected(node, "text");
  }
  return node.Scalar();
}

absl::StatusOr<std::vector<std::string>> ParseTextList(const YAML::Node& node) {
  if (!node.IsSequence()) {
    return Unexpected(node, "a list");
  }
  std::vector<std::string> values;
  for (const YAML::Node& item : node) {
    SHOAL_ASSIGN_OR_RETURN(std::string text, ParseText(item));
    values.push_back(std::move(text));
  }
  return values;
}

absl::StatusOr<std::vector<double>> ParseNumberList(const YAML::Node& node,
                                                    const NumberRange& range) {
  if (!node.IsSequence()) {
    return Unexpected(node, "a list of numbers");
  }
  std::vector<double> values;
  for (const YAML::Node& item : node) {
    SHOAL_ASSIGN_OR_RETURN(const double value, ParseNumber(item, range));
    values.push_back(value);
  }
  return values;
}

absl::StatusOr<std::string> ParseAddresses(const YAML::Node& node) {
  const std::string text = node.IsScalar() ? node.Scalar() : "";
  return AreAddresses(text) ? absl::StatusOr<std::string>(text) : Unexpected(node, "HOST:PORT");
}

absl::StatusOr<double> ParseRate(std::string_view text) {
  static const auto& units = *new std::map<std::string_view, double>{
      {"b/s", 1 / 8.0},       {"Kb/s", 1e3 / 8}, {"Mb/s", 1e6 / 8}, {"Gb/s", 1e9 / 8},
      {"Tb/s", 1e12 / 8},     {"B/s", 1},        {"KB/s", 1e3},     {"MB/s", 1e6},
      {"GB/s", 1e9},          {"TB/s", 1e12},    {"KiB/s", 1024},   {"MiB/s", 1048576.0},
      {"GiB/s", 1073741824.0}};
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view suffix = text.substr(static_cast<size_t>(end - text.data()));
  suffix.remove_prefix(std::min(suffix.find_first_not_of(' '), suffix.size()));
  const auto unit = units.find(suffix);
  if (error != std::errc() || unit == units.end() || !std::isfinite(value) || value <= 0) {
    return InvalidArgument("'{}' is not a rate; write it like 25Gb/s or 3.1GB/s",
                           text.substr(0, 60));
  }
  return value * unit->second;
}

std::string PrintNumber(double value) { return fmt::format("{}", value); }

std::string PrintBytes(int64_t bytes) {
  if (bytes % kMiB == 0) {
    return fmt::format("{}MiB", bytes / kMiB);
  }
  return bytes % kKiB == 0 ? fmt::format("{}KiB", bytes / kKiB) : std::to_string(bytes);
}

}  // namespace shoal::plan
