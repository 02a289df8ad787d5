// Transport: how tensors move between a client and a server. One interface; shm, tcp and (with
// RDMA) verbs implement it, and transport/testing decorates any of them with faults. Control goes
// over gRPC.
//
// Model. Each side of a connection exposes regions of memory to the other. A side may post
// one-sided reads from, and writes into, the regions its peer exposed; a write may ring a doorbell
// (a 32-bit value) at the peer after its data is in place. Both sides are equal after the
// handshake: a worker reads weights and writes gradients with a doorbell, a server writes
// acknowledgements with a doorbell. Events arrive on the EventQueue that the connection was made
// with.
//
// Handshake. It rides in a gRPC call that the service has authenticated: the connecting side's
// Offer() goes into the request, the accepting side's Accept() consumes it and returns the answer
// for the reply, and Complete() consumes that. Offers and answers are opaque, versioned,
// size-capped bytes, hold single-use secrets and are never logged.
//
// Guarantees, the same for every transport (core/transport/testing/conformance.h tests them):
// - A read's completion means that its bytes are in place. Reads of one PostReads call may be
//   served in any order.
// - A doorbell is delivered after the data of its own write and of all writes posted before it. To
//   a peer that heard none, writes become visible in the order posted where
//   capabilities().writes_in_order says so, else in any order. A doorbell is delivered at most
//   once, and may be lost when a connection breaks: it is a hint, the data is the truth.
// - Every posted operation completes exactly once: successfully, or with an error when the
//   connection breaks or is closed. After an error the outcome of a write at the peer is unknown.
// - A peer that dies or closes causes one kClosed event; no event of that connection follows it.
//   Nothing hangs: a peer that no longer answers is detected within the transport's keep-alive.
// - An access outside an exposed region or against its access right fails at the poster and never
//   touches memory. After Close() returns, the peer can no longer reach this side's regions through
//   this connection.
// - Queues are bounded: PostReads and PostWrites take all operations or none (ResourceExhausted).
//
// Threads. Transport is thread-safe. One thread at a time may post on a Connection, and one thread
// at a time may poll an EventQueue. Wake() and Close() may be called from any thread.
//
// Ownership. Regions are shared with the connections that expose them. Memory named in a posted
// operation must stay valid until its completion. Destroy connections before their queue, and
// queues before their transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace shoal::transport {

// What may be done with a region, besides its owner using it.
enum class Access {
  kLocal,        // only source or destination of the owner's own operations
  kRemoteRead,   // peers that it is exposed to may read
  kRemoteWrite,  // peers that it is exposed to may read and write
};

// Memory known to a transport. Allocated regions are page-aligned. When the last reference goes, it
// is unregistered and, if the transport allocated it, freed.
class Region {
 public:
  virtual ~Region() = default;
  virtual std::span<std::byte> bytes() = 0;
  virtual Access access() const = 0;
};

struct Capabilities {
  bool one_sided_reads = false;  // a read needs no thread of the peer's process
  bool same_host_only = false;
  bool inline_reads = false;  // PostReads copies before it returns (completion events still come)
  bool writes_in_order = false;  // to a peer that heard no doorbell too
  bool exposes_any_memory =
      false;  // Register may expose memory that this transport did not allocate
  // Register may expose GPU memory, with the GpuMemory that the transport was given. The handshake
  // tells a peer that does not reach it.
  bool exposes_gpu_memory = false;
  // The GPUs (GpuName) whose memory this side opens if a peer exposes it, so that copies go from
  // GPU to GPU. A peer that does not list that GPU cannot be connected to with such a region
  // exposed.
  std::vector<std::string> opens_gpus;
  int64_t max_operation_bytes = 0;  // the transport splits larger ones itself, at this size
  // Why reads into GPU memory take longer than through pinned host memory. Empty if they do not, or
  // if GPU memory is not supported at all.
  std::string slow_gpu_reads;
};

struct Event {
  enum class Kind { kReadDone, kWriteDone, kDoorbell, kClosed };
  Kind kind = Kind::kReadDone;
  uint64_t connection = 0;  // Connection::id()
  uint64_t operation = 0;   // kReadDone, kWriteDone: the id that it was posted with
  uint32_t immediate = 0;   // kDoorbell
  absl::Status
      status;  // kReadDone, kWriteDone: outcome; kClosed: why (OK: the peer closed in good order)
};

