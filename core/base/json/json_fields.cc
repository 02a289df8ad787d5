#include "core/base/json/json_fields.h"

#include <cmath>
#include <limits>

#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/status.h"

namespace shoal::formats {
namespace {

using nlohmann::json;

constexpr int64_t kMaxJsonBytes = 64 * kMiB;  // the index of a very large model takes a few

}  // namespace

absl::StatusOr<json> ParseJsonObject(const std::string& text, const std::string& file_name) {
  json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded() || !object.is_object()) {
    return InvalidArgument("{}: not a JSON object", file_name);
  }
  return object;
}

absl::StatusOr<json> ReadJsonObject(const std::string& path) {
  SHOAL_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxJsonBytes));
  return ParseJsonObject(text, path);
}

const json* JsonFields::Find(const std::string& key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

absl::Status JsonFields::WrongType(const std::string& key, const char* expected) const {
  std::string found = Find(key)->dump(-1, ' ', true, json::error_handler_t::replace);
  if (found.size() > 60) {
    found = found.substr(0, 57) + "...";
  }
  return InvalidArgument("{}: {} is {}, expected {}", file_name_, key, found, expected);
}

absl::Status JsonFields::Require(const std::string& key) const {
  return Find(key) != nullptr ? absl::OkStatus()
                              : InvalidArgument("{}: {} is missing", file_name_, key);
}

absl::Status JsonFields::Integer(const std::string& key, int64_t& out) const {
  const json* value = Find(key);
  if (value == nullptr) {
    return absl::OkStatus();
  }
  const bool fits =
      value->is_number_integer() &&
      (!value->is_number_unsigned() ||
       value->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  if (!fits) {
    return WrongType(key, "an integer");
  }
  out = value->get<int64_t>();
  return absl::OkStatus();
}

absl::Status JsonFields::Number(const std::string& key, double& out) const {
  const json* value = Find(key);
  if (value == nullptr) {
    return absl::OkStatus();
  }
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    return WrongType(key, "a number");
  }
  out = value->get<double>();
  return absl::OkStatus();
}

absl::Status JsonFields::Boolean(const std::string& key, bool& out) const {
  const json* value = Find(key);
  if (value == nullptr) {
    return absl::OkStatus();
  }
  if (!value->is_boolean()) {
    return WrongType(key, "true or false");
  }
  out = value->get<bool>();
  return absl::OkStatus();
}

absl::Status JsonFields::String(const std::string& key, std::string& out) const {
  const json* value = Find(key);
  if (value == nullptr) {
    return absl::OkStatus();
  }
  if (!value->is_string()) {
    return WrongType(key, "a string");
  }
  out = value->get<std::string>();
  return absl::OkStatus();
}

}  // namespace shoal::formats
