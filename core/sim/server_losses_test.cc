#include "core/sim/server_losses.h"

#include "gtest/gtest.h"

namespace shoal::sim {
namespace {

// 7B parameters on 8 servers of 100 Gb/s, with steps of 20 s.
constexpr ServedJob kJob = {.servers = 8,
                            .replicas = 2,
                            .parameters = 7'000'000'000,
                            .backup_bytes = 112'000'000'000,
                            .step_seconds = 20};

plan::ClusterSpec Cluster(double server_mtbf_hours) {
  return {.devices = {{.count = 8}},
          .devices_per_node = 1,
          .node_link = {.bytes_per_second = 12.5e9},
          .losses = {.server_mtbf_hours = server_mtbf_hours,
                     .checkpoint_seconds = 0.5,
                     .restore_seconds = 120}};
}

TEST(ServerLosses, ServersThatLiveLongWantCheckpoints) {
  const LossCosts costs = CompareLossCosts(Cluster(30 * 24), kJob);
  EXPECT_DOUBLE_EQ(costs.seconds_between, 90 * 3600);
  EXPECT_NEAR(costs.checkpoints, 0.0021, 5e-5);  // 0.00176 and 0.00037
  EXPECT_NEAR(costs.checkpoint_every_seconds, 569, 1);
  EXPECT_NEAR(costs.replicas, 0.0140, 5e-5);
  EXPECT_EQ(costs.replica_bytes, 14'000'000'000);
}

TEST(ServerLosses, ServersOfHoursWantReplicas) {
  const LossCosts costs = CompareLossCosts(Cluster(10), kJob);
  EXPECT_NEAR(costs.checkpoints, 0.0416, 5e-5);  // 0.01491 and 0.02667
  EXPECT_NEAR(costs.replicas, 0.0164, 5e-5);     // 0.014 and 11 s in 75 minutes
}

TEST(ServerLosses, EachBackupGetsEachGradient) {
  ServedJob job = kJob;
  job.replicas = 3;
  const plan::ClusterSpec cluster = Cluster(30 * 24);
  EXPECT_NEAR(CompareLossCosts(cluster, job).replicas - CompareLossCosts(cluster, kJob).replicas,
              0.014, 1e-9);
  EXPECT_EQ(CompareLossCosts(cluster, job).replica_bytes, 28'000'000'000);
}

TEST(ServerLosses, DevicesShareTheirNodesLink) {
  plan::ClusterSpec cluster = Cluster(10);
  cluster.devices_per_node = 4;
  EXPECT_DOUBLE_EQ(cluster.ServerBytesPerSecond(), 12.5e9 / 4);
  cluster.servers = 2;
  cluster.server_link.bytes_per_second = 1e9;
  EXPECT_DOUBLE_EQ(cluster.ServerBytesPerSecond(), 1e9);
}

}  // namespace
}  // namespace shoal::sim
