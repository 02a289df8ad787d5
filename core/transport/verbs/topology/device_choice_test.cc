#include "core/transport/verbs/topology/device_choice.h"

#include <arpa/inet.h>

#include "absl/status/status.h"
#include "core/base/status.h"
#include "core/transport/verbs/topology/gid_kind.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::transport {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Gid Address(const std::string& text) {
  Gid gid{};
  const bool ipv4 = text.find(':') == std::string::npos;
  EXPECT_EQ(inet_pton(AF_INET6, (ipv4 ? "::ffff:" + text : text).c_str(), gid.data()), 1) << text;
  return gid;
}

GidDescription V2(int index, const std::string& address) {
  return {index, Address(address), GidType::kRoceV2};
}
GidDescription V1(int index, const std::string& address) {
  return {index, Address(address), GidType::kRoceV1};
}

PortDescription Ethernet(std::vector<GidDescription> gids) {
  PortDescription port;
  port.active = true;
  port.mtu_bytes = 4096;
  port.bits_per_second = 100'000'000'000;
  port.gids = std::move(gids);
  return port;
}

PortDescription InfiniBand(uint16_t lid, const std::string& gid) {
  PortDescription port = Ethernet({{0, Address(gid), GidType::kInfiniBand}});
  port.link_layer = LinkLayer::kInfiniBand;
  port.lid = lid;
  return port;
}

DeviceDescription Device(const std::string& name, std::vector<PortDescription> ports) {
  DeviceDescription device;
  device.name = name;
  for (size_t i = 0; i < ports.size(); ++i) {
    device.ports.push_back(std::move(ports[i]));
    device.ports.back().port = static_cast<int>(i) + 1;
  }
  return device;
}

DeviceChoice Choose(const std::vector<DeviceDescription>& devices,
                    const DevicePreferences& preferences = {}) {
  const auto choice = ChooseDevices(devices, preferences);
  EXPECT_TRUE(choice.ok()) << Describe(choice.status());
  return choice.ok() ? *choice : DeviceChoice{};
}

std::vector<std::string> Taken(const DeviceChoice& choice) {
  std::vector<std::string> names;
  for (const Rail& rail : choice.rails) {
    names.push_back(fmt::format("{}:{}", rail.device, rail.port.port));
  }
  return names;
}

std::vector<std::string> Addresses(const Rail& rail) {
  std::vector<std::string> addresses;
  for (const GidDescription& gid : rail.gids) {
    addresses.push_back(FormatGid(gid.gid));
  }
  return addresses;
}

struct GidCase {
  std::string name;
  std::vector<GidDescription> table;
  std::vector<std::string> expected;  // empty: the port is rejected, because of
  std::string rejection;
};

class GidRules : public testing::TestWithParam<GidCase> {};

