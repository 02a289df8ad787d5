#include "tests/support/process_memory.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>

#include "fmt/format.h"

namespace shoal::testing {
namespace {

std::optional<std::string> StatusField(const std::string& pid, const std::string& key) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":\t")) {
      return line.substr(key.size() + 2);
    }
  }
  return std::nullopt;
}

int64_t KilobytesOf(pid_t pid, const std::string& key) {
  const auto kilobytes = StatusField(std::to_string(pid), key);
  return kilobytes.has_value() ? std::stoll(*kilobytes) : 0;
}

}  // namespace

std::vector<pid_t> ChildrenOf(pid_t parent, const std::string& name) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename();
    pid_t number = 0;
    const bool is_process =
        std::from_chars(pid.data(), pid.data() + pid.size(), number).ec == std::errc();
    if (is_process && StatusField(pid, "PPid") == std::to_string(parent) &&
        StatusField(pid, "Name") == name.substr(0, 15)) {
      children.push_back(number);
    }
  }
  return children;
}

int64_t ResidentBytes(pid_t pid) { return KilobytesOf(pid, "VmRSS") * 1024; }

int64_t PeakResidentBytes(pid_t pid) { return KilobytesOf(pid, "VmHWM") * 1024; }

}  // namespace shoal::testing
