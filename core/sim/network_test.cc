#include "core/sim/network.h"

#include "gtest/gtest.h"

namespace shoal::sim {
namespace {

using plan::ClusterSpec;
using plan::Synchronization;

constexpr double kDevice = 100e9;
constexpr double kNode = 50e9;

ClusterSpec Cluster(int64_t devices, int64_t per_node) {
  return {.devices = {{.count = devices}},
          .devices_per_node = per_node,
          .device_link = {kDevice, 1e-6},
          .node_link = {kNode, 1e-5}};
}

double GetSeconds(const ClusterSpec& cluster, Synchronization synchronization) {
  return TransferCostsOf(cluster, synchronization, 0).get_seconds_per_byte;
}

TEST(Network, AloneThereIsNothingToMove) {
  const TransferCosts costs = TransferCostsOf(Cluster(1, 1), Synchronization::kStep, 0);
  EXPECT_EQ(costs, TransferCosts());
}

TEST(Network, InOneNodeOnlyOwnShardsAreNear) {
  const ClusterSpec cluster = Cluster(4, 4);
  const TransferCosts costs = TransferCostsOf(cluster, Synchronization::kStep, 2);
  EXPECT_DOUBLE_EQ(costs.get_seconds_per_byte, 3.0 / 4 / kDevice);
  EXPECT_DOUBLE_EQ(costs.push_seconds_per_byte, 3.0 / 4 / kDevice);
  EXPECT_DOUBLE_EQ(costs.latency, 1e-6);
  EXPECT_TRUE(costs.one_link);
  EXPECT_EQ(costs, TransferCostsOf(cluster, Synchronization::kLayer, 2));
}

TEST(Network, FlatTransfersShareTheNodesLinkAndCollectivesUseItOnce) {
  ClusterSpec cluster = Cluster(16, 8);
  EXPECT_DOUBLE_EQ(GetSeconds(cluster, Synchronization::kStep), 8 * 0.5 / kNode);
  EXPECT_DOUBLE_EQ(GetSeconds(cluster, Synchronization::kLayer), 0.5 / kNode);
  cluster.layer_transfers = plan::LayerTransfers::kFlat;
  EXPECT_DOUBLE_EQ(GetSeconds(cluster, Synchronization::kLayer), 8 * 0.5 / kNode);
  cluster.gathers = plan::Gathers::kNodeCached;
  const TransferCosts cached = TransferCostsOf(cluster, Synchronization::kStep, 0);
  EXPECT_DOUBLE_EQ(cached.get_seconds_per_byte, 0.5 / kNode);
  EXPECT_DOUBLE_EQ(cached.push_seconds_per_byte, 8 * 0.5 / kNode);
  // If nodes are well connected, what came into a node is delayed on its way to the device.
  cluster.node_link.bytes_per_second = 1e15;
  EXPECT_DOUBLE_EQ(GetSeconds(cluster, Synchronization::kStep), 15.0 / 16 / kDevice);
}

TEST(Network, OneDeviceToANodeHasItsLinkToItself) {
  const ClusterSpec cluster = Cluster(4, 1);
  EXPECT_DOUBLE_EQ(GetSeconds(cluster, Synchronization::kStep), 3.0 / 4 / kNode);
  EXPECT_DOUBLE_EQ(GetSeconds(cluster, Synchronization::kLayer), 3.0 / 4 / kNode);
  EXPECT_DOUBLE_EQ(TransferCostsOf(cluster, Synchronization::kStep, 0).latency, 1e-5);
}

TEST(Network, ALastNodeWithFewerDevices) {
  const ClusterSpec cluster = Cluster(6, 4);
  EXPECT_DOUBLE_EQ(TransferCostsOf(cluster, Synchronization::kStep, 5).get_seconds_per_byte,
                   2 * (4.0 / 6) / kNode);
}

TEST(Network, ServersApartAreLimitedByTheirLinksTogether) {
  ClusterSpec cluster = Cluster(16, 8);
  cluster.servers = 2;
  cluster.server_link = {10e9, 1e-4};
  const TransferCosts costs = TransferCostsOf(cluster, Synchronization::kStep, 0);
  EXPECT_DOUBLE_EQ(costs.get_seconds_per_byte, 16 / (2 * 10e9));
  EXPECT_DOUBLE_EQ(costs.push_seconds_per_byte, 16 / (2 * 10e9));
  EXPECT_DOUBLE_EQ(costs.latency, 1.1e-4);
  EXPECT_FALSE(costs.one_link);
  cluster.gathers = plan::Gathers::kNodeCached;
  EXPECT_DOUBLE_EQ(GetSeconds(cluster, Synchronization::kStep), 2 / (2 * 10e9));
  cluster.server_link.bytes_per_second = 1e15;
  EXPECT_DOUBLE_EQ(GetSeconds(cluster, Synchronization::kStep), 1 / kNode);
  // A collective has no servers.
  EXPECT_DOUBLE_EQ(GetSeconds(cluster, Synchronization::kLayer), 0.5 / kNode);
}

TEST(Network, AStepEndsWithTwoBarriers) {
  ClusterSpec cluster = Cluster(16, 8);
  cluster.step_seconds = 0.25;
  EXPECT_DOUBLE_EQ(StepEndSeconds(cluster), 0.25 + 4e-5);
  EXPECT_EQ(StepEndSeconds({.devices = {{.count = 8}}}), 0);
}

}  // namespace
}  // namespace shoal::sim
