// A fabric of reliable queue pairs within one process, behind VerbsApi: for tests of what runs over
// it without hardware, and with the errors that hardware seldom shows.
//
//   FakeFabric fabric({.seed = 7});
//   std::shared_ptr<VerbsApi> server = fabric.AddHost({FakeDevice::Ethernet("mlx5_0",
//   "10.0.0.1")}); std::shared_ptr<VerbsApi> worker =
//   fabric.AddHost({FakeDevice::Ethernet("mlx5_0", "10.0.0.2")});
//
// What it does. Objects, states, rights and statuses are those of the InfiniBand specification for
// RC queue pairs: keys are checked for protection domain, range and right, type 2 windows for their
// queue pair; requests of a queue pair are executed in order and complete in order; queues and
// completion queues have just the size asked for, and a work request's place is free when its
// completion has been polled. An overrun completion queue, or an object destroyed while something
// of it is in use by the device, ends the test.
//
// When. Nothing happens within a post. A worker thread (or, with Options::manual, Step) takes one
// small action at a time of some queue pair that the seed picks: the next piece of a transfer, a
// completion to its poster, a receive's completion. So completions of the two ends and of the two
// queues of one end interleave differently from seed to seed. Time-outs are those that the queue
// pairs ask for, on the machine's clock, or when manual on one that jumps to the next time-out
// when there is nothing else to do.
//
// Threads: all functions are thread-safe; one lock guards the fabric. Everything made through a
// host must be destroyed before the process exits, and live() tells whether it has been. Hosts
// may outlive the fabric object, but then nothing moves any more.
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
  int max_reads = 16;  // of a queue pair at once, as source and as target
  uint32_t max_inline_bytes = 256;
  uint64_t max_region_bytes = uint64_t{1} << 40;
  bool windows = true;  // type 2
  // As the kernel's soft-RoCE differs from the specification: a local key that is wrong for a write
  // is LOC_QP_OP_ERR, receives posted to a queue pair in error never complete, waiting for a
  // receiver that is not ready is bounded by the acknowledgement timer, the largest message is not
  // enforced, errors raise no asynchronous events, and to destroy a queue pair waits for its
  // windows (here it ends the test).
  bool soft_roce = false;

  // One active RoCE v2 port with a link-local GID at index 0 and `address` at index 1.
  static FakeDevice Ethernet(const std::string& name, const std::string& address);
  // The same, on no bus.
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

  // One action. False if there was nothing to do. For manual fabrics.
  bool Step();
  // Until there is nothing to do, or so many actions were taken: false then.
  bool RunUntilIdle(int most = 1'000'000);

  // The errors to come. Every function of it may be called at any time.
  FakeFaults& faults();
  // Completions of receives wait while held; those of sends go on.
  void HoldReceives(bool held);
  // Of the device of that name on any host; raises PORT_ERR or PORT_ACTIVE there. While it is down
  // everything to and from it is lost, and what was under way is repeated as retries go.
  void SetLink(const std::string& device, int port, bool up);
  // Moves all of its queue pairs into error.
  void BreakQueuePairs(const std::string& device);
  // Pulls the card: DEVICE_FATAL, nothing moves or completes on it any more, and calls give EIO,
  // but for those that destroy.
  void RemoveDevice(const std::string& device);
  // The number of the next queue pair. Otherwise numbers do not come back.
  void SetNextQueuePair(uint32_t number);

  LiveObjects live() const;
  // Requests that were executed, of any kind and outcome.
  int64_t executed() const;

 private:
  const std::shared_ptr<FakeEngine> engine_;
  std::thread worker_;
};

}  // namespace shoal::transport
