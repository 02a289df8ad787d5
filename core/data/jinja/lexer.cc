#include "core/data/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "core/base/status.h"
#include "core/base/utf8.h"

namespace shoal::jinja {
namespace {

constexpr size_t kMaxSource = size_t{1} << 20;  // bytes; templates that people use have 30,000
constexpr size_t kMaxName = 200;                // bytes

// The longest first.
constexpr std::array<std::string_view, 24> kOperators = {
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~",
    "<",  ">",  "=",  "(",  ")",  "[",  "]", "{", "}", "|", ",", ":"};

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsName(char c) { return IsNameStart(c) || IsDigit(c); }

// One kind of line end, and none at the end of the file.
std::string Normalized(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      i += i + 1 < source.size() && source[i + 1] == '\n' ? 1 : 0;
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) {
    text.pop_back();
  }
  return text;
}

class Lexer {
 public:
  Lexer(std::string_view source, std::string_view name) : name_(name), text_(Normalized(source)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < text_.size()) {
      SHOAL_RETURN_IF_ERROR(TakeData());
      if (at_ == text_.size()) {
        break;
      }
      const char kind = text_[at_ + 1];
      if (kind == '#') {
        SHOAL_RETURN_IF_ERROR(SkipComment());
      } else if (const std::optional<size_t> body = RawBegin(); body.has_value()) {
        SHOAL_RETURN_IF_ERROR(TakeRaw(*body));
      } else {
        SHOAL_RETURN_IF_ERROR(TakeTag(kind == '{'));
      }
    }
    Put(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  template <typename... Args>
  absl::Status Error(fmt::format_string<Args...> format, Args&&... args) {
    CountLines(std::min(at_, text_.size()));
    return InvalidArgument("{}:{}: {}", name_, line_,
                           fmt::format(format, std::forward<Args>(args)...));
  }

  void CountLines(size_t to) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<int64_t>(counted_),
                                         text_.begin() + static_cast<int64_t>(to), '\n'));
    counted_ = to;
  }

  void Put(Token::Kind kind, std::string text) {
    CountLines(at_);
    tokens_.push_back({kind, std::move(text), line_});
  }

  size_t FindTag() const {
    for (size_t at = text_.find('{', at_); at != std::string::npos; at = text_.find('{', at + 1)) {
      if (at + 1 < text_.size() &&
          std::string_view("{%#").find(text_[at + 1]) != std::string::npos) {
        return at;
      }
    }
    return text_.size();
  }

  // Text up to the next tag, less the white space that the tag takes before it.
  absl::Status TakeData() {
    const size_t tag = FindTag();
    std::string_view data = std::string_view(text_).substr(at_, tag - at_);
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
    if (tag < text_.size() && sign == '-') {
      while (!data.empty() && IsSpace(data.back())) {
        data.remove_suffix(1);
      }
    } else if (tag < text_.size() && sign != '+' && text_[tag + 1] != '{') {
      const size_t line = data.rfind('\n') + 1;  // 0 where there is none
      if ((line > 0 || begins_line_) &&
          std::all_of(data.begin() + static_cast<int64_t>(line), data.end(), IsSpace)) {
        data = data.substr(0, line);
      }
    }
    if (!data.empty()) {
      Put(Token::Kind::kData, std::string(data));
    }
    at_ = tag;
    return absl::OkStatus();
  }

  // `at_` is behind a tag's closing bracket, which `dash` stood before.
  void EndTag(bool dash, bool trims) {
    const size_t begin = at_;
    while (dash && at_ < text_.size() && IsSpace(text_[at_])) {
      ++at_;
    }
    if (trims && !dash && at_ < text_.size() && text_[at_] == '\n') {
      ++at_;
    }
    begins_line_ = at_ > begin && text_[at_ - 1] == '\n';
  }

  absl::Status SkipComment() {
    const size_t end = text_.find("#}", at_ + 2);
    if (end == std::string::npos) {
      return Error("a comment has no end; close it with #}}");
    }
    const char sign = end > at_ + 2 ? text_[end - 1] : ' ';
    at_ = end + 2;
    EndTag(sign == '-', sign != '+');
    return absl::OkStatus();
  }

  // Whether "{% NAME %}" stands at `at`: where it ends, in front of its closing bracket.
  std::optional<size_t> TagOf(std::string_view name, size_t at) const {
    if (text_.compare(at, 2, "{%") != 0) {
      return std::nullopt;
    }
    at += 2;
    at += at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? 1 : 0;
    while (at < text_.size() && IsSpace(text_[at])) {
      ++at;
    }
    if (text_.compare(at, name.size(), name) != 0) {
      return std::nullopt;
    }
    at += name.size();
    while (at < text_.size() && IsSpace(text_[at])) {
      ++at;
    }
    const size_t bracket =
        at + (at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? 1 : 0);
    return text_.compare(bracket, 2, "%}") == 0 ? std::optional(at) : std::nullopt;
  }
  std::optional<size_t> RawBegin() const { return TagOf("raw", at_); }

  absl::Status TakeRaw(size_t close) {
    const bool dash = text_[close] == '-';
    at_ = close + (text_[close] == '%' ? 2 : 3);
    EndTag(dash, false);
    for (size_t end = text_.find("{%", at_); end != std::string::npos;
         end = text_.find("{%", end + 1)) {
      const std::optional<size_t> last = TagOf("endraw", end);
      if (!last.has_value()) {
        continue;
      }
      std::string_view data = std::string_view(text_).substr(at_, end - at_);
      while (text_[end + 2] == '-' && !data.empty() && IsSpace(data.back())) {
        data.remove_suffix(1);
      }
      Put(Token::Kind::kData, std::string(data));
      at_ = *last + (text_[*last] == '%' ? 2 : 3);
      EndTag(text_[*last] == '-', text_[*last] != '+');
      return absl::OkStatus();
    }
    return Error("{{% raw %}} has no {{% endraw %}}");
  }

  absl::Status TakeTag(bool print) {
    const std::string_view close = print ? "}}" : "%}";
    Put(print ? Token::Kind::kPrint : Token::Kind::kBlock, "");
    at_ += 2;
    at_ += at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+') ? 1 : 0;
    std::string open;  // brackets
    while (true) {
      while (at_ < text_.size() && IsSpace(text_[at_])) {
        ++at_;
      }
      if (at_ >= text_.size()) {
        return Error("a tag has no end; close it with {}", close);
      }
      const char sign = text_[at_];
      const size_t bracket = at_ + (sign == '-' || (sign == '+' && !print) ? 1 : 0);
      if (open.empty() && text_.compare(bracket, 2, close) == 0) {
        Put(print ? Token::Kind::kPrintEnd : Token::Kind::kBlockEnd, "");
        at_ = bracket + 2;
        EndTag(sign == '-', !print && sign != '+');
        return absl::OkStatus();
      }
      SHOAL_RETURN_IF_ERROR(TakeToken(open));
    }
  }

  absl::Status TakeToken(std::string& open) {
    const char first = text_[at_];
    size_t end = at_;
    if (IsNameStart(first)) {
      while (end < text_.size() && IsName(text_[end])) {
        ++end;
      }
      if (end - at_ > kMaxName) {
        return Error("a name of more than {} bytes", kMaxName);
      }
      Put(Token::Kind::kName, text_.substr(at_, end - at_));
      at_ = end;
      return absl::OkStatus();
    }
    if (IsDigit(first)) {
      return TakeNumber();
    }
    if (first == '\'' || first == '"') {
      return TakeText(first);
    }
    if (first == '.') {
      Put(Token::Kind::kOperator, ".");
      ++at_;
      return absl::OkStatus();
    }
    for (const std::string_view candidate : kOperators) {
      if (text_.compare(at_, candidate.size(), candidate) == 0) {
        SHOAL_RETURN_IF_ERROR(Balance(candidate[0], open));
        Put(Token::Kind::kOperator, std::string(candidate));
        at_ += candidate.size();
        return absl::OkStatus();
      }
    }
    return Error("unexpected character '{}'", text_.substr(at_, CharacterLength(text_[at_])));
  }

  absl::Status Balance(char bracket, std::string& open) {
    constexpr std::string_view kOpen = "([{";
    constexpr std::string_view kClose = ")]}";
    if (kOpen.find(bracket) != std::string_view::npos) {
      open += bracket;
    } else if (const size_t kind = kClose.find(bracket); kind != std::string_view::npos) {
      if (open.empty() || open.back() != kOpen[kind]) {
        return Error("unexpected '{}'", bracket);
      }
      open.pop_back();
    }
    return absl::OkStatus();
  }

  absl::Status TakeNumber() {
    size_t end = at_;
    const auto digits = [&] {
      while (end < text_.size() && (IsDigit(text_[end]) || text_[end] == '_')) {
        ++end;
      }
    };
    digits();
    Token::Kind kind = Token::Kind::kInteger;
    if (end + 1 < text_.size() && text_[end] == '.' && IsDigit(text_[end + 1])) {
      kind = Token::Kind::kFloat;
      ++end;
      digits();
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const size_t sign =
          end + 1 < text_.size() && (text_[end + 1] == '-' || text_[end + 1] == '+');
      if (end + 1 + sign < text_.size() && IsDigit(text_[end + 1 + sign])) {
        kind = Token::Kind::kFloat;
        end += 1 + sign;
        digits();
      }
    }
    std::string number = text_.substr(at_, end - at_);
    std::erase(number, '_');
    Put(kind, std::move(number));
    at_ = end;
    return absl::OkStatus();
  }

  absl::Status TakeText(char quote) {
    std::string text;
    size_t at = at_ + 1;
    while (at < text_.size() && text_[at] != quote) {
      if (text_[at] != '\\') {
        text += text_[at++];
        continue;
      }
      const size_t used = Unescape(std::string_view(text_).substr(at), text);
      if (used == 0) {
        return Error("a text has an escape that is not supported: {}", text_.substr(at, 2));
      }
      at += used;
    }
    if (at >= text_.size()) {
      return Error("a text has no end; close it with {}", quote);
    }
    Put(Token::Kind::kText, std::move(text));
    at_ = at + 1;
    return absl::OkStatus();
  }

  // Appends what the escape at the start of `from` stands for. Returns its length, 0 if it is none.
  static size_t Unescape(std::string_view from, std::string& text) {
    if (from.size() < 2) {
      return 0;
    }
    constexpr std::string_view kNames = "abfnrtv0\\'\"\n";
    constexpr std::string_view kCharacters("\a\b\f\n\r\t\v\0\\'\"", 11);
    if (const size_t known = kNames.find(from[1]); known != std::string_view::npos) {
      text += kCharacters.substr(std::min(known, kCharacters.size()), 1);
      return 2;
    }
    const size_t digits = from[1] == 'x' ? 2 : from[1] == 'u' ? 4 : from[1] == 'U' ? 8 : 0;
    if (digits == 0) {
      text += '\\';  // as Python leaves it
      return 1;
    }
    char32_t code = 0;
    for (size_t i = 2; i < 2 + digits; ++i) {
      const size_t digit =
          i < from.size()
              ? std::string_view("0123456789abcdef").find(static_cast<char>(from[i] | 0x20))
              : std::string_view::npos;
      if (digit == std::string_view::npos) {
        return 0;
      }
      code = code * 16 + static_cast<char32_t>(digit);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      return 0;
    }
    AppendUtf8(code, text);
    return 2 + digits;
  }

  const std::string_view name_;
  const std::string text_;
  size_t at_ = 0;
  size_t counted_ = 0;  // line ends before it are in line_
  int line_ = 1;
  bool begins_line_ = true;  // whether the last tag took a line end with it
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source, std::string_view name) {
  if (source.size() > kMaxSource) {
    return InvalidArgument("{}: a template of {} bytes; at most {} are read", name, source.size(),
                           kMaxSource);
  }
  if (const std::optional<size_t> invalid = FirstInvalidUtf8(source); invalid.has_value()) {
    return InvalidArgument("{}: not UTF-8 at byte {}", name, *invalid);
  }
  return Lexer(source, name).Run();
}

}  // namespace shoal::jinja
