#include "cli/log_folder.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "core/base/status.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxReadBytes = 4 << 20;  // of a file, at once
constexpr size_t kTimeLength = std::string_view("2026-11-25 20:26:01.123").size();

// The whole lines from `offset` on, which moves behind them.
std::string NewLinesOf(const fs::path& path, int64_t& offset) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const int64_t size = file.tellg();
  offset = offset > size ? 0 : offset;  // written anew
  offset = std::max(offset, size - kMaxReadBytes);
  if (!file || offset == size) {
    return "";
  }
  file.seekg(offset);
  std::string text(static_cast<size_t>(size - offset), '\0');
  file.read(text.data(), std::ssize(text));
  text.resize(text.rfind('\n') + 1);  // npos + 1 is 0
  offset += std::ssize(text);
  return text;
}

}  // namespace

LoggedLine ParseLogLine(std::string_view line, std::string_view process) {
  LoggedLine parsed{.process = std::string(process), .message = std::string(line)};
  if (line.size() < kTimeLength || line[4] != '-' || line[10] != ' ' || line[19] != '.') {
    return parsed;
  }
  const std::string_view rest = line.substr(kTimeLength);
  const size_t level = rest.find_first_not_of(' ');
  const size_t level_end = rest.find(' ', level);
  const size_t name = rest.find_first_not_of(' ', level_end);
  const size_t name_end = rest.find(": ", name);
  if (level == std::string_view::npos || level_end == std::string_view::npos ||
      name == std::string_view::npos || name_end == std::string_view::npos) {
    return parsed;
  }
  return {.time = std::string(line.substr(0, kTimeLength)),
          .level = std::string(rest.substr(level, level_end - level)),
          .process = std::string(rest.substr(name, name_end - name)),
          .message = std::string(rest.substr(name_end + 2))};
}

absl::StatusOr<std::vector<LoggedLine>> LogFolder::Read() {
  std::error_code error;
  std::vector<LoggedLine> lines;
  bool found = false;
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    if (entry.path().extension() != ".log") {
      continue;
    }
    found = true;
    std::string time;
    std::istringstream text(NewLinesOf(entry.path(), offsets_[entry.path().string()]));
    for (std::string line; std::getline(text, line);) {
      LoggedLine& parsed = lines.emplace_back(ParseLogLine(line, entry.path().stem().string()));
      time = parsed.time.empty() ? time : parsed.time;
      parsed.time = time;  // of the line before
    }
  }
  if (!found && offsets_.empty()) {
    return NotFound(
        "no logs in {}: no shoal train runs here, and one that is done keeps them with --keep-logs "
        "alone",
        path_);
  }
  std::ranges::stable_sort(lines, {}, &LoggedLine::time);
  return lines;
}

}  // namespace shoal::cli