// Where the events of any number of connections arrive.
class EventQueue {
 public:
  virtual ~EventQueue() = default;
  // Takes up to events.size() events; returns 0 if there are none. Never blocks.
  virtual size_t Poll(std::span<Event> events) = 0;
  // Blocks until there is something to poll, Wake() is called or the time is up. True if there may
  // be something to poll.
  virtual bool Wait(absl::Duration timeout) = 0;
  virtual void Wake() = 0;
};

struct ReadOperation {
  uint64_t id = 0;
  int region = 0;             // index among the regions that the peer exposed
  int64_t offset = 0;         // bytes into that region
  std::span<std::byte> into;  // in a region of this transport (any access)
};

struct WriteOperation {
  uint64_t id = 0;
  int region = 0;
  int64_t offset = 0;
  std::span<const std::byte>
      from;  // in a region of this transport; may be empty for a bare doorbell
  bool ring = false;
  uint32_t immediate = 0;
};

class Connection {
 public:
  virtual ~Connection() = default;              // closes
  virtual uint64_t id() const = 0;              // unique within the process
  virtual const std::string& peer() const = 0;  // for messages: ConnectionOptions::peer
  // Sizes in bytes of the regions that the peer exposed, by index. Known once connected.
  virtual std::vector<int64_t> remote_region_sizes() const = 0;
  virtual absl::Status PostReads(std::span<const ReadOperation> operations) = 0;
  virtual absl::Status PostWrites(std::span<const WriteOperation> operations) = 0;
  // Idempotent. Outstanding operations complete with Cancelled, then kClosed follows.
  virtual void Close() = 0;
};

struct ConnectionOptions {
  EventQueue* queue = nullptr;  // of the same transport
  std::vector<std::shared_ptr<Region>> exposed;
  std::string peer;  // a name for messages, e.g. "server-1"
  absl::Duration handshake_timeout = absl::Seconds(10);
  int64_t max_outstanding = 1024;  // operations of each kind
  // Opens GPU memory that the peer exposes (capabilities().opens_gpus). Without it a peer that
  // exposes some is refused: opening it passes data from the peer to this process's driver.
  bool opens_gpu_memory = false;
};

// The connecting side between its offer and the answer.
class Connector {
 public:
  virtual ~Connector() = default;  // gives up if Complete was not called
  virtual const std::string& offer() const = 0;
  virtual absl::StatusOr<std::unique_ptr<Connection>> Complete(const std::string& answer) = 0;
};

struct Acceptance {
  std::unique_ptr<Connection> connection;  // usable once the peer completes; kClosed if it does not
                                           // within handshake_timeout
  std::string answer;
};

// Totals since a transport was made, for metrics.
struct TransportStatistics {
  // Ranges of GPU memory for which registration was asked, counted once per device, by how the
  // device reaches them: "dma_buf", "peer_memory", "staged" (through the host), or "refused". Empty
  // if there were none.
  std::map<std::string, int64_t> gpu_ranges;
  // Operations that RDMA devices reported as failed: "refused_by_peer", "no_answer" of the peer's
  // device, "peer_not_ready", "local", "other". Those alone that came.
  std::map<std::string, int64_t> device_errors;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;  // "shm", "tcp", "verbs"
  virtual const Capabilities& capabilities() const = 0;
  virtual TransportStatistics statistics() const { return {}; }

  virtual absl::StatusOr<std::unique_ptr<EventQueue>> CreateQueue() = 0;
  // Allocates zeroed memory that can be exposed.
  virtual absl::StatusOr<std::shared_ptr<Region>> Allocate(int64_t bytes, Access access) = 0;
  // Registers the caller's memory, which must outlive the region. kLocal always works. Any other
  // access exposes that memory: Unimplemented if capabilities().exposes_any_memory is false (shm
  // exposes only what it allocated). So allocate memory that several transports expose from the one
  // that cannot, and register it with the others.
  virtual absl::StatusOr<std::shared_ptr<Region>> Register(std::span<std::byte> memory,
                                                           Access access) = 0;

  virtual absl::StatusOr<std::unique_ptr<Connector>> Offer(const ConnectionOptions& options) = 0;
  virtual absl::StatusOr<Acceptance> Accept(const std::string& offer,
                                            const ConnectionOptions& options) = 0;
};

// Larger offers or answers are rejected unread.
inline constexpr size_t kMaxHandshakeBytes = 16384;

}  // namespace shoal::transport
