#include "core/base/logging.h"

#include <atomic>
#include <deque>
#include <memory>

#include "absl/synchronization/mutex.h"
#include "core/base/clock.h"
#include "core/base/kept_lines.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/sinks/stdout_color_sinks.h"

namespace shoal {
namespace {

// The current name. Names are few and kept forever, so that a thread in the middle of a line may
// still read the previous one.
std::atomic<const std::string*> process_name = nullptr;

const std::string* Keep(const std::string& name) {
  static absl::Mutex mutex(absl::kConstInit);
  static auto& names = *new std::deque<std::string>();
  absl::MutexLock lock(&mutex);
  return &names.emplace_back(name);
}

// %N: the process's name when the line is written.
class ProcessNameFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& /*message*/, const std::tm& /*time*/,
              spdlog::memory_buf_t& line) override {
    const std::string& name = *process_name.load(std::memory_order_acquire);
    line.append(name.data(), name.data() + name.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<ProcessNameFlag>();
  }
};

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
  NameProcess(options.process);
  auto logger = std::make_shared<spdlog::logger>(
      "shoal", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_level(spdlog::level::from_str(options.level));
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<ProcessNameFlag>('N').set_pattern(
      options.json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",)"
                     R"("process":"%N","pid":%P,"message":"%v"})"
                   : "%Y-%m-%d %H:%M:%S.%e %^%-5l%$ %N: %v");
  logger->set_formatter(std::move(formatter));
  if (options.keep) {
    auto keeping = std::make_shared<KeepingSink>();
    keeping->set_level(spdlog::level::info);
    logger->sinks().push_back(std::move(keeping));
  }
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

void NameProcess(const std::string& name) {
  process_name.store(Keep(name), std::memory_order_release);
}

}  // namespace shoal
