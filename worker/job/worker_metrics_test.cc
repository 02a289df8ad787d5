#include "worker/job/worker_metrics.h"

#include "core/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(WorkerMetrics, FollowTheClientsTotals) {
  Metrics metrics;
  WorkerMetrics worker(metrics);
  const TimeKindClock time_kinds(RealClock());
  client::ClientStatistics client;
  client.reconnects = 2;
  client.transports = {{.name = "verbs", .get_bytes = 100, .push_bytes = 10, .rests = 1}};
  client.transports[0].memory.gpu_ranges = {{"peer_memory", 4}};
  client.transports[0].memory.device_errors = {{"no_answer", 2}};
  worker.Update(time_kinds, client);
  client.transports[0].get_bytes = 150;
  worker.Update(time_kinds, client);
  const std::string text = metrics.Text();
  for (const char* line :
       {"shoal_client_reconnects_total 2", "shoal_client_get_bytes_total{transport=\"verbs\"} 150",
        "shoal_client_push_bytes_total{transport=\"verbs\"} 10",
        "shoal_client_transport_rests_total{transport=\"verbs\"} 1",
        "shoal_client_gpu_ranges_total{route=\"peer_memory\",transport=\"verbs\"} 4",
        "shoal_verbs_errors_total{kind=\"no_answer\"} 2", "shoal_client_fallbacks_total 0"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(WorkerMetrics, HaveHowLongPartitionsTookAndTheMemoryOfAGpuAlone) {
  Metrics metrics;
  WorkerMetrics worker(metrics);
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("shoal_worker_device_memory_bytes")));
  worker.OnGet("tcp", absl::Milliseconds(3));
  worker.OnGet("tcp", absl::Seconds(9));
  worker.OnPush("shm", absl::Microseconds(30));
  worker.OnDeviceMemory(100, 150, 200);
  const std::string text = metrics.Text();
  for (const char* line :
       {"shoal_client_get_duration_seconds_count{transport=\"tcp\"} 2",
        "shoal_client_get_duration_seconds_bucket{transport=\"tcp\",le=\"0.005\"} 1",
        "shoal_client_get_duration_seconds_bucket{transport=\"tcp\",le=\"10\"} 2",
        "shoal_client_push_duration_seconds_sum{transport=\"shm\"} 3e-05",
        "shoal_worker_device_memory_bytes{kind=\"allocated\"} 100",
        "shoal_worker_device_memory_bytes{kind=\"peak\"} 150",
        "shoal_worker_device_memory_bytes{kind=\"budget\"} 200"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(WorkerMetrics, HaveWhatADeviceComputesOnceItIsMeasured) {
  Metrics metrics;
  WorkerMetrics worker(metrics);
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("shoal_worker_peak_flops")));
  worker.OnPeakFlops(2.5e10);
  worker.OnPeakFlops(3e10);
  EXPECT_THAT(metrics.Text(), HasSubstr("shoal_worker_peak_flops 30000000000\n"));
}

TEST(WorkerMetrics, AddUpTheTotalsOfJobs) {
  Metrics metrics;
  WorkerMetrics worker(metrics);
  const TimeKindClock time_kinds(RealClock());
  client::ClientStatistics client;
  client.transports = {{.name = "shm", .get_bytes = 100}};
  worker.Update(time_kinds, client);
  worker.StartJob();
  client.transports[0].get_bytes = 30;
  worker.Update(time_kinds, client);
  client.transports[0].get_bytes = 40;
  worker.Update(time_kinds, client);
  EXPECT_THAT(metrics.Text(), HasSubstr("shoal_client_get_bytes_total{transport=\"shm\"} 140"));
}

TEST(WorkerMetrics, FollowTheExchangesTotals) {
  Metrics metrics;
  WorkerMetrics worker(metrics);
  worker.OnNoExchange();
  worker.UpdateExchange({.all_gathers = 3, .reduce_scatters = 2, .gathered_bytes = 96});
  worker.UpdateExchange(
      {.all_gathers = 4, .reduce_scatters = 2, .gathered_bytes = 128, .reduced_bytes = 64});
  const std::string text = metrics.Text();
  for (const char* line :
       {"shoal_worker_exchange_fallbacks_total 1",
        "shoal_worker_collectives_total{operation=\"all_gather\"} 4",
        "shoal_worker_collectives_total{operation=\"reduce_scatter\"} 2",
        "shoal_worker_collective_bytes_total{operation=\"all_gather\"} 128",
        "shoal_worker_collective_bytes_total{operation=\"reduce_scatter\"} 64"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(WorkerMetrics, AddUpWhatStagesExchangeByWay) {
  Metrics metrics;
  WorkerMetrics worker(metrics);
  worker.OnStageMessages("NCCL 2.28.9", 10, 20);
  worker.OnStageMessages("NCCL 2.28.9", 1, 2);
  worker.OnStageMessages("shm", 5, 0);
  const std::string text = metrics.Text();
  for (const char* line :
       {"shoal_worker_stage_bytes_total{direction=\"send\",path=\"nccl\"} 11",
        "shoal_worker_stage_bytes_total{direction=\"receive\",path=\"nccl\"} 22",
        "shoal_worker_stage_bytes_total{direction=\"send\",path=\"shm\"} 5",
        "shoal_worker_stage_bytes_total{direction=\"receive\",path=\"shm\"} 0"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

}  // namespace
}  // namespace shoal::worker
