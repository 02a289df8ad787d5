#include "core/transport/verbs/topology/topology.h"

#include <filesystem>
#include <fstream>

#include "core/transport/verbs/topology/device_choice.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::transport {
namespace {

namespace fs = std::filesystem;

using testing::ElementsAre;
using testing::IsEmpty;

constexpr char kRoot0[] = "/devices/pci0000:00/0000:00:01.0";
constexpr char kRoot1[] = "/devices/pci0000:80/0000:80:01.0";

// A machine of two nodes: a network card on each, and a GPU behind the same switch as the second.
class Topology : public testing::Test {
 protected:
  void SetUp() override {
    sysfs_ = fs::path(testing::TempDir()) /
             ("machine-place." +
              std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(sysfs_);
    Function(std::string(kRoot0) + "/0000:3b:00.0", 0);
    Function(std::string(kRoot1) + "/0000:81:00.0/0000:82:00.0/0000:83:00.0", 1);
    Function(std::string(kRoot1) + "/0000:81:00.0/0000:82:08.0/0000:84:00.0", 1);
    Link("class/infiniband/mlx5_0/device", std::string(kRoot0) + "/0000:3b:00.0");
    Link("class/infiniband/mlx5_1/device",
         std::string(kRoot1) + "/0000:81:00.0/0000:82:00.0/0000:83:00.0");
    // A device on the auxiliary bus sits in the function above it.
    fs::create_directories(sysfs_ + kRoot0 + "/0000:3b:00.0/irdma.roce.0");
    Link("class/infiniband/irdma0/device", std::string(kRoot0) + "/0000:3b:00.0/irdma.roce.0");
    fs::create_directories(sysfs_ + "/class/infiniband/rxe0");
    Link("bus/pci/devices/0000:84:00.0",
         std::string(kRoot1) + "/0000:81:00.0/0000:82:08.0/0000:84:00.0");
    Write("/devices/system/node/node0/cpulist", "0-3,8-11\n");
    Write("/devices/system/node/node1/cpulist", "4-7,12\n");
    Write("/devices/system/node/node2/cpulist", "\n");  // memory only
    Write("/devices/system/node/online", "0-2\n");
  }
  void TearDown() override { fs::remove_all(sysfs_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(sysfs_ + path).parent_path());
    std::ofstream(sysfs_ + path) << text;
  }
  void Function(const std::string& path, int node) {
    Write(path + "/numa_node", std::to_string(node) + "\n");
  }
  void Link(const std::string& link, const std::string& to) {
    fs::create_directories(fs::path(sysfs_ + "/" + link).parent_path());
    fs::create_symlink(sysfs_ + to, sysfs_ + "/" + link);
  }

  std::string sysfs_;
};

TEST_F(Topology, ADeviceSitsInItsPciFunction) {
  const DeviceLocation first = LocateRdmaDevice("mlx5_0", sysfs_);
  EXPECT_EQ(first.numa_node, 0);
  EXPECT_EQ(first.pci_path, "/sys/devices/pci0000:00/0000:00:01.0/0000:3b:00.0");
  EXPECT_EQ(LocateRdmaDevice("mlx5_1", sysfs_).numa_node, 1);
  EXPECT_EQ(LocateRdmaDevice("irdma0", sysfs_).pci_path, first.pci_path);
  for (const char* without : {"rxe0", "none"}) {
    EXPECT_EQ(LocateRdmaDevice(without, sysfs_).pci_path, "");
    EXPECT_EQ(LocateRdmaDevice(without, sysfs_).numa_node, -1);
  }
}

TEST_F(Topology, CoresOfOneNodeHaveThatNode) {
  const auto node = [&](const std::vector<int>& cores) { return NumaNodeOf(cores, sysfs_); };
  EXPECT_EQ(node({0, 1, 2, 3, 8, 11}), 0);
  EXPECT_EQ(node({12}), 1);
  EXPECT_EQ(node({3, 4}), -1) << "of two nodes";
  EXPECT_EQ(node({13}), -1);
  EXPECT_EQ(node({}), -1);
  EXPECT_EQ(NumaNodeOf(std::vector<int>{0}, sysfs_ + "/none"), -1);
}

TEST_F(Topology, GpusBringTheirPathsAndNode) {
  const ServedLocation gpu = FindServedLocation(std::vector<std::string>{"0000:84:00.0"}, sysfs_);
  EXPECT_EQ(gpu.numa_node, 1);
  EXPECT_THAT(gpu.pci_paths,
              ElementsAre("/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:08.0/"
                          "0000:84:00.0"));
  const std::vector<int> cores = AllowedCores();
  EXPECT_FALSE(cores.empty());
  const ServedLocation none = FindServedLocation({}, sysfs_);
  EXPECT_EQ(none.numa_node, NumaNodeOf(cores, sysfs_));
  EXPECT_THAT(none.pci_paths, IsEmpty());
  EXPECT_THAT(FindServedLocation(std::vector<std::string>{"0000:FF:00.0"}, sysfs_).pci_paths,
              IsEmpty());
}

// The whole way from sysfs to the choice: a near slow device comes before a fast one.
TEST_F(Topology, TheChoiceFollowsIt) {
  std::vector<DeviceDescription> devices;
  for (const char* name : {"mlx5_0", "mlx5_1"}) {
    const DeviceLocation location = LocateRdmaDevice(name, sysfs_);
    DeviceDescription& device = devices.emplace_back();
    device.name = name;
    device.numa_node = location.numa_node;
    device.pci_path = location.pci_path;
    PortDescription& port = device.ports.emplace_back();
    port.active = true;
    port.link_layer = LinkLayer::kInfiniBand;
    port.lid = 1;
    port.gids = {GidDescription{}};
    port.bits_per_second = devices.size() == 1 ? 400'000'000'000 : 100'000'000'000;
  }
  const auto first = [&](const ServedLocation& place) {
    return ChooseDevices(devices, {.place = place})->rails[0].device;
  };
  EXPECT_EQ(first({}), "mlx5_0") << "the faster one";
  EXPECT_EQ(first({.numa_node = NumaNodeOf(std::vector<int>{4, 5}, sysfs_)}), "mlx5_1");
  EXPECT_EQ(first({.numa_node = NumaNodeOf(std::vector<int>{0, 1}, sysfs_)}), "mlx5_0");
  EXPECT_EQ(first(FindServedLocation(std::vector<std::string>{"0000:84:00.0"}, sysfs_)), "mlx5_1");
}

}  // namespace
}  // namespace shoal::transport
