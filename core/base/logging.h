// Logs go to stderr, one line each: time, level, process name, message. Programs call InitLogging
// once in main, before other threads start (it replaces the logger, which they use without a lock),
// and NameProcess when they learn their name. Libraries log through the functions below (fmt
// formatting). Keys, tokens and prompts are never logged.
#pragma once

#include <string>

#include "spdlog/spdlog.h"

namespace shoal {

struct LogOptions {
  std::string process = "shoal";  // e.g. "server-1"
  std::string level = "info";     // trace, debug, info, warn, error, off
  bool json = false;              // one JSON object per line
  bool keep = false;              // lines of info and above, for ProcessLines (kept_lines.h)
};
void InitLogging(const LogOptions& options);
// Takes effect from the next line on. Thread-safe; call it only a few times per process, as names
// are kept.
void NameProcess(const std::string& name);

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
