#include "core/transport/verbs/testing/fake_verbs.h"

#include <arpa/inet.h>

#include <ostream>
#include <utility>

#include "core/base/check.h"
#include "core/transport/verbs/testing/fake_engine.h"
#include "core/transport/verbs/testing/fake_host.h"

namespace shoal::transport {
namespace {

DeviceLocation SomeSlot() {
  return {.numa_node = 0, .pci_path = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"};
}

}  // namespace

FakeDevice FakeDevice::SoftRoce(const std::string& name, const std::string& address) {
  FakeDevice device = Ethernet(name, address);
  device.location = {};
  device.soft_roce = true;
  device.max_completions = 32767;
  return device;
}

FakeDevice FakeDevice::Ethernet(const std::string& name, const std::string& address) {
  FakeDevice device;
  device.name = name;
  device.location = SomeSlot();
  FakePort& port = device.ports.emplace_back();
  const bool ipv4 = address.find(':') == std::string::npos;
  for (const std::string& text : {std::string("fe80::1"), ipv4 ? "::ffff:" + address : address}) {
    GidDescription gid{static_cast<int>(port.gids.size()), {}, GidType::kRoceV2};
    SHOAL_CHECK(inet_pton(AF_INET6, text.c_str(), gid.gid.data()) == 1);
    port.gids.push_back(gid);
  }
  return device;
}

FakeDevice FakeDevice::InfiniBand(const std::string& name, uint16_t lid) {
  FakeDevice device;
  device.name = name;
  device.location = SomeSlot();
  FakePort& port = device.ports.emplace_back();
  port.link_layer = LinkLayer::kInfiniBand;
  port.lid = lid;
  GidDescription gid{0, {0xfe, 0x80}, GidType::kInfiniBand};
  gid.gid[14] = static_cast<uint8_t>(lid >> 8);
  gid.gid[15] = static_cast<uint8_t>(lid);
  port.gids.push_back(gid);
  return device;
}

std::ostream& operator<<(std::ostream& stream, const LiveObjects& live) {
  return stream << live.contexts << " contexts, " << live.protection_domains
                << " protection domains, " << live.regions << " regions, " << live.windows
                << " windows, " << live.channels << " channels, " << live.completion_queues
                << " completion queues, " << live.queue_pairs << " queue pairs";
}

FakeFabric::FakeFabric(const Options& options) : engine_(std::make_shared<FakeEngine>(options)) {
  if (!options.manual) {
    worker_ = std::thread([engine = engine_.get()] { engine->Run(); });
  }
}

FakeFabric::~FakeFabric() {
  engine_->Stop();
  if (worker_.joinable()) {
    worker_.join();
  }
}

std::shared_ptr<VerbsApi> FakeFabric::AddHost(std::vector<FakeDevice> devices) {
  absl::MutexLock lock(&engine_->mutex);
  const int host = engine_->hosts++;
  std::vector<FakeDeviceState*> states;
  for (FakeDevice& device : devices) {
    states.push_back(engine_->AddDevice(host, std::move(device)));
  }
  return std::make_shared<FakeHost>(engine_, std::move(states));
}

bool FakeFabric::Step() {
  absl::MutexLock lock(&engine_->mutex);
  SHOAL_CHECK(engine_->manual);
  return engine_->Step();
}

bool FakeFabric::RunUntilIdle(int most) {
  for (int i = 0; i < most; ++i) {
    if (!Step()) {
      return true;
    }
  }
  return false;
}

FakeFaults& FakeFabric::faults() { return engine_->faults; }

void FakeFabric::HoldReceives(bool held) {
  absl::MutexLock lock(&engine_->mutex);
  engine_->receives_held = held;
  engine_->WakeAll();
}

void FakeFabric::SetLink(const std::string& device, int port, bool up) {
  absl::MutexLock lock(&engine_->mutex);
  for (FakeDeviceState* state : engine_->Devices(device)) {
    state->description.ports.at(static_cast<size_t>(port - 1)).active = up;
    ibv_async_event event = {};
    event.element.port_num = port;
    event.event_type = up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR;
    engine_->RaiseAsync(*state, event);
  }
}

void FakeFabric::BreakQueuePairs(const std::string& device) {
  absl::MutexLock lock(&engine_->mutex);
  for (const FakeDeviceState* state : engine_->Devices(device)) {
    engine_->EnterErrorOn(*state);
  }
}

void FakeFabric::RemoveDevice(const std::string& device) {
  absl::MutexLock lock(&engine_->mutex);
  for (FakeDeviceState* state : engine_->Devices(device)) {
    state->removed = true;
    ibv_async_event event = {};
    event.event_type = IBV_EVENT_DEVICE_FATAL;
    engine_->RaiseAsync(*state, event);
  }
}

void FakeFabric::SetNextQueuePair(uint32_t number) {
  absl::MutexLock lock(&engine_->mutex);
  engine_->next_queue_pair = number;
}

LiveObjects FakeFabric::live() const {
  absl::MutexLock lock(&engine_->mutex);
  return engine_->live;
}

int64_t FakeFabric::executed() const {
  absl::MutexLock lock(&engine_->mutex);
  return engine_->executed;
}

}  // namespace shoal::transport
