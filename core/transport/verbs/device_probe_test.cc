#include "core/transport/verbs/device_probe.h"

#include <cerrno>

#include "core/transport/verbs/testing/fake_verbs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::transport {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(DescribeDevices, TellsWhatADeviceIsAndCan) {
  FakeFabric fabric({.manual = true});
  FakeDevice device = FakeDevice::Ethernet("mlx5_0", "10.0.0.7");
  device.location = {.numa_node = 1, .pci_path = "/sys/devices/pci0000:80/0000:80:01.0"};
  device.max_work_requests = 1234;
  device.max_completions = 5678;
  device.max_queue_pairs = 90;
  device.max_reads = 12;
  device.max_region_bytes = ~uint64_t{0};  // as soft-RoCE reports
  device.ports[0].mtu = IBV_MTU_2048;
  device.ports[0].max_message_bytes = 1 << 23;
  device.ports.push_back(device.ports[0]);
  device.ports[1].active = false;
  device.ports[1].gids[1].type = GidType::kRoceV1;
  const auto host = fabric.AddHost({device, FakeDevice::InfiniBand("mlx5_1", 17)});

  const std::vector<DeviceDescription> described = DescribeDevices(*host);
  ASSERT_THAT(described, SizeIs(2));
  const DeviceDescription& ethernet = described[0];
  EXPECT_EQ(ethernet.name, "mlx5_0");
  EXPECT_EQ(ethernet.problem, "");
  EXPECT_EQ(ethernet.numa_node, 1);
  EXPECT_EQ(ethernet.pci_path, "/sys/devices/pci0000:80/0000:80:01.0");
  EXPECT_EQ(ethernet.max_work_requests, 1234);
  EXPECT_EQ(ethernet.max_completions, 5678);
  EXPECT_EQ(ethernet.max_queue_pairs, 90);
  EXPECT_EQ(ethernet.max_reads_as_target, 12);
  EXPECT_EQ(ethernet.max_reads_as_source, 12);
  EXPECT_EQ(ethernet.max_region_bytes, INT64_MAX);
  EXPECT_TRUE(ethernet.windows);
  ASSERT_THAT(ethernet.ports, SizeIs(2));
  const PortDescription& port = ethernet.ports[0];
  EXPECT_EQ(port.port, 1);
  EXPECT_TRUE(port.active);
  EXPECT_EQ(port.link_layer, LinkLayer::kEthernet);
  EXPECT_EQ(port.mtu_bytes, 2048);
  EXPECT_EQ(port.bits_per_second, 100'000'000'000);
  EXPECT_EQ(port.max_message_bytes, 1 << 23);
  ASSERT_THAT(port.gids, SizeIs(2));
  EXPECT_EQ(port.gids[1].index, 1);
  EXPECT_EQ(port.gids[1].type, GidType::kRoceV2);
  EXPECT_EQ(FormatGid(port.gids[1].gid), "10.0.0.7");
  EXPECT_EQ(ethernet.ports[1].port, 2);
  EXPECT_FALSE(ethernet.ports[1].active);
  EXPECT_EQ(ethernet.ports[1].gids[1].type, GidType::kRoceV1);
  const PortDescription& infiniband = described[1].ports.at(0);
  EXPECT_EQ(infiniband.link_layer, LinkLayer::kInfiniBand);
  EXPECT_EQ(infiniband.lid, 17);
  EXPECT_EQ(fabric.live(), LiveObjects{}) << "what was opened is closed";
}

TEST(DescribeDevices, SaysWhyADeviceCannotBeOpened) {
  FakeFabric fabric({.manual = true});
  std::vector<FakeDevice> devices;
  for (const int error : {EACCES, ENODEV, ENOMEM}) {
    devices.push_back(FakeDevice::Ethernet("mlx5_" + std::to_string(error), "10.0.0.7"));
    devices.back().open_error = error;
  }
  const auto host = fabric.AddHost(devices);
  const std::vector<DeviceDescription> described = DescribeDevices(*host);
  ASSERT_THAT(described, SizeIs(3));
  EXPECT_THAT(described[0].problem, HasSubstr("/dev/infiniband"));
  EXPECT_THAT(described[1].problem, HasSubstr("ib_uverbs"));
  EXPECT_THAT(described[2].problem, HasSubstr("cannot be opened: Cannot allocate memory"));
  for (const DeviceDescription& device : described) {
    EXPECT_THAT(device.ports, IsEmpty());
    EXPECT_FALSE(device.pci_path.empty()) << "where it sits is known all the same";
  }
  // And the choice passes it on.
  const auto choice = ChooseDevices(described, {});
  ASSERT_TRUE(choice.ok());
  EXPECT_THAT(choice->rejected[0], HasSubstr("/dev/infiniband"));
}

// With or without devices, the machine's own list can be queried.
TEST(DescribeDevices, AsksTheMachinesOwnLibrary) {
  const std::shared_ptr<VerbsApi> api = SystemVerbs();
  const std::vector<DeviceDescription> described = DescribeDevices(*api);
  EXPECT_EQ(described.size(), api->DeviceNames().size());
  for (const DeviceDescription& device : described) {
    EXPECT_TRUE(!device.ports.empty() || !device.problem.empty()) << device.name;
  }
  errno = 0;
  EXPECT_EQ(api->OpenDevice("there is none of this name"), nullptr);
  EXPECT_EQ(errno, ENODEV);
  EXPECT_EQ(api->Locate("there is none of this name").pci_path, "");
}

}  // namespace
}  // namespace shoal::transport
