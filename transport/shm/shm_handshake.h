// The messages of a shm handshake and what they carry: an AF_UNIX sequenced-packet socket, so a
// message is whole or not there, and memory and eventfds travel along as file descriptors.
//
//   connector                                          acceptor
//     Hello  {version, acceptance, secret, regions} + [queue page, eventfd, regions...]   ->
//     <-  Welcome {regions} + [control, queue page, eventfd, regions...]   or   Refusal {code,
//     text}
//   either: Goodbye before it closes in good order; the end of the socket without one is a death
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/file.h"
#include "transport/handshake.h"
#include "transport/shm/shm_region.h"

namespace shoal::transport {

enum class ShmMessageType : uint32_t {
  kHello = 1,
  kWelcome = 2,
  kRefusal = 3,
  kGoodbye = 4,
  kEnd = 5
};

struct ShmMessage {
  ShmMessageType type = ShmMessageType::kEnd;  // kEnd: the peer's end of the socket is closed
  std::string body;
  std::vector<UniqueFd> fds;
};

// Never blocks. A full socket is an error: handshakes are far smaller than its buffer.
absl::Status SendShmMessage(int socket, ShmMessageType type, std::string_view body,
                            std::span<const int> fds = {});
// Never blocks: NotFound if there is no message now. InvalidArgument on one that is malformed.
absl::StatusOr<ShmMessage> ReceiveShmMessage(int socket);

struct ShmHello {
  uint64_t acceptance = 0;
  std::string secret;
  std::vector<RemoteRegion> regions;
};
std::string EncodeShmHello(const ShmHello& hello);
absl::StatusOr<ShmHello> DecodeShmHello(std::string_view body);

// What lets a poster reach its peer: the peer's regions, and its queue to wake.
struct PeerMemory {
  std::vector<RemoteRegion> table;
  std::vector<SharedMemory> regions;
  // By region: what a GPU copies from instead, as the peer allows it (shm_region.h); else empty.
  std::vector<SharedMemory> gpu_sources;
  SharedMemory queue_page;  // first word: the flag of the peer's Sleeper; mapped read-only
  UniqueFd event_fd;
};
inline constexpr int64_t kQueuePageBytes = 4096;

// fds are [queue page, eventfd, regions...]. With `gpu_sources`, those are mapped where the peer
// allows it.
absl::StatusOr<PeerMemory> MapPeerMemory(std::string_view peer, std::vector<RemoteRegion> table,
                                         std::span<UniqueFd> fds, bool gpu_sources);

// Equal for two processes that can reach each other's abstract sockets: the boot of the kernel and
// the network namespace.
std::string HostIdentity();

// OK if the process at the other end runs as this one's user.
absl::Status CheckSameUser(int socket);

// An abstract address with a random name; a socket that listens there, nonblocking.
struct ShmListener {
  UniqueFd socket;
  std::string name;
};
absl::StatusOr<ShmListener> ListenShm();
absl::StatusOr<UniqueFd> DialShm(const std::string& name);

}  // namespace shoal::transport
