// Reads JSON that others wrote. Nothing here throws or recurses with the text; errors are one line
// that names the place, the key and what was found there.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace shoal {

using Json = nlohmann::json;

// Deeper documents are refused, since nlohmann's dump() recurses.
inline constexpr int kMaxJsonDepth = 64;

enum class RepeatedKeys { kLastWins, kRefuse };  // of the outermost object

// The line of each key, by its path: "rope_scaling.factor". Keys within arrays are not there.
using JsonLines = std::map<std::string, int64_t, std::less<>>;

// Parses a whole document. `where` names it in errors, e.g. by its file.
absl::StatusOr<Json> ParseJson(std::string_view text, std::string_view where,
                               RepeatedKeys repeated = RepeatedKeys::kLastWins);
// The same; sets `lines`, of the first few thousand keys, unless all is one line.
absl::StatusOr<Json> ParseJson(std::string_view text, std::string_view where, JsonLines& lines);

// Reads and parses a whole file of at most 64 MiB (the index of a very large model takes a few).
absl::StatusOr<Json> ReadJson(const std::string& path);

// Reads typed fields of an object. A null value counts as absent.
class JsonObject {
 public:
  // `where` names the object in messages, e.g. "tokenizer.json: normalizer"; with the lines of a
  // document, of which this is the outermost object, it is the file. Both must outlive the result.
  static absl::StatusOr<JsonObject> From(const Json& json, std::string where,
                                         const JsonLines* lines = nullptr);

  // Refuses keys that are not listed: ignoring them would silently drop what they mean.
  absl::Status AllowOnly(std::initializer_list<std::string_view> keys) const;

  const Json* Find(std::string_view key) const;  // null if absent
  absl::StatusOr<const Json*> Require(std::string_view key) const;

  absl::StatusOr<std::string> String(std::string_view key) const;
  absl::StatusOr<std::string> StringOr(std::string_view key, std::string fallback) const;
  absl::StatusOr<bool> BoolOr(std::string_view key, bool fallback) const;
  absl::StatusOr<double> Number(std::string_view key) const;
  absl::StatusOr<double> NumberOr(std::string_view key, double fallback) const;
  absl::StatusOr<int64_t> Integer(std::string_view key, int64_t low = INT64_MIN,
                                  int64_t high = INT64_MAX) const;
  absl::StatusOr<int64_t> IntegerOr(std::string_view key, int64_t fallback) const;
  absl::StatusOr<const Json*> Array(std::string_view key) const;
  absl::StatusOr<JsonObject> Object(std::string_view key) const;

  const Json& json() const { return *json_; }
  const std::string& where() const { return where_; }
  // Names a key in messages: "config.json:31: rope_scaling.factor" with lines, without them
  // "config.json: rope_scaling: factor".
  std::string At(std::string_view key) const;

 private:
  JsonObject(const Json* json, std::string where, const JsonLines* lines, std::string path)
      : json_(json), where_(std::move(where)), lines_(lines), path_(std::move(path)) {}
  std::string PathOf(std::string_view key) const;
  // Returns the value of `key` if it is there and `is_right`.
  absl::StatusOr<const Json*> Typed(std::string_view key, bool (Json::*is_right)() const,
                                    const char* expected) const;

  const Json* json_;
  std::string where_;
  const JsonLines* lines_;  // may be null
  std::string path_;        // from the outermost object; only with lines
};

// Returns the integer if it is one and lies in [low, high].
absl::StatusOr<int64_t> IntegerIn(const Json& json, int64_t low, int64_t high,
                                  std::string_view where);

}  // namespace shoal
