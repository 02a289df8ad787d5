// Reads typed fields of a foreign JSON document. Errors name the place and the field. Unknown keys
// are refused, since ignoring them would silently drop what they mean.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace shoal::worker {

using Json = nlohmann::json;

// Parses a whole document; the error names `where` and the byte. Never throws.
absl::StatusOr<Json> ParseJson(std::string_view text, std::string_view where);

class JsonObject {
 public:
  // `where` names the object in messages, e.g. "tokenizer.json: normalizer". Keeps references:
  // `json` must outlive it.
  static absl::StatusOr<JsonObject> From(const Json& json, std::string where);

  // InvalidArgument for a key that is not in the list.
  absl::Status AllowOnly(std::initializer_list<std::string_view> keys) const;

  // Null if the key is absent or its value is null.
  const Json* Find(std::string_view key) const;
  absl::StatusOr<const Json*> Require(std::string_view key) const;
  absl::StatusOr<std::string> String(std::string_view key) const;
  absl::StatusOr<std::string> StringOr(std::string_view key, std::string fallback) const;
  absl::StatusOr<bool> BoolOr(std::string_view key, bool fallback) const;
  absl::StatusOr<int64_t> Integer(std::string_view key, int64_t low, int64_t high) const;
  absl::StatusOr<const Json*> Array(std::string_view key) const;

  const std::string& where() const { return where_; }

 private:
  JsonObject(const Json* json, std::string where) : json_(json), where_(std::move(where)) {}
  const Json* json_;
  std::string where_;
};

// Returns the integer if it is one and lies in [low, high].
absl::StatusOr<int64_t> IntegerIn(const Json& json, int64_t low, int64_t high,
                                  std::string_view where);

}  // namespace shoal::worker
