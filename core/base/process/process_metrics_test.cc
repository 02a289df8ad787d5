#include "core/base/process/process_metrics.h"

#include <map>
#include <string>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "gtest/gtest.h"
#include "prometheus/metric_family.h"

namespace shoal {
namespace {

TEST(ProcessMetrics, TellOfThisProcess) {
  std::map<std::string, double> values;
  for (const auto& family : MakeProcessMetrics()->Collect()) {
    const bool counts = family.type == prometheus::MetricType::Counter;
    values[family.name] = counts ? family.metric[0].counter.value : family.metric[0].gauge.value;
  }
  EXPECT_EQ(values.size(), 6u);
  EXPECT_GT(values["shoal_memory_limit_bytes"], values["process_resident_memory_bytes"]);
  EXPECT_GT(values["process_resident_memory_bytes"], 1 << 20);
  EXPECT_LT(values["process_resident_memory_bytes"], int64_t{1} << 40);
  const double now = absl::ToDoubleSeconds(RealClock().Now() - absl::UnixEpoch());
  EXPECT_NEAR(values["process_start_time_seconds"], now, 3600);
  EXPECT_GE(values["process_open_fds"], 3);
  EXPECT_GE(values["process_max_fds"], values["process_open_fds"]);
  EXPECT_GE(values["process_cpu_seconds_total"], 0);
}

}  // namespace
}  // namespace shoal
