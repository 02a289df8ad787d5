// What the fake fabric's handles point to: libibverbs' own structs, with the device's state added.
// Guarded by the engine's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/base/file.h"
#include "core/transport/verbs/testing/fake_verbs.h"

namespace shoal::transport {

struct FakeContext;
struct FakeQp;

struct FakeDeviceState {
  FakeDevice description;
  int host = 0;
  bool removed = false;
  ibv_device listed = {};  // what a context points to
  std::vector<FakeContext*> contexts;
};

// A port of a device, which an address leads to.
struct FakePortRef {
  FakeDeviceState* device = nullptr;
  int port = 0;  // from 1
  bool operator==(const FakePortRef&) const = default;

  const FakePort& get() const { return device->description.ports[static_cast<size_t>(port - 1)]; }
  bool up() const { return !device->removed && get().active; }
};

struct FakeContext : ibv_context {
  FakeDeviceState* state = nullptr;
  UniqueFd events_fd;  // counts `events`
  std::deque<ibv_async_event> events;
};

struct FakePd : ibv_pd {
  int users = 0;
};

struct FakeMr : ibv_mr {
  int access = 0;
  int windows = 0;  // bound to it
};

struct FakeMw : ibv_mw {
  uint32_t key = 0;          // the key in force: a bind changes it, but not the struct's
  FakeMr* region = nullptr;  // null: not bound
  FakeQp* owner = nullptr;   // the queue pair that it is bound to
  uint64_t begin = 0;
  uint64_t bytes = 0;
  unsigned int access = 0;
};

struct FakeCq;

struct FakeChannel : ibv_comp_channel {
  UniqueFd events_fd;  // counts `events`, and may count some that were withdrawn
  std::deque<FakeCq*> events;
  int queues = 0;
};

struct FakeCompletion {
  ibv_wc completion = {};
  bool receive = false;
};

struct FakeCq : ibv_cq {
  std::deque<FakeCompletion> completions;
  bool armed = false;
  int queue_pairs = 0;
  unsigned int events_taken = 0;
  unsigned int events_acknowledged = 0;
};

struct FakeSend {
  enum class Phase {
    kPosted,
    kMoving,  // in progress: its bytes are being copied
    kDone,    // its outcome is known, but not yet to the poster
  };
  ibv_send_wr request = {};  // its sg_list and next must not be used
  std::vector<ibv_sge> pieces;
  std::string inlined;
  uint64_t bytes = 0;
  uint64_t moved = 0;
  Phase phase = Phase::kPosted;
  ibv_wc_status status = IBV_WC_SUCCESS;
  ibv_wc_status injected = IBV_WC_SUCCESS;  // its outcome once it has been executed
  // The acknowledgement of a request that is done when the peer becomes unreachable.
  enum class Acknowledgement { kNotDrawn, kArrived, kLost };
  Acknowledgement acknowledgement = Acknowledgement::kNotDrawn;
};

struct FakeReceive {
  uint64_t id = 0;
  std::vector<ibv_sge> pieces;
};

// A completion of a receive on its way to the completion queue.
struct FakeArrival {
  ibv_wc completion = {};
  absl::Time not_before;
  bool lost = false;
};

struct FakeQp : ibv_qp {
  FakeDeviceState* device = nullptr;
  ibv_qp_cap capacity = {};
  bool signal_all = false;
  bool runnable = false;  // in the engine's list

  // What ModifyQp set.
  ibv_qp_attr attributes = {};
  FakePortRef local;
  FakePortRef remote;
  uint32_t send_sequence = 0;  // of the next message
  uint32_t receive_sequence = 0;

  std::deque<FakeSend> sends;  // not completed
  size_t begun = 0;            // this many of them are done or in progress
  int reads_moving = 0;
  std::deque<FakeReceive> receives;
  std::deque<FakeArrival> arrivals;
  // Places in the queues; freed when the completion has been polled.
  uint32_t sends_in_use = 0;
  uint32_t receives_in_use = 0;
  std::deque<uint32_t> send_places;  // of completions not yet polled: how many places each frees
  uint32_t unsignaled_places = 0;    // of requests that completed unsignaled since

  bool failing = false;  // a request has failed: begin no other
  absl::Time blocked_until;
  int retries = 0;
  int not_ready_retries = 0;
  absl::Time not_ready_since = absl::InfiniteFuture();
  unsigned int events_taken = 0;  // asynchronous ones
  unsigned int events_acknowledged = 0;
};

}  // namespace shoal::transport
