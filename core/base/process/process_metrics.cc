#include "core/base/process/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_split.h"
#include "core/base/host/host_facts.h"
#include "core/base/memory/host_memory.h"
#include "prometheus/metric_family.h"

namespace shoal {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

MetricFamily Family(const char* name, const char* help, MetricType type, double value) {
  ClientMetric metric;
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  family.metric.push_back(std::move(metric));
  return family;
}

MetricFamily Gauge(const char* name, const char* help, double value) {
  return Family(name, help, MetricType::Gauge, value);
}

double NumberIn(const std::string& text) { return std::strtod(text.c_str(), nullptr); }

// Fields of /proc/self/stat from the third on, as proc(5) numbers them: those before it are the
// process's number and name, and the name may hold anything.
std::vector<std::string> StatFields() {
  const std::string text = ReadProcFile("/proc/self/stat");
  const size_t name_end = text.rfind(") ");
  return name_end == std::string::npos
             ? std::vector<std::string>()
             : std::vector<std::string>(absl::StrSplit(text.substr(name_end + 2), ' '));
}

// When the machine was started, in seconds of the epoch; 0: unknown.
double BootTime() {
  constexpr std::string_view kKey = "\nbtime ";
  const std::string text = ReadProcFile("/proc/stat");
  const size_t at = text.find(kKey);
  return at == std::string::npos ? 0 : NumberIn(text.substr(at + kKey.size()));
}

class ProcessMetrics final : public prometheus::Collectable {
 public:
  std::vector<MetricFamily> Collect() const override {
    std::vector<MetricFamily> all;
    const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
    constexpr size_t kUserTime = 14 - 3;
    constexpr size_t kStartTime = 22 - 3;
    constexpr size_t kResident = 24 - 3;
    if (const std::vector<std::string> stat = StatFields(); stat.size() > kResident) {
      const double cpu = NumberIn(stat[kUserTime]) + NumberIn(stat[kUserTime + 1]);
      all.push_back(Family("process_cpu_seconds_total", "Time on CPUs, of all threads.",
                           MetricType::Counter, cpu / ticks));
      all.push_back(Gauge("process_resident_memory_bytes", "Memory that is resident.",
                          NumberIn(stat[kResident]) * static_cast<double>(sysconf(_SC_PAGESIZE))));
      if (const double booted = BootTime(); booted > 0) {
        all.push_back(Gauge("process_start_time_seconds", "When the process began.",
                            booted + NumberIn(stat[kStartTime]) / ticks));
      }
    }
    all.push_back(Gauge("process_open_fds", "Open file descriptors.",
                        static_cast<double>(EntriesOf("/proc/self/fd").size())));
    if (rlimit files = {}; getrlimit(RLIMIT_NOFILE, &files) == 0) {
      all.push_back(Gauge("process_max_fds", "File descriptors that may be open.",
                          static_cast<double>(files.rlim_cur)));
    }
    if (const auto memory = ReadHostMemory(); memory.ok()) {
      all.push_back(Gauge("shoal_memory_limit_bytes", "Memory of the container or the machine.",
                          static_cast<double>(memory->total)));
    }
    return all;
  }
};

}  // namespace

std::shared_ptr<prometheus::Collectable> MakeProcessMetrics() {
  return std::make_shared<ProcessMetrics>();
}

}  // namespace shoal
