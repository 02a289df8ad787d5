#include "core/data/tokenizer/tokenizer_fields.h"

#include <algorithm>

#include "core/base/status.h"

namespace shoal::worker {

absl::StatusOr<Json> ParseJson(std::string_view text, std::string_view where) {
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& error) {
    // Keeps what follows the place: "[json.exception.parse_error.101] parse error at line 1, column
    // 5: syntax error ...".
    std::string_view reason = error.what();
    if (const size_t colon = reason.find(": "); colon != std::string_view::npos) {
      reason.remove_prefix(colon + 2);
    }
    return InvalidArgument("{}: not valid JSON at byte {}: {}", where, error.byte, reason);
  } catch (const nlohmann::json::exception& error) {
    return InvalidArgument("{}: not valid JSON: {}", where, error.what());
  }
}

absl::StatusOr<JsonObject> JsonObject::From(const Json& json, std::string where) {
  if (!json.is_object()) {
    return InvalidArgument("{} is {}, an object was expected", where, json.type_name());
  }
  return JsonObject(&json, std::move(where));
}

absl::Status JsonObject::AllowOnly(std::initializer_list<std::string_view> keys) const {
  for (const auto& item : json_->items()) {
    if (std::find(keys.begin(), keys.end(), item.key()) == keys.end()) {
      return InvalidArgument("{}: key '{}' is not supported", where_, item.key());
    }
  }
  return absl::OkStatus();
}

const Json* JsonObject::Find(std::string_view key) const {
  const auto found = json_->find(std::string(key));
  return found == json_->end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<const Json*> JsonObject::Require(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) {
    return InvalidArgument("{}: '{}' is missing", where_, key);
  }
  return value;
}

absl::StatusOr<std::string> JsonObject::String(std::string_view key) const {
  SHOAL_ASSIGN_OR_RETURN(const Json* value, Require(key));
  if (!value->is_string()) {
    return InvalidArgument("{}: '{}' is {}, a string was expected", where_, key,
                           value->type_name());
  }
  return value->get_ref<const std::string&>();
}

absl::StatusOr<std::string> JsonObject::StringOr(std::string_view key, std::string fallback) const {
  return Find(key) == nullptr ? absl::StatusOr<std::string>(std::move(fallback)) : String(key);
}

absl::StatusOr<bool> JsonObject::BoolOr(std::string_view key, bool fallback) const {
  const Json* value = Find(key);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_boolean()) {
    return InvalidArgument("{}: '{}' is {}, true or false was expected", where_, key,
                           value->type_name());
  }
  return value->get<bool>();
}

absl::StatusOr<int64_t> JsonObject::Integer(std::string_view key, int64_t low, int64_t high) const {
  SHOAL_ASSIGN_OR_RETURN(const Json* value, Require(key));
  return IntegerIn(*value, low, high, fmt::format("{}: '{}'", where_, key));
}

absl::StatusOr<const Json*> JsonObject::Array(std::string_view key) const {
  SHOAL_ASSIGN_OR_RETURN(const Json* value, Require(key));
  if (!value->is_array()) {
    return InvalidArgument("{}: '{}' is {}, an array was expected", where_, key,
                           value->type_name());
  }
  return value;
}

absl::StatusOr<int64_t> IntegerIn(const Json& json, int64_t low, int64_t high,
                                  std::string_view where) {
  if (!json.is_number_integer()) {
    return InvalidArgument("{} is {}, an integer was expected", where,
                           json.is_number() ? "a fraction" : json.type_name());
  }
  const bool too_large =
      json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t value = too_large ? INT64_MAX : json.get<int64_t>();
  if (too_large || value < low || value > high) {
    return InvalidArgument("{} is {}, outside of [{}, {}]", where, json.dump(), low, high);
  }
  return value;
}

}  // namespace shoal::worker
