// The messages of a shm handshake. They travel over an AF_UNIX sequenced-packet socket, so a
// message arrives whole or not at all, and memory and eventfds go along as file descriptors.
//
//   connector                                            acceptor
//     Hello {version, acceptance, secret, regions}  ->
//           + [queue page, eventfd, regions...]
//                                                   <-   Welcome {regions}
//                                                              + [control, queue page, eventfd,
//                                                                 regions...]
//                                                        or Refusal {code, text}
//
// A region in GPU memory has no descriptor; the message says how to open it. Either side sends
// Goodbye before it closes in good order; a socket that ends without one means that the peer died.
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
  ShmMessageType type = ShmMessageType::kEnd;  // kEnd: the peer has closed the socket
  std::string body;
  std::vector<UniqueFd> fds;
};

// Never blocks. A full socket is an error: handshakes are far smaller than its buffer.
absl::Status SendShmMessage(int socket, ShmMessageType type, std::string_view body,
                            std::span<const int> fds = {});
// Never blocks: NotFound if no message has arrived. InvalidArgument if one is malformed.
absl::StatusOr<ShmMessage> ReceiveShmMessage(int socket);

// An exposed region as announced to a peer.
struct ShmRegionOffer {
  RemoteRegion region;
  std::optional<GpuShare> share;  // of GPU memory; for other memory a descriptor travels along
};
// Describes the `exposed` regions, which are ShmRegions.
std::vector<ShmRegionOffer> OfferRegions(const std::vector<std::shared_ptr<Region>>& exposed);
// Appends the descriptors of those regions that have one.
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

// What a poster needs to reach its peer: the peer's regions, and its queue to wake.
struct PeerMemory {
  std::vector<RemoteRegion> table;
  std::vector<PeerRegion> regions;
  // By region: the mapping that a GPU copies from instead, if the peer allows one (region.h), else
  // empty. Used only where a GPU copies at full rate from nothing else.
  std::vector<SharedMemory> gpu_sources;
  SharedMemory queue_page;  // first word: the flag of the peer's Sleeper; mapped read-only
  UniqueFd event_fd;
};
inline constexpr int64_t kQueuePageBytes = 4096;

// fds are [queue page, eventfd, regions...]. `gpu` copies here, and may be null. With regions in
// GPU memory: FailedPrecondition if `gpu` is null or does not reach them, PermissionDenied without
// `opens_gpu_memory`.
absl::StatusOr<PeerMemory> MapPeerMemory(std::string_view peer,
                                         std::span<const ShmRegionOffer> offers,
                                         std::span<UniqueFd> fds,
                                         const std::shared_ptr<GpuMemory>& gpu,
                                         bool opens_gpu_memory);

// Equal for two processes that reach each other's abstract sockets: identifies the kernel's boot
// and the network namespace.
std::string HostIdentity();

// OK if the process at the other end runs as the same user as this one.
absl::Status CheckSameUser(int socket);

// A nonblocking socket that listens at an abstract address with a random name.
struct ShmListener {
  UniqueFd socket;
  std::string name;
};
absl::StatusOr<ShmListener> ListenShm();
absl::StatusOr<UniqueFd> DialShm(const std::string& name);

}  // namespace shoal::transport
