// Transport: how tensors move between a client and a server. One interface; shm, tcp and (with
// RDMA) verbs implement it, and transport/testing decorates any of them with faults. Control goes
// over gRPC, tensors never do.
//
// Model. Each side of a connection exposes regions of memory to the other. A side may post
// one-sided reads from, and writes into, the regions its peer exposed; a write may ring a doorbell
// (a 32-bit value) at the peer, after its data is in place. Both sides are equal after the
// handshake: a worker reads weights and writes gradients with a doorbell, a server writes
// acknowledgements with a doorbell. What happened arrives as events on the EventQueue the
// connection was made with.
//
// Handshake. It rides in a gRPC call that the service has authenticated: the connecting side's
// Offer() goes into the request, the accepting side's Accept() consumes it and gives the answer for
// the reply, and Complete() consumes that. Offers and answers are opaque, versioned, size-capped
// bytes, hold single-use secrets and are never logged.
//
// Guarantees, the same for every transport (core/transport/testing/conformance.h tests them):
//  - A read's completion means its bytes are in place. Reads of one PostReads call may be served in
//  any order.
//  - Writes of one connection become visible at the peer in the order posted, and a doorbell is
//  delivered after the data of its own
//    write and of all writes posted before it. A doorbell is delivered at most once, and may be
//    lost when a connection breaks: it is a hint, the data is the truth.
//  - Every posted operation completes exactly once: well, or with an error when the connection
//  breaks or is closed. After an
//    error the outcome of a write at the peer is unknown.
//  - A peer that dies or closes gives one kClosed event; after it no event of that connection
//  follows. Nothing hangs:
//    a peer that no longer answers is detected within the transport's keep-alive.
//  - An access outside an exposed region or against its access right fails at the poster and never
//  touches memory.
//    After Close() returns, the peer can no longer reach this side's regions through this
//    connection.
//  - Queues are bounded: PostReads and PostWrites take all operations or none (ResourceExhausted).
//
// Threads. Transport is thread-safe. A Connection's posts may come from one thread at a time. An
// EventQueue is polled by one thread at a time, Wake() may come from any. Close() may come from any
// thread. Ownership. Regions are shared with the connections that expose them. Memory named in a
// posted operation must stay until its completion. Connections must be destroyed before their
// queue, queues before their transport.
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

// What may be done with a region besides use by its owner.
enum class Access {
  kLocal,        // source or destination of the owner's own operations alone
  kRemoteRead,   // peers it is exposed to may read
  kRemoteWrite,  // peers it is exposed to may read and write
};

// Memory known to a transport. Alignment is a page for allocated regions. Unregistered and, where
// the transport allocated it, freed when the last reference goes.
class Region {
 public:
  virtual ~Region() = default;
  virtual std::span<std::byte> bytes() = 0;
  virtual Access access() const = 0;
};

struct Capabilities {
  bool one_sided_reads = false;  // a read takes no thread of the peer's process
  bool same_host_only = false;
  bool inline_reads = false;  // PostReads copies before it returns (completion events still come)
  bool exposes_any_memory =
      false;  // Register may expose memory that this transport did not allocate
  // Register may expose memory of a GPU that the transport was given the way to. A peer that does
  // not reach it is told in the handshake.
  bool exposes_gpu_memory = false;
  // The GPUs (GpuName) whose memory this side opens where a peer exposes it, so that copies go from
  // GPU to GPU. Peers that do not name that GPU cannot be connected to with such a region exposed.
  std::vector<std::string> opens_gpus;
  int64_t max_operation_bytes =
      0;  // larger ones are split by the transport itself; this is where a split happens
  // Why reads into memory of a GPU take longer than by way of pinned memory of the host. Empty:
  // they do not, or that memory is not taken at all.
  std::string slow_gpu_reads;
};

struct Event {
  enum class Kind { kReadDone, kWriteDone, kDoorbell, kClosed };
  Kind kind = Kind::kReadDone;
  uint64_t connection = 0;  // Connection::id()
  uint64_t operation = 0;   // kReadDone, kWriteDone: the id it was posted with
  uint32_t immediate = 0;   // kDoorbell
  absl::Status
      status;  // kReadDone, kWriteDone: outcome; kClosed: why (OK: the peer closed in good order)
};

// Where the events of any number of connections arrive.
class EventQueue {
 public:
  virtual ~EventQueue() = default;
  // Takes up to events.size() events; 0 when there are none. Never blocks.
  virtual size_t Poll(std::span<Event> events) = 0;
  // Blocks until there is something to poll, Wake() is called or the time is up. True if there may
  // be something to poll.
  virtual bool Wait(absl::Duration timeout) = 0;
  virtual void Wake() = 0;
};

struct ReadOperation {
  uint64_t id = 0;
  int region = 0;             // index into what the peer exposed
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
  // Sizes in bytes of the regions the peer exposed, by index. Known once connected.
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
  // Opens memory of GPUs that the peer exposes (capabilities().opens_gpus). Without it a peer that
  // exposes some is refused: to open it hands what the peer says to this process's driver.
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
  // Ranges of GPU memory that were to be registered, once for each device, by how it reaches them:
  // "dma_buf", "peer_memory", "staged" (by way of the host), or "refused". Empty without any.
  std::map<std::string, int64_t> gpu_ranges;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;  // "shm", "tcp", "verbs"
  virtual const Capabilities& capabilities() const = 0;
  virtual TransportStatistics statistics() const { return {}; }

  virtual absl::StatusOr<std::unique_ptr<EventQueue>> CreateQueue() = 0;
  // Zeroed memory that can be exposed.
  virtual absl::StatusOr<std::shared_ptr<Region>> Allocate(int64_t bytes, Access access) = 0;
  // Registers memory of the caller's, which must outlive the region. kLocal always works. Another
  // access exposes that memory: Unimplemented where capabilities().exposes_any_memory is false (shm
  // can expose only what it allocated). So memory that several transports expose is allocated from
  // the one that cannot, and registered with the others.
  virtual absl::StatusOr<std::shared_ptr<Region>> Register(std::span<std::byte> memory,
                                                           Access access) = 0;

  virtual absl::StatusOr<std::unique_ptr<Connector>> Offer(const ConnectionOptions& options) = 0;
  virtual absl::StatusOr<Acceptance> Accept(const std::string& offer,
                                            const ConnectionOptions& options) = 0;
};

// Largest offer or answer that is looked at.
inline constexpr size_t kMaxHandshakeBytes = 16384;

}  // namespace shoal::transport