TEST_P(GidRules, ChooseByTheTable) {
  const DeviceChoice choice = Choose({Device("mlx5_0", {Ethernet(GetParam().table)})});
  if (GetParam().expected.empty()) {
    EXPECT_THAT(choice.rails, IsEmpty());
    EXPECT_THAT(choice.rejected, ElementsAre(HasSubstr(GetParam().rejection)));
    EXPECT_THAT(choice.rejected, ElementsAre(HasSubstr("mlx5_0:1")));
  } else {
    ASSERT_EQ(choice.rails.size(), 1u);
    EXPECT_EQ(Addresses(choice.rails[0]), GetParam().expected);
    EXPECT_THAT(choice.rejected, IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tables, GidRules,
    testing::Values(
        GidCase{"Ipv4BeforeAll",
                {V2(0, "fe80::1"), V2(1, "fd00::7"), V2(2, "2001:db8::7"), V2(3, "10.0.0.7")},
                {"10.0.0.7", "2001:db8::7", "fd00::7"}},
        GidCase{"GlobalBeforeUniqueLocal",
                {V2(0, "fd12:3456::1"), V2(1, "2001:db8::1")},
                {"2001:db8::1", "fd12:3456::1"}},
        GidCase{"UniqueLocalAlone", {V2(0, "fe80::1"), V2(1, "fc00::1")}, {"fc00::1"}},
        GidCase{"LoopbackLast",
                {V2(1, "127.0.0.1"), V2(2, "::1"), V2(3, "fd00::1")},
                {"fd00::1", "127.0.0.1", "::1"}},
        GidCase{"SoftRoceOnLo",
                {V2(0, "fe80::1"), V2(1, "127.0.0.1"), V2(2, "::1")},
                {"127.0.0.1", "::1"}},
        GidCase{"SparseTable",
                {V2(3, "fe80::9"), V1(7, "10.1.2.3"), V2(250, "10.1.2.3")},
                {"10.1.2.3"}},
        GidCase{"VersionOneIsNotEnough", {V1(0, "fe80::1"), V1(1, "10.0.0.7")}, {}, "RoCE v1"},
        GidCase{"VersionOneIsPassedOver", {V1(0, "10.0.0.7"), V2(1, "10.0.0.8")}, {"10.0.0.8"}},
        GidCase{"LinkLocalIpv6", {V2(0, "fe80::1"), V2(1, "febf::1")}, {}, "link-local"},
        GidCase{"LinkLocalIpv4", {V2(0, "169.254.3.4")}, {}, "link-local"},
        GidCase{"AlmostLinkLocal",
                {V2(0, "169.253.3.4"), V2(1, "fec0::1")},
                {"169.253.3.4", "fec0::1"}},
        GidCase{"NobodysAddresses",
                {V2(0, "::"), V2(1, "ff02::1"), V2(2, "0.0.0.0"), V2(3, "224.0.0.1"),
                 V2(4, "255.255.255.255")},
                {},
                "empty"},
        GidCase{"EmptyTable", {}, {}, "empty"},
        GidCase{"EqualKindsByIndex",
                {V2(5, "10.0.0.5"), V2(2, "10.0.0.9"), V2(9, "10.0.0.1")},
                {"10.0.0.9", "10.0.0.5", "10.0.0.1"}},
        GidCase{"RepeatedAddressOnce", {V2(1, "10.0.0.5"), V2(4, "10.0.0.5")}, {"10.0.0.5"}}),
    [](const auto& info) { return info.param.name; });

TEST(ChooseDevices, AGivenIndexIsTakenAsItIs) {
  const std::vector<DeviceDescription> devices = {
      Device("mlx5_0", {Ethernet({V2(0, "fe80::1"), V1(1, "10.0.0.7"), V2(2, "10.0.0.7")})}),
      Device("mlx5_1", {Ethernet({V2(0, "fe80::2")})})};
  DevicePreferences preferences;
  preferences.gid_index = 1;
  DeviceChoice choice = Choose(devices, preferences);
  EXPECT_THAT(Taken(choice), ElementsAre("mlx5_0:1"));
  EXPECT_EQ(choice.rails[0].gids[0].type, GidType::kRoceV1);
  EXPECT_THAT(choice.rejected, ElementsAre(HasSubstr("mlx5_1:1: it has no GID of index 1")));

  preferences.gid_index = 0;  // link-local, which the rules would not choose
  choice = Choose(devices, preferences);
  EXPECT_THAT(Taken(choice), ElementsAre("mlx5_0:1", "mlx5_1:1"));

  preferences.gid_index = 4;
  const auto missing = ChooseDevices(devices, preferences);
  EXPECT_TRUE(absl::IsInvalidArgument(missing.status()));
  EXPECT_THAT(Message(missing.status()), HasSubstr("mlx5_0:1 index 2 (RoCE v2 10.0.0.7)"));
}

TEST(ChooseDevices, NamedDevicesInTheirOrderAndNoOthers) {
  const std::vector<DeviceDescription> devices = {
      Device("a", {Ethernet({V2(0, "10.0.0.1")}), Ethernet({V2(0, "10.0.0.2")})}),
      Device("b", {Ethernet({V2(0, "10.0.0.3")})}), Device("c", {Ethernet({V2(0, "10.0.0.4")})})};
  DevicePreferences preferences;
  preferences.devices = {"c", "a:2", "c:1", "a"};
  const DeviceChoice choice = Choose(devices, preferences);
  EXPECT_THAT(Taken(choice), ElementsAre("c:1", "a:2", "a:1"));
  EXPECT_THAT(choice.rejected, ElementsAre(HasSubstr("b:1: not among the devices named")));

  for (const std::string name : {"d", "a:3", "a:0", "a:x", "a:", ":1", "", "a:1x"}) {
    preferences.devices = {name};
    const auto refused = ChooseDevices(devices, preferences);
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << name;
  }
  preferences.devices = {"d"};
  EXPECT_THAT(Message(ChooseDevices(devices, preferences).status()),
              HasSubstr("a:1, a:2, b:1, c:1"));
  EXPECT_THAT(Message(ChooseDevices({}, preferences).status()), HasSubstr("this machine has none"));
}

TEST(ChooseDevices, ANamedDeviceThatCannotServeIsRejectedAndNotAnError) {
  std::vector<DeviceDescription> devices = {Device("a", {Ethernet({V2(0, "10.0.0.1")})}),
                                            Device("b", {})};
  devices[0].ports[0].active = false;
  devices[1].problem = "it may not be opened";
  DevicePreferences preferences;
  preferences.devices = {"a", "b:1"};
  const DeviceChoice choice = Choose(devices, preferences);
  EXPECT_THAT(choice.rails, IsEmpty());
  EXPECT_THAT(choice.rejected, testing::UnorderedElementsAre(HasSubstr("a:1: its link is down"),
                                                             HasSubstr("it may not be opened")));
}

TEST(ChooseDevices, EveryPortThatIsNotTakenSaysWhy) {
  std::vector<DeviceDescription> devices = {Device("down", {Ethernet({V2(0, "10.0.0.1")})}),
                                            Device("closed", {}),
                                            Device("empty", {}),
                                            Device("ib", {InfiniBand(0, "fe80::1:1")}),
                                            Device("one", {Ethernet({V2(0, "10.0.0.1")})}),
                                            Device("two", {Ethernet({V2(0, "10.0.0.2")})})};
  devices[0].ports[0].active = false;
  devices[1].problem = "no permission";
  DevicePreferences preferences;
  preferences.max_rails = 1;
  const DeviceChoice choice = Choose(devices, preferences);
  EXPECT_THAT(Taken(choice), ElementsAre("one:1"));
  EXPECT_THAT(choice.rejected,
              testing::UnorderedElementsAre("closed: no permission", "empty: it has no ports",
                                            HasSubstr("down:1: its link is down"),
                                            HasSubstr("ib:1: it has no LID"),
                                            HasSubstr("two:1: 1 rails are enough")));
}

TEST(ChooseDevices, InfiniBandGoesByItsLid) {
  const DeviceChoice choice = Choose({Device("mlx5_0", {InfiniBand(17, "fe80::2:c903:0:1491")})});
  ASSERT_EQ(choice.rails.size(), 1u);
  EXPECT_EQ(choice.rails[0].gids.size(), 1u);
  EXPECT_THAT(choice.rails[0].reason, HasSubstr("InfiniBand LID 17"));
}

TEST(ChooseDevices, TheNearestFirst) {
  std::vector<DeviceDescription> devices;
  const auto add = [&](const std::string& name, int node, const std::string& pci, int64_t gbit) {
    devices.push_back(Device(name, {Ethernet({V2(0, "10.0.0.1")})}));
    devices.back().numa_node = node;
    devices.back().pci_path = pci;
    devices.back().ports[0].bits_per_second = gbit * 1'000'000'000;
  };
  const std::string root0 = "/sys/devices/pci0000:00/";
  const std::string root1 = "/sys/devices/pci0000:80/";
  add("far_fast", 0, root0 + "0000:00:02.0/0000:05:00.0", 400);
  add("far_b", 0, root0 + "0000:00:03.0/0000:06:00.0", 100);
  add("far_a", 0, root0 + "0000:00:04.0/0000:07:00.0", 100);
  add("node_slow", 1, root1 + "0000:80:01.0/0000:81:00.0", 25);
  add("node_fast", 1, root1 + "0000:80:02.0/0000:82:00.0", 200);
  add("switch", 1, root1 + "0000:80:03.0/0000:83:00.0/0000:84:02.0/0000:85:00.0", 10);
  add("bridge", 1, root1 + "0000:80:03.0/0000:83:00.0/0000:84:00.0/0000:86:00.0", 10);
  add("virtual", -1, "", 1000);

  DevicePreferences preferences;
  preferences.max_rails = 10;
  preferences.place.numa_node = 1;
  EXPECT_THAT(Taken(Choose(devices, preferences)),
              ElementsAre("node_fast:1", "node_slow:1", "bridge:1", "switch:1", "virtual:1",
                          "far_fast:1", "far_a:1", "far_b:1"));
  preferences.place.pci_paths = {// of two GPUs, the first far from all devices
                                 "/sys/devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0",
                                 root1 + "0000:80:03.0/0000:83:00.0/0000:84:02.0/0000:87:00.0"};
  EXPECT_THAT(Taken(Choose(devices, preferences)),
              ElementsAre("switch:1", "bridge:1", "node_fast:1", "node_slow:1", "virtual:1",
                          "far_fast:1", "far_a:1", "far_b:1"));
  preferences = {};
  preferences.max_rails = 10;
  EXPECT_THAT(Taken(Choose(devices, preferences)),
              ElementsAre("virtual:1", "far_fast:1", "node_fast:1", "far_a:1", "far_b:1",
                          "node_slow:1", "bridge:1", "switch:1"));
  // Independent of the order in which the system lists them.
  std::reverse(devices.begin(), devices.end());
  EXPECT_EQ(Taken(Choose(devices, preferences))[0], "virtual:1");
  EXPECT_EQ(Taken(Choose(devices, preferences))[3], "far_a:1");
}

TEST(ChooseDevices, TheReasonIsForPeople) {
  std::vector<DeviceDescription> devices = {Device("mlx5_0", {Ethernet({V2(3, "10.0.0.7")})})};
  devices[0].numa_node = 0;
  EXPECT_EQ(Choose(devices).rails[0].reason, "RoCE v2 10.0.0.7 (index 3), NUMA node 0, 100 Gbit/s");
  DevicePreferences preferences;
  preferences.place.numa_node = 0;
  EXPECT_THAT(Choose(devices, preferences).rails[0].reason,
              HasSubstr("NUMA node 0 as this process"));
  preferences.place.numa_node = 1;
  EXPECT_THAT(Choose(devices, preferences).rails[0].reason,
              HasSubstr("NUMA node 0 (this process: 1)"));
}

TEST(GidKind, AddressesAndPrefixes) {
  EXPECT_EQ(FormatGid(Address("10.0.0.7")), "10.0.0.7");
  EXPECT_EQ(FormatGid(Address("fd00::7")), "fd00::7");
  EXPECT_EQ(FormatGid(Address("fe80::1")), "fe80::1");
  EXPECT_EQ(CommonPrefixBits(Address("10.0.0.7"), Address("10.0.0.7")), 128);
  EXPECT_EQ(CommonPrefixBits(Address("10.0.0.7"), Address("10.0.0.6")), 127);
  EXPECT_EQ(CommonPrefixBits(Address("10.0.0.7"), Address("138.0.0.7")), 96);
  EXPECT_EQ(CommonPrefixBits(Address("::"), Address("8000::")), 0);
}

}  // namespace
}  // namespace shoal::transport
