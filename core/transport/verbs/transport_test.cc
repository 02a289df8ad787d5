#include "core/transport/verbs/transport.h"

#include "core/base/status.h"
#include "core/transport/testing/conformance.h"
#include "core/transport/verbs/testing/fake_verbs.h"

namespace shoal::transport {
namespace {

FakeFabric& Fabric() {
  static FakeFabric fabric({.seed = TestSeed()});
  return fabric;
}

// Makes a transport on a host of its own.
std::unique_ptr<Transport> MakeWith(std::vector<FakeDevice> devices) {
  TransportOptions options;
  options.verbs.spread_bytes = 128 << 10;  // so that rails share what tests read
  auto transport = CreateVerbsTransport(options, Fabric().AddHost(std::move(devices)));
  EXPECT_TRUE(transport.ok()) << Describe(transport.status());
  return *std::move(transport);
}

// Returns another host's address on the network of that number.
std::string NextAddress(int network) {
  static std::atomic<int> host = 0;
  const int number = ++host;
  return fmt::format("10.{}.{}.{}", network, number / 250, 1 + number % 250);
}

// A device in a slot of the machine; unlike those of a software device, its queue pairs are not
// destroyed at once.
FakeDevice Card(const std::string& name, int network) {
  FakeDevice device = FakeDevice::Ethernet(name, NextAddress(network));
  device.location = {.numa_node = 0, .pci_path = "pci0000:00/0000:00:01.0/" + name};
  return device;
}

std::unique_ptr<Transport> MakeOnEthernet() { return MakeWith({Card("mlx5_0", 1)}); }

std::unique_ptr<Transport> MakeWithTwoRails() {
  return MakeWith({Card("mlx5_0", 1), Card("mlx5_1", 2)});
}

// InfiniBand without windows, and everything as small as possible.
std::unique_ptr<Transport> MakeOnSmallDevice() {
  static std::atomic<uint16_t> lid = 0;
  FakeDevice device = FakeDevice::InfiniBand("mthca0", ++lid);
  device.windows = false;
  device.max_region_bytes = 1 << 20;
  device.max_reads = 1;
  device.max_inline_bytes = 0;
  device.max_work_requests = 16384;
  device.ports[0].max_message_bytes = 64 << 10;
  device.ports[0].mtu = IBV_MTU_256;
  return MakeWith({std::move(device)});
}

std::unique_ptr<Transport> MakeOnSoftRoce() {
  return MakeWith({FakeDevice::SoftRoce("rxe0", NextAddress(3))});
}

INSTANTIATE_TEST_SUITE_P(Verbs, ConformanceTest,
                         testing::Values(TransportUnderTest{"VerbsFake", MakeOnEthernet, true},
                                         TransportUnderTest{"TwoRails", MakeWithTwoRails, true},
                                         TransportUnderTest{"SmallDevice", MakeOnSmallDevice, true},
                                         TransportUnderTest{"SoftRoce", MakeOnSoftRoce, true}),
                         NameOf);

// After every test, everything made on the fabric must have been destroyed.
class NothingIsLeft final : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo&) override { EXPECT_EQ(Fabric().live(), LiveObjects{}); }
};

[[maybe_unused]] const bool kListens = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new NothingIsLeft);
  return true;
}();

}  // namespace
}  // namespace shoal::transport
