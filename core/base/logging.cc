#include "core/base/logging.h"

#include <unistd.h>

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/kept_lines.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/sinks/stdout_color_sinks.h"

namespace shoal {
namespace {

// What lines say of the process that writes them.
struct Context {
  std::string role;
  int index = -1;
  std::string job;
  int64_t step = 0;
};
absl::Mutex context_mutex(absl::kConstInit);

Context& ProcessContext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(context_mutex) {
  static auto& context = *new Context();
  return context;
}

Context CurrentContext() {
  absl::MutexLock lock(&context_mutex);
  return ProcessContext();
}

std::string NameOf(const Context& process) {
  return process.index < 0 ? process.role : fmt::format("{}-{}", process.role, process.index);
}

// %N: the process's name when the line is written.
class ProcessNameFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& /*message*/, const std::tm& /*time*/,
              spdlog::memory_buf_t& line) override {
    const std::string name = NameOf(CurrentContext());
    line.append(name.data(), name.data() + name.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<ProcessNameFlag>();
  }
};

// One object a line. Messages may quote what came from the network: bytes that are not UTF-8 are
// replaced.
class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    const Context process = CurrentContext();
    const spdlog::string_view_t level = spdlog::level::to_string_view(message.level);
    nlohmann::ordered_json object = {
        {"ts", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::FromChrono(message.time),
                                absl::UTCTimeZone())},
        {"level", std::string(level.data(), level.size())},
        {"role", process.role}};
    if (process.index >= 0) {
      object["index"] = process.index;
    }
    object["pid"] = ::getpid();
    if (!process.job.empty()) {
      object["job"] = process.job;
      if (process.step > 0) {
        object["step"] = process.step;
      }
    }
    object["message"] = std::string(message.payload.data(), message.payload.size());
    const std::string text =
        object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    line.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<formatter> clone() const override { return std::make_unique<JsonFormatter>(); }
};

std::unique_ptr<spdlog::formatter> MakeFormatter(bool json) {
  if (json) {
    return std::make_unique<JsonFormatter>();
  }
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<ProcessNameFlag>('N').set_pattern("%Y-%m-%d %H:%M:%S.%e %^%-5l%$ %N: %v");
  return formatter;
}

class KeepingSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& line) override {
    const spdlog::string_view_t level = spdlog::level::to_string_view(line.level);
    ProcessLines().Add({.time = RealClock().Now(),
                        .level = std::string(level.data(), level.size()),
                        .message = std::string(line.payload.data(), line.payload.size())});
  }
  void flush_() override {}
};

}  // namespace

void InitLogging(const LogOptions& options) {
  {
    absl::MutexLock lock(&context_mutex);
    ProcessContext() = {.role = options.role};
  }
  auto logger = std::make_shared<spdlog::logger>(
      "shoal", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_level(spdlog::level::from_str(options.level));
  logger->set_formatter(MakeFormatter(options.json));
  if (options.keep) {
    auto keeping = std::make_shared<KeepingSink>();
    keeping->set_level(spdlog::level::info);
    logger->sinks().push_back(std::move(keeping));
  }
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

void NameProcess(int index) {
  absl::MutexLock lock(&context_mutex);
  ProcessContext().index = index;
}

void SetLogContext(const std::string& job, int64_t step) {
  absl::MutexLock lock(&context_mutex);
  Context& process = ProcessContext();
  process.job = job;
  process.step = step;
}

}  // namespace shoal
