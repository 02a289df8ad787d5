#include "core/base/json/json.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

#include "absl/strings/str_join.h"
#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/status.h"

namespace shoal {
namespace {

constexpr size_t kMaxReason = 200;  // bytes of an error; a damaged text may hold one endless string

using Dom = nlohmann::detail::json_sax_dom_parser<Json>;

// Builds the document and stops at the first thing that is wrong.
class BoundedDom : public Dom {
 public:
  BoundedDom(Json& root, RepeatedKeys repeated)
      : Dom(root, /*allow_exceptions=*/false), repeated_(repeated) {}

  bool start_object(size_t size) { return Enter() && Dom::start_object(size); }
  bool start_array(size_t size) { return Enter() && Dom::start_array(size); }
  bool end_object() { return --depth_, Dom::end_object(); }
  bool end_array() { return --depth_, Dom::end_array(); }
  bool key(std::string& name) {
    if (depth_ == 1) {
      outermost_key_ = name;
      if (repeated_ == RepeatedKeys::kRefuse && !keys_.insert(name).second) {
        return Refuse(fmt::format("'{}' appears twice", name));
      }
    }
    return Dom::key(name);
  }
  template <class Exception>
  bool parse_error(size_t byte, const std::string&, const Exception& error) {
    // Keeps what follows the place: "[json.exception.parse_error.101] parse error at line 1, column
    // 5: syntax error ...".
    const std::string_view reason = error.what();
    const size_t colon = reason.find(": ");
    return Refuse(fmt::format("not valid JSON at byte {}: {}", byte,
                              reason.substr(colon == std::string_view::npos ? 0 : colon + 2)));
  }

  const std::string& reason() const { return reason_; }

 private:
  bool Enter() {
    return ++depth_ <= kMaxJsonDepth ||
           Refuse(fmt::format("nested more than {} deep in '{}'", kMaxJsonDepth, outermost_key_));
  }
  bool Refuse(std::string reason) {
    reason_ = std::move(reason);
    return false;
  }

  const RepeatedKeys repeated_;
  int depth_ = 0;
  std::set<std::string> keys_;
  std::string outermost_key_;
  std::string reason_;
};

// Reads a text and counts its lines.
class LineIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  LineIterator(const char* at, int64_t& line) : at_(at), line_(&line) {}
  reference operator*() const { return *at_; }
  LineIterator& operator++() {
    *line_ += *at_ == '\n' ? 1 : 0;
    ++at_;
    return *this;
  }
  bool operator==(const LineIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  int64_t* line_;
};

// Notes in which line each key stands.
class LinedDom : public BoundedDom {
 public:
  LinedDom(Json& root, const int64_t& line, JsonLines& lines)
      : BoundedDom(root, RepeatedKeys::kLastWins), line_(line), lines_(lines) {}

  bool start_object(size_t size) { return path_.emplace_back(), BoundedDom::start_object(size); }
  bool start_array(size_t size) { return ++arrays_, BoundedDom::start_array(size); }
  bool end_object() { return path_.pop_back(), BoundedDom::end_object(); }
  bool end_array() { return --arrays_, BoundedDom::end_array(); }
  bool key(std::string& name) {
    path_.back() = name.substr(0, kMaxKey);
    if (arrays_ == 0 && lines_.size() < kMaxLines) {
      lines_[absl::StrJoin(path_, ".")] = line_;
    }
    return BoundedDom::key(name);
  }

 private:
  static constexpr size_t kMaxLines = 4096;  // hostile documents have more, and longer ones
  static constexpr size_t kMaxKey = 100;
  const int64_t& line_;
  JsonLines& lines_;
  std::vector<std::string> path_;  // a key of each object around
  int arrays_ = 0;                 // around
};

absl::Status Unexpected(std::string_view where, const Json& found, std::string_view expected) {
  std::string shown = found.is_structured() ? found.type_name() : found.dump(-1, ' ', true);
  if (shown.size() > 60) {
    shown = shown.substr(0, 57) + "...";
  }
  return InvalidArgument("{} is {}, expected {}", where, shown, expected);
}

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text, std::string_view where,
                               RepeatedKeys repeated) {
  Json root;
  BoundedDom dom(root, repeated);
  if (!Json::sax_parse(text.begin(), text.end(), &dom)) {
    return InvalidArgument("{}: {}", where, dom.reason().substr(0, kMaxReason));
  }
  return root;
}

absl::StatusOr<Json> ParseJson(std::string_view text, std::string_view where, JsonLines& lines) {
  Json root;
  int64_t line = 1;
  LinedDom dom(root, line, lines);
  if (!Json::sax_parse(LineIterator(text.data(), line),
                       LineIterator(text.data() + text.size(), line), &dom)) {
    return InvalidArgument("{}: {}", where, dom.reason().substr(0, kMaxReason));
  }
  if (line == 1) {
    lines.clear();  // it tells nothing
  }
  return root;
}

absl::StatusOr<Json> ReadJson(const std::string& path) {
  SHOAL_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, 64 * kMiB));
  return ParseJson(text, path);
}

