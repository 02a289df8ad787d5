#include "cli/terminal/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/base/check.h"
#include "fmt/format.h"

namespace shoal::cli {
namespace {

constexpr int kDefaultColumns = 80;
constexpr int kMaximumColumns = 160;  // a longer bar or line is no easier to read

bool StartsCodePoint(char byte) { return (static_cast<unsigned char>(byte) & 0xC0u) != 0x80u; }

std::string_view Escape(Colour colour) {
  switch (colour) {
    case Colour::kRed:
      return "\033[31m";
    case Colour::kGreen:
      return "\033[32m";
    case Colour::kYellow:
      return "\033[33m";
    case Colour::kDim:
      return "\033[2m";
    case Colour::kBold:
      return "\033[1m";
  }
  return "";
}

}  // namespace

Terminal DescribeTerminal(bool is_terminal, int columns, const char* no_color, const char* term) {
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  Terminal terminal;
  terminal.interactive = is_terminal && !dumb;
  terminal.colour = terminal.interactive && (no_color == nullptr || *no_color == '\0');
  terminal.width = columns > 0 ? std::min(columns, kMaximumColumns) : kDefaultColumns;
  return terminal;
}

Terminal DetectTerminal(int file_descriptor) {
  winsize size{};
  const bool sized = ioctl(file_descriptor, TIOCGWINSZ, &size) == 0;
  return DescribeTerminal(isatty(file_descriptor) == 1, sized ? size.ws_col : 0,
                          std::getenv("NO_COLOR"), std::getenv("TERM"));
}

std::string Paint(const Terminal& terminal, Colour colour, std::string_view text) {
  if (!terminal.colour) {
    return std::string(text);
  }
  return fmt::format("{}{}\033[0m", Escape(colour), text);
}

int DisplayWidth(std::string_view utf8) {
  return static_cast<int>(std::count_if(utf8.begin(), utf8.end(), StartsCodePoint));
}

std::string Shorten(std::string_view utf8, int columns) {
  if (DisplayWidth(utf8) <= columns) {
    return std::string(utf8);
  }
  const int keep = std::max(0, columns - 3);
  size_t end = 0;
  int seen = 0;
  while (end < utf8.size() && (seen < keep || !StartsCodePoint(utf8[end]))) {
    seen += StartsCodePoint(utf8[end]) ? 1 : 0;
    ++end;
  }
  return std::string(utf8.substr(0, end)) +
         std::string("...").substr(0, static_cast<size_t>(std::max(0, columns)));
}

std::string MakePrintable(std::string_view utf8) {
  std::string result;
  result.reserve(utf8.size());
  for (const char byte : utf8) {
    const auto value = static_cast<unsigned char>(byte);
    if (byte == '\n') {
      result += "\\n";
    } else if (byte == '\t') {
      result += "\\t";
    } else if (value < 0x20 || value == 0x7F) {
      result += fmt::format("\\x{:02x}", value);
    } else {
      result += byte;
    }
  }
  return result;
}

void Table::Add(std::vector<std::string> cells) {
  SHOAL_CHECK(cells.size() == columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::Render(const Terminal& terminal) const {
  std::vector<int> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    int width = DisplayWidth(columns_[c].title);
    for (const auto& row : rows_) {
      width = std::max(width, DisplayWidth(row[c]));
    }
    widths.push_back(width);
  }
  const auto cell = [&](size_t c, const std::string& text) {
    const std::string padding(static_cast<size_t>(widths[c] - DisplayWidth(text)), ' ');
    return columns_[c].align == Align::kRight ? padding + text : text + padding;
  };
  const auto line = [&](const auto& text_of) {
    std::string result;
    for (size_t c = 0; c < columns_.size(); ++c) {
      result += (c == 0 ? "" : "  ") + cell(c, text_of(c));
    }
    result.erase(result.find_last_not_of(' ') + 1);
    return result;
  };
  std::string result =
      Paint(terminal, Colour::kBold, line([&](size_t c) { return columns_[c].title; })) + "\n";
  for (const auto& row : rows_) {
    result += line([&](size_t c) { return row[c]; }) + "\n";
  }
  return result;
}

std::string WithThousands(int64_t value) {
  std::string digits = std::to_string(value);
  const int64_t first = value < 0 ? 1 : 0;
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

std::string FormatMfu(double mfu) { return mfu > 0 ? fmt::format(", mfu {:.0f}%", 100 * mfu) : ""; }

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) {
    return "?";
  }
  if (seconds < 10) {
    return fmt::format("{:.1f}s", seconds);
  }
  const auto whole = static_cast<int64_t>(std::llround(std::min(seconds, 1e9)));
  if (whole < 60) {
    return fmt::format("{}s", whole);
  }
  if (whole < 3600) {
    return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  }
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

}  // namespace shoal::cli
