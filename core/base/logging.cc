#include "core/base/logging.h"

#include <atomic>
#include <deque>
#include <memory>

#include "absl/synchronization/mutex.h"
#include "spdlog/pattern_formatter.h"
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
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

void NameProcess(const std::string& name) {
  process_name.store(Keep(name), std::memory_order_release);
}

}  // namespace shoal