absl::StatusOr<JsonObject> JsonObject::From(const Json& json, std::string where,
                                            const JsonLines* lines) {
  if (!json.is_object()) {
    return Unexpected(where, json, "an object");
  }
  return JsonObject(&json, std::move(where), lines, /*path=*/"");
}

std::string JsonObject::PathOf(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

std::string JsonObject::At(std::string_view key) const {
  if (lines_ == nullptr) {
    return fmt::format("{}: {}", where_, key);
  }
  const auto line = lines_->find(PathOf(key));
  return line == lines_->end() ? fmt::format("{}: {}", where_, PathOf(key))
                               : fmt::format("{}:{}: {}", where_, line->second, line->first);
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
  const auto found = json_->find(key);
  return found == json_->end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<const Json*> JsonObject::Require(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) {
    return InvalidArgument("{} is missing", At(key));
  }
  return value;
}

absl::StatusOr<const Json*> JsonObject::Typed(std::string_view key, bool (Json::*is_right)() const,
                                              const char* expected) const {
  SHOAL_ASSIGN_OR_RETURN(const Json* value, Require(key));
  if (!(value->*is_right)()) {
    return Unexpected(At(key), *value, expected);
  }
  return value;
}

absl::StatusOr<std::string> JsonObject::String(std::string_view key) const {
  SHOAL_ASSIGN_OR_RETURN(const Json* value, Typed(key, &Json::is_string, "a string"));
  return value->get_ref<const std::string&>();
}

absl::StatusOr<std::string> JsonObject::StringOr(std::string_view key, std::string fallback) const {
  return Find(key) == nullptr ? absl::StatusOr<std::string>(std::move(fallback)) : String(key);
}

absl::StatusOr<bool> JsonObject::BoolOr(std::string_view key, bool fallback) const {
  if (Find(key) == nullptr) {
    return fallback;
  }
  SHOAL_ASSIGN_OR_RETURN(const Json* value, Typed(key, &Json::is_boolean, "true or false"));
  return value->get<bool>();
}

absl::StatusOr<double> JsonObject::Number(std::string_view key) const {
  SHOAL_ASSIGN_OR_RETURN(const Json* value, Typed(key, &Json::is_number, "a number"));
  return value->get<double>();
}

absl::StatusOr<double> JsonObject::NumberOr(std::string_view key, double fallback) const {
  return Find(key) == nullptr ? fallback : Number(key);
}

absl::StatusOr<int64_t> JsonObject::Integer(std::string_view key, int64_t low, int64_t high) const {
  SHOAL_ASSIGN_OR_RETURN(const Json* value, Require(key));
  return IntegerIn(*value, low, high, At(key));
}

absl::StatusOr<int64_t> JsonObject::IntegerOr(std::string_view key, int64_t fallback) const {
  return Find(key) == nullptr ? fallback : Integer(key);
}

absl::StatusOr<const Json*> JsonObject::Array(std::string_view key) const {
  return Typed(key, &Json::is_array, "an array");
}

absl::StatusOr<JsonObject> JsonObject::Object(std::string_view key) const {
  SHOAL_ASSIGN_OR_RETURN(const Json* value, Typed(key, &Json::is_object, "an object"));
  return lines_ == nullptr ? JsonObject(value, At(key), nullptr, "")
                           : JsonObject(value, where_, lines_, PathOf(key));
}

absl::StatusOr<int64_t> IntegerIn(const Json& json, int64_t low, int64_t high,
                                  std::string_view where) {
  const bool fits = json.is_number_integer() &&
                    (!json.is_number_unsigned() || json.get<uint64_t>() <= uint64_t{INT64_MAX});
  const int64_t value = fits ? json.get<int64_t>() : 0;
  if (!fits || value < low || value > high) {
    const bool bounded = low != INT64_MIN || high != INT64_MAX;
    return Unexpected(where, json,
                      bounded ? fmt::format("an integer from {} to {}", low, high) : "an integer");
  }
  return value;
}

}  // namespace shoal
