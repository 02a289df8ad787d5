// A fabric of reliable queue pairs within one process, behind VerbsApi: for tests without hardware,
// including errors that hardware seldom shows.
//
//   FakeFabric fabric({.seed = 7});
//   std::shared_ptr<VerbsApi> server =
//       fabric.AddHost({FakeDevice::Ethernet("mlx5_0", "10.0.0.1")});
//   std::shared_ptr<VerbsApi> worker =
//       fabric.AddHost({FakeDevice::Ethernet("mlx5_0", "10.0.0.2")});
//
// What it does. Objects, states, rights and statuses are those of the InfiniBand specification for
// RC queue pairs:
// - Keys are checked for protection domain, range and right, type 2 windows for their queue pair.
// - A queue pair executes and completes its requests in order.
// - Queues and completion queues have exactly the size asked for; polling a completion frees the
//   work request's place.
// - An overrun completion queue, or an object destroyed while the device uses something of it, ends
//   the test.
//
// When. Nothing happens within a post. A worker thread (or, with Options::manual, Step) takes one
// small action at a time of some queue pair that the seed picks: the next piece of a transfer, a
// completion to its poster, a receive's completion. So completions of the two ends, and of the two
// queues of one end, interleave differently from seed to seed. Queue pairs choose their time-outs,
// measured on the machine's clock or, when manual, on one that jumps to the next time-out when
// there is nothing else to do.
//
// Threads: all functions are thread-safe; one lock guards the fabric. Everything made through a
// host must be destroyed before the process exits; live() tells whether it has been. Hosts may
// outlive the fabric object, but then nothing moves any more.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/transport/verbs/api.h"
#include "core/transport/verbs/testing/fake_faults.h"
#include "core/transport/verbs/topology/device_choice.h"

namespace shoal::transport {

struct FakePort {
  bool active = true;
  LinkLayer link_layer = LinkLayer::kEthernet;
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_4096;
  uint32_t max_message_bytes = 1u << 30;
  std::vector<GidDescription> gids;
};

struct FakeDevice {
  std::string name;
  DeviceLocation location;
  std::vector<FakePort> ports;
  int open_error = 0;  // an errno value: the device is listed and cannot be opened

  int max_work_requests = 1 << 15;
  int max_completions = 1 << 16;
  int max_queue_pairs = 1 << 16;
  int max_reads = 16;  // by one queue pair at once, as source and as target
  uint32_t max_inline_bytes = 256;
  uint64_t max_region_bytes = uint64_t{1} << 40;
  bool windows = true;  // type 2
  // Differs from the specification as the kernel's soft-RoCE does:
  // - A local key that is wrong for a write is LOC_QP_OP_ERR.
  // - Receives posted to a queue pair in error never complete.
  // - The acknowledgement timer bounds waiting for a receiver that is not ready.
  // - The largest message is not enforced.
  // - Errors raise no asynchronous events.
  // - Destroying a queue pair waits for its windows (here it ends the test).
  bool soft_roce = false;

  // Makes a device with one active RoCE v2 port, with a link-local GID at index 0 and `address` at
  // index 1.
  static FakeDevice Ethernet(const std::string& name, const std::string& address);
  // Same as above, on no bus.
  static FakeDevice SoftRoce(const std::string& name, const std::string& address);
  static FakeDevice InfiniBand(const std::string& name, uint16_t lid);
};

struct LiveObjects {
  int contexts = 0;
  int protection_domains = 0;
  int regions = 0;
  int windows = 0;
  int channels = 0;
  int completion_queues = 0;
  int queue_pairs = 0;
  bool operator==(const LiveObjects&) const = default;
};
std::ostream& operator<<(std::ostream& stream, const LiveObjects& live);

class FakeEngine;

class FakeFabric {
 public:
  struct Options {
    uint64_t seed = 1;
    bool manual = false;
  };
  FakeFabric() : FakeFabric(Options{}) {}
  explicit FakeFabric(const Options& options);
  ~FakeFabric();  // stops the worker

  std::shared_ptr<VerbsApi> AddHost(std::vector<FakeDevice> devices);

  // Takes one action. False if there was nothing to do. For manual fabrics.
  bool Step();
  // Steps until there is nothing to do; false if it took `most` actions first.
  bool RunUntilIdle(int most = 1'000'000);

  // Plans errors to come. Thread-safe at any time.
  FakeFaults& faults();
  // Holds back completions of receives; those of sends go on.
  void HoldReceives(bool held);
  // Sets the link of the named device on any host; raises PORT_ERR or PORT_ACTIVE there. While it
  // is down all traffic to and from it is lost, and requests in progress are retried.
  void SetLink(const std::string& device, int port, bool up);
  // Moves all of its queue pairs into error.
  void BreakQueuePairs(const std::string& device);
  // Pulls the card: raises DEVICE_FATAL, nothing moves or completes on it any more, and all calls
  // except those that destroy return EIO.
  void RemoveDevice(const std::string& device);
  // Sets the number of the next queue pair. Numbers are otherwise never reused.
  void SetNextQueuePair(uint32_t number);

  LiveObjects live() const;
  // Requests executed, of any kind and outcome.
  int64_t executed() const;

 private:
  const std::shared_ptr<FakeEngine> engine_;
  std::thread worker_;
};

}  // namespace shoal::transport
