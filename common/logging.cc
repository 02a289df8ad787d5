#include "common/logging.h"

#include "spdlog/sinks/stdout_color_sinks.h"

namespace shoal {

void InitLogging(const LogOptions& options) {
  auto logger = std::make_shared<spdlog::logger>(options.process, std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_level(spdlog::level::from_str(options.level));
  logger->set_pattern(options.json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","process":"%n","pid":%P,"message":"%v"})"
                                   : "%Y-%m-%d %H:%M:%S.%e %^%-5l%$ %n: %v");
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace shoal
