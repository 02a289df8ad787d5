#include "core/job/yaml_error.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <vector>

#include "core/base/status.h"

namespace shoal::plan {
namespace {

constexpr size_t kQuoted = 80;  // characters of a line, enough to recognise it

std::vector<std::string_view> LinesOf(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  lines.push_back(text);
  return lines;
}

// Returns the line without indentation, short and printable.
std::string Quote(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  std::string text(line.substr(0, kQuoted));
  std::ranges::replace_if(
      text, [](char c) { return std::iscntrl(static_cast<unsigned char>(c)) != 0; }, ' ');
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

struct Bracket {
  char kind = 0;
  size_t line = 0;
};

// Tells the brackets of flow maps and lists from those in quotes and comments.
class Brackets {
 public:
  void Read(char c, size_t line) {
    const char before = before_;
    before_ = c;
    if (comment_ || quote_ != 0) {
      comment_ = comment_ && c != '\n';
      quote_ = c == quote_ && !(c == '"' && before == '\\') ? 0 : quote_;
      return;
    }
    const bool starts =
        before == '\n' || std::string_view(" [{,:").find(before) != std::string::npos;
    if (starts && (c == '\'' || c == '"')) {
      quote_ = c;
    } else if (c == '#' && (before == '\n' || before == ' ')) {
      comment_ = true;
    } else if (c == '{' || c == '[') {
      open_.push_back({c, line});
    } else if ((c == '}' || c == ']') && !open_.empty()) {
      open_.pop_back();
    }
  }
  std::optional<Bracket> innermost() const {
    return open_.empty() ? std::nullopt : std::optional(open_.back());
  }

 private:
  char before_ = '\n';
  char quote_ = 0;
  bool comment_ = false;
  std::vector<Bracket> open_;
};

std::optional<Bracket> NeverClosed(const std::vector<std::string_view>& lines) {
  Brackets brackets;
  for (size_t line = 0; line < lines.size(); ++line) {
    for (const char c : lines[line]) {
      brackets.Read(c, line);
    }
    brackets.Read('\n', line);
  }
  return brackets.innermost();
}

bool IsIndentedByTab(std::string_view line) {
  const size_t text = line.find_first_not_of(" \t");
  return text != std::string_view::npos && line.substr(0, text).find('\t') != std::string::npos;
}

}  // namespace

absl::Status YamlError(const std::string& file_name, std::string_view yaml,
                       const YAML::Exception& error) {
  const std::vector<std::string_view> lines = LinesOf(yaml);
  const auto at = [&](size_t line, std::string_view what) {
    return InvalidArgument("{}:{}: not valid YAML: {}, in '{}'", file_name, line + 1, what,
                           Quote(lines[line]));
  };
  const size_t stopped =
      std::min(static_cast<size_t>(std::max(error.mark.line, 0)), lines.size() - 1);
  if (error.msg.starts_with("end of map flow") || error.msg.starts_with("end of sequence flow")) {
    if (const auto bracket = NeverClosed(lines); bracket.has_value()) {
      return at(bracket->line, fmt::format("the {} is never closed", bracket->kind));
    }
  }
  const auto tab = std::find_if(lines.begin(), lines.begin() + static_cast<ptrdiff_t>(stopped) + 1,
                                IsIndentedByTab);
  if (tab != lines.begin() + static_cast<ptrdiff_t>(stopped) + 1) {
    return at(static_cast<size_t>(tab - lines.begin()),
              "a tab indents this line; indent with spaces");
  }
  return at(stopped, error.msg);
}

}  // namespace shoal::plan
