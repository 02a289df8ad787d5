// The messages of a shm handshake and what they carry: an AF_UNIX sequenced-packet socket, so a
// message is whole or not there, and memory and eventfds travel along as file descriptors.
//
//   connector                                          acceptor
//     Hello  {version, acceptance, secret, regions} + [queue page, eventfd, regions...]   ->
//     <-  Welcome {regions} + [control, queue page, eventfd, regions...]   or   Refusal {code,
//     text}
//   of regions in a GPU's memory there is no descriptor; how to open them is in the message
//   either: Goodbye before it closes in good order; the end of the socket without one is a death
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/file.h"
#include "core/transport/handshake.h"
#include "core/transport/shm/region.h"

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

// An exposed region as a peer learns of it.
struct ShmRegionOffer {
  RemoteRegion region;
  std::optional<GpuShare> share;  // of a GPU's memory; else a descriptor travels along
};
// Of `exposed`, which are ShmRegions.
std::vector<ShmRegionOffer> OfferRegions(const std::vector<std::shared_ptr<Region>>& exposed);
// Appends the descriptors of those that have one.
void AppendFds(const std::vector<std::shared_ptr<Region>>& exposed, std::vector<int>& fds);
void WriteOffers(std::span<const ShmRegionOffer> offers, ByteWriter& writer);
absl::StatusOr<std::vector<ShmRegionOffer>> ReadOffers(std::string_view peer, ByteReader& reader);

struct ShmHello {
  uint64_t acceptance = 0;
  std::string secret;
  std::vector<ShmRegionOffer> regions;
};
std::string EncodeShmHello(const ShmHello& hello);
absl::StatusOr<ShmHello> DecodeShmHello(std::string_view body);

// What lets a poster reach its peer: the peer's regions, and its queue to wake.
struct PeerMemory {
  std::vector<RemoteRegion> table;
  std::vector<PeerRegion> regions;
  // By region: what a GPU copies from instead, as the peer allows it (region.h); else empty.
  // Only where a GPU copies at full rate from nothing else.
  std::vector<SharedMemory> gpu_sources;
  SharedMemory queue_page;  // first word: the flag of the peer's Sleeper; mapped read-only
  UniqueFd event_fd;
};
inline constexpr int64_t kQueuePageBytes = 4096;

// fds are [queue page, eventfd, regions...]. `gpu` copies here, and may be null: then it is
// FailedPrecondition where there are regions in a GPU's memory, as where it does not reach them;
// PermissionDenied without `opens_gpu_memory`.
absl::StatusOr<PeerMemory> MapPeerMemory(std::string_view peer,
                                         std::span<const ShmRegionOffer> offers,
                                         std::span<UniqueFd> fds,
                                         const std::shared_ptr<GpuMemory>& gpu,
                                         bool opens_gpu_memory);

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
