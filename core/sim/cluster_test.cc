#include "core/sim/cluster.h"

#include <filesystem>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/job/job_values.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(std::string_view yaml) {
  const auto cluster = ParseCluster(yaml, "c.yaml");
  return cluster.ok() ? "" : std::string(Message(cluster.status()));
}

TEST(Cluster, ReadsEveryKey) {
  const auto cluster = ParseCluster(
      "devices:\n  - {count: 3, speed: 0.5}\n  - {count: 2, flops: 2e14}\n"
      "device_flops: 1e14\ndevices_per_node: 2\n"
      "device_link: {rate: 250GB/s, latency_seconds: 1e-5}\n"
      "node_link: {rate: 800Gb/s, latency_seconds: 2e-5}\n"
      "servers: {count: 4, rate: 1GiB/s, latency_seconds: 3e-5}\n"
      "gathers: node-cached\nlayer_transfers: flat\nstep_seconds: 0.25\n"
      "losses: {server_mtbf_hours: 720, checkpoint_seconds: 0.5, restore_seconds: 120}\n",
      "c.yaml");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(*cluster, (ClusterSpec{.devices = {{3, 1e14, 0.5}, {2, 2e14, 1}},
                                   .devices_per_node = 2,
                                   .device_link = {250e9, 1e-5},
                                   .node_link = {100e9, 2e-5},
                                   .servers = 4,
                                   .server_link = {1073741824.0, 3e-5},
                                   .gathers = Gathers::kNodeCached,
                                   .layer_transfers = LayerTransfers::kFlat,
                                   .step_seconds = 0.25,
                                   .losses = {720, 0.5, 120}}));
  EXPECT_EQ(cluster->workers(), 5);
  EXPECT_EQ(cluster->nodes(), 3);
  EXPECT_EQ(cluster->DevicesBeside(1), 2);
  EXPECT_EQ(cluster->DevicesBeside(4), 1);
  EXPECT_THAT(cluster->Speeds(), ElementsAre(0.25, 0.25, 0.25, 1, 1));
}

TEST(Cluster, LinksThatAreNotGivenTakeNoTime) {
  const auto cluster = ParseCluster("devices: 8", "c.yaml");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->device_link, Link());
  EXPECT_EQ(cluster->nodes(), 1);
  EXPECT_EQ(cluster->servers, 0);
}

TEST(Cluster, ErrorsNameTheLineAndWhatIsExpected) {
  EXPECT_EQ(ErrorOf("devices: 8\nnode_lnk: {rate: 1GB/s}"),
            "c.yaml:2: unknown key 'node_lnk'; did you mean node_link?");
  EXPECT_EQ(ErrorOf("devices: 8\nnode_link:\n  rat: 1GB/s"),
            "c.yaml:3: unknown key 'rat' in node_link; did you mean rate?");
  EXPECT_EQ(ErrorOf("devices: 0"), "c.yaml:1: devices is '0', expected an integer from 1 to 65536");
  EXPECT_EQ(ErrorOf("devices: 8\ndevice_link: {rate: 25Gbit}"),
            "c.yaml:2: device_link.rate is '25Gbit', expected a rate like 25Gb/s or 3.1GB/s");
  EXPECT_EQ(ErrorOf("devices: 8\ngathers: cached"),
            "c.yaml:2: gathers is 'cached', expected one of flat, node-cached");
  EXPECT_THAT(ErrorOf("devices:\n- {count: 2}\n- {speed: 0}"),
              HasSubstr("c.yaml:3: devices.speed is '0'"));
  EXPECT_THAT(ErrorOf("devices: []"), HasSubstr("devices is an empty list"));
  EXPECT_THAT(ErrorOf("servers: beside\ndevices: 1"), HasSubstr("servers is 'beside'"));
  EXPECT_THAT(ErrorOf("servers: colocated"), HasSubstr("devices is missing"));
  EXPECT_THAT(ErrorOf("devices: 4\ndevices_per_node: 2"), HasSubstr("need node_link.rate"));
  EXPECT_THAT(ErrorOf("devices: 4\nnode_link: {rate: 1GB/s}\nservers: {count: 2}"),
              HasSubstr("servers.rate is missing"));
  EXPECT_EQ(ErrorOf("devices: 4\nlosses: {server_mtbf_hours: 10, restore_seconds: 120}"),
            "c.yaml: losses.checkpoint_seconds is missing");
  EXPECT_THAT(ErrorOf("devices: 4\nlosses: {server_mtbf_hours: 0}"),
              HasSubstr("c.yaml:2: losses.server_mtbf_hours is '0'"));
  EXPECT_THAT(ErrorOf("devices: 4\ndevices: 5"), HasSubstr("c.yaml:2: devices is given twice"));
  EXPECT_THAT(ErrorOf("devices: [1"), HasSubstr("not valid YAML"));
  EXPECT_THAT(ErrorOf("- 4"), HasSubstr("c.yaml:1: the cluster is not a map of keys"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("not a map"));
}

TEST(Cluster, Rates) {
  EXPECT_DOUBLE_EQ(*ParseRate("25Gb/s"), 3.125e9);
  EXPECT_DOUBLE_EQ(*ParseRate("0.5 TB/s"), 5e11);
  for (const char* bad : {"", "Gb/s", "25", "25GB", "-1GB/s", "nan GB/s", "0B/s", "1e999GB/s"}) {
    EXPECT_FALSE(ParseRate(bad).ok()) << bad;
  }
}

TEST(Cluster, ExamplesAreValidAndKeysAreDocumented) {
  const std::string root = SHOAL_SOURCE_DIRECTORY;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root + "/examples/clusters")) {
    const auto cluster = ParseCluster(*ReadFile(entry.path().string()), entry.path().string());
    EXPECT_TRUE(cluster.ok()) << cluster.status();
    ++files;
  }
  EXPECT_GE(files, 3);
  const std::string documentation = *ReadFile(root + "/docs/on-demand.md");
  for (const std::string& key : ClusterKeys()) {
    EXPECT_THAT(documentation, HasSubstr("`" + key + "`"));
  }
}

}  // namespace
}  // namespace shoal::plan
