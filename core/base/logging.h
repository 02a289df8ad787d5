// Logs go to stderr, one line each: time, level, process name, message; or, for programs that read
// them, one JSON object each. Programs call InitLogging once in main, before other threads start
// (it replaces the logger, which they use without a lock), and NameProcess when they learn their
// index. Libraries log through the functions below (fmt formatting). Keys, tokens and prompts are
// never logged.
#pragma once

#include <cstdint>
#include <string>

#include "spdlog/spdlog.h"

namespace shoal {

struct LogOptions {
  std::string role = "shoal";  // "server"
  std::string level = "info";  // trace, debug, info, warn, error, off
  bool json = false;           // {"ts", "level", "role", "index", "pid", "job", "step", "message"}
  bool keep = false;           // lines of info and above, for ProcessLines (kept_lines.h)
};
void InitLogging(const LogOptions& options);

// The next two are thread-safe and hold from the next line on.
// Gives the process's index among those of its role: in text, "server-1".
void NameProcess(int index);
// Says what the process works on, for lines as JSON: a job and, once one is under way, its step.
// Without a job ("") they have neither.
void SetLogContext(const std::string& job, int64_t step = 0);

// The common names, so that call sites do not depend on spdlog's namespace: LogInfo("step {} took
// {}", ...).
using spdlog::fmt_lib::format_string;
template <typename... Args>
void LogDebug(format_string<Args...> format, Args&&... args) {
  spdlog::debug(format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogInfo(format_string<Args...> format, Args&&... args) {
  spdlog::info(format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogWarning(format_string<Args...> format, Args&&... args) {
  spdlog::warn(format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogError(format_string<Args...> format, Args&&... args) {
  spdlog::error(format, std::forward<Args>(args)...);
}

}  // namespace shoal
