#include "core/transport/shm/handshake.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>

#include "core/base/random.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

constexpr size_t kMaxFds = kMaxExposedRegions + 3;
static_assert(kMaxFds <= 253, "the kernel's limit for one message (SCM_MAX_FD)");

// Takes the descriptors first, so that those of a malformed message are closed too.
std::vector<UniqueFd> TakeFds(msghdr& header) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr;
       control = CMSG_NXTHDR(&header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

bool IsEventFd(int fd) {
  std::array<char, 64> target = {};
  const ssize_t length =
      readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), target.data(), target.size());
  return length > 0 &&
         std::string_view(target.data(), static_cast<size_t>(length)) == "anon_inode:[eventfd]";
}

sockaddr_un Address(const std::string& name, socklen_t* length) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(),
              name.size());  // a leading zero byte makes it abstract
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

absl::StatusOr<UniqueFd> NewSocket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, "making a local socket");
  }
  return fd;
}

}  // namespace

absl::Status SendShmMessage(int socket, ShmMessageType type, std::string_view body,
                            std::span<const int> fds) {
  uint32_t type_word = static_cast<uint32_t>(type);
  iovec parts[2] = {{&type_word, sizeof type_word}, {const_cast<char*>(body.data()), body.size()}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control = {};
  msghdr header = {};
  header.msg_iov = parts;
  header.msg_iovlen = 2;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  if (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    return ErrnoToStatus(errno, "sending on a local socket");
  }
  return absl::OkStatus();
}

absl::StatusOr<ShmMessage> ReceiveShmMessage(int socket) {
  uint32_t type = 0;
  std::string body(kMaxHandshakeBytes, '\0');
  iovec parts[2] = {{&type, sizeof type}, {body.data(), body.size()}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control = {};
  msghdr header = {};
  header.msg_iov = parts;
  header.msg_iovlen = 2;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t size = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
      return NotFound("no message yet");
    }
    if (errno == ECONNRESET) {
      return ShmMessage();
    }
    return ErrnoToStatus(errno, "receiving on a local socket");
  }
  ShmMessage message;
  message.fds = TakeFds(header);
  if (size == 0) {
    return message;
  }
  const bool truncated = (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  if (truncated || static_cast<size_t>(size) < sizeof type || type < 1 ||
      type > static_cast<uint32_t>(ShmMessageType::kGoodbye)) {
    return InvalidArgument("malformed message on a local socket");
  }
  message.type = static_cast<ShmMessageType>(type);
  body.resize(static_cast<size_t>(size) - sizeof type);
  message.body = std::move(body);
  return message;
}

std::string EncodeShmHello(const ShmHello& hello) {
  ByteWriter writer;
  writer.U32(kTransportProtocolVersion);
  writer.U64(hello.acceptance);
  writer.String(hello.secret);
  WriteOffers(hello.regions, writer);
  return writer.bytes();
}

absl::StatusOr<ShmHello> DecodeShmHello(std::string_view body) {
  ByteReader reader(body);
  const uint32_t version = reader.U32();
  ShmHello hello;
  hello.acceptance = reader.U64();
  hello.secret = reader.String();
  SHOAL_ASSIGN_OR_RETURN(hello.regions, ReadOffers("a dialling process", reader));
  if (!reader.complete() || version != kTransportProtocolVersion) {
    return InvalidArgument("malformed greeting on a local socket");
  }
  return hello;
}

std::vector<ShmRegionOffer> OfferRegions(const std::vector<std::shared_ptr<Region>>& exposed) {
  const std::vector<RemoteRegion> regions = DescribeRegions(exposed);
  std::vector<ShmRegionOffer> offers;
  for (size_t i = 0; i < exposed.size(); ++i) {
    offers.push_back(
        {.region = regions[i], .share = static_cast<const ShmRegion&>(*exposed[i]).share()});
  }
  return offers;
}

void AppendFds(const std::vector<std::shared_ptr<Region>>& exposed, std::vector<int>& fds) {
  for (const auto& region : exposed) {
    const auto& own = static_cast<const ShmRegion&>(*region);
    if (!own.share().has_value()) {
      fds.push_back(own.fd());
    }
  }
}

void WriteOffers(std::span<const ShmRegionOffer> offers, ByteWriter& writer) {
  std::vector<RemoteRegion> regions;
  for (const ShmRegionOffer& offer : offers) {
    regions.push_back(offer.region);
  }
  WriteRegions(regions, writer);
  for (const ShmRegionOffer& offer : offers) {
    writer.U32(offer.share.has_value() ? 1 : 0);
    if (offer.share.has_value()) {
      writer.String({offer.share->gpu.data(), offer.share->gpu.size()});
      writer.String({offer.share->allocation.data(), offer.share->allocation.size()});
      writer.I64(offer.share->offset);
    }
  }
}

absl::StatusOr<std::vector<ShmRegionOffer>> ReadOffers(std::string_view peer, ByteReader& reader) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<RemoteRegion> regions, ReadRegions(peer, reader));
  std::vector<ShmRegionOffer> offers;
  for (const RemoteRegion& region : regions) {
    ShmRegionOffer& offer = offers.emplace_back(ShmRegionOffer{.region = region});
    const uint32_t on_gpu = reader.U32();
    if (on_gpu == 1) {
      GpuShare& share = offer.share.emplace();
      const std::string gpu = reader.String();
      const std::string allocation = reader.String();
      share.offset = reader.I64();
      share.bytes = region.bytes;
      if (gpu.size() != share.gpu.size() || allocation.size() != share.allocation.size()) {
        return InvalidArgument("{}: malformed exposed region", peer);
      }
      std::ranges::copy(gpu, share.gpu.begin());
      std::ranges::copy(allocation, share.allocation.begin());
    }
    if (!reader.ok() || on_gpu > 1) {
      return InvalidArgument("{}: malformed exposed region", peer);
    }
  }
  return offers;
}

namespace {

absl::StatusOr<PeerRegion> OpenRegion(const GpuShare& share,
                                      const std::shared_ptr<GpuMemory>& gpu) {
  if (gpu == nullptr) {
    return FailedPrecondition("it exposes memory of {}, and this process uses no GPU; use tcp",
                              GpuName(share.gpu));
  }
  SHOAL_ASSIGN_OR_RETURN(const OpenedShare opened, gpu->Open(share));
  return PeerRegion(gpu, opened);
}

absl::StatusOr<PeerRegion> MapRegion(const RemoteRegion& region, UniqueFd fd) {
  SHOAL_ASSIGN_OR_RETURN(SharedMemory memory,
                         SharedMemory::Map(std::move(fd), region.bytes, region.writable));
  return PeerRegion(std::move(memory));
}

// Returns an empty mapping if a GPU copies from the region itself.
absl::StatusOr<SharedMemory> MapGpuSource(const RemoteRegion& region, int fd,
                                          const GpuMemory* gpu) {
  if (gpu == nullptr || gpu->PinsReadOnly() || region.writable ||
      SharedMemory::SealedAgainstWriting(fd)) {
    return SharedMemory();
  }
  return SharedMemory::Map(UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)), region.bytes,
                           /*writable=*/true);
}

absl::Status AddRegion(const ShmRegionOffer& offer, UniqueFd* fd,
                       const std::shared_ptr<GpuMemory>& gpu, PeerMemory& memory) {
  SharedMemory& source = memory.gpu_sources.emplace_back();
  memory.table.push_back(offer.region);
  if (offer.share.has_value()) {
    SHOAL_ASSIGN_OR_RETURN(PeerRegion region, OpenRegion(*offer.share, gpu));
    memory.regions.push_back(std::move(region));
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(source, MapGpuSource(offer.region, fd->get(), gpu.get()));
  SHOAL_ASSIGN_OR_RETURN(PeerRegion region, MapRegion(offer.region, std::move(*fd)));
  memory.regions.push_back(std::move(region));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PeerMemory> MapPeerMemory(std::string_view peer,
                                         std::span<const ShmRegionOffer> offers,
                                         std::span<UniqueFd> fds,
                                         const std::shared_ptr<GpuMemory>& gpu,
                                         bool opens_gpu_memory) {
  const auto shared = static_cast<size_t>(std::ranges::count_if(
      offers, [](const ShmRegionOffer& offer) { return !offer.share.has_value(); }));
  if (shared < offers.size() && !opens_gpu_memory) {
    return PermissionDenied("{}: it exposes memory of a GPU, and this side opens none", peer);
  }
  if (fds.size() != shared + 2 || !IsEventFd(fds[1].get())) {
    return InvalidArgument("{}: its handshake lacks file descriptors", peer);
  }
  PeerMemory memory;
  absl::StatusOr<SharedMemory> page =
      SharedMemory::Map(std::move(fds[0]), kQueuePageBytes, /*writable=*/false);
  if (!page.ok()) {
    return Annotate(page.status(), peer);
  }
  memory.queue_page = *std::move(page);
  memory.event_fd = std::move(fds[1]);
  size_t next = 2;
  for (const ShmRegionOffer& offer : offers) {
    UniqueFd* const fd = offer.share.has_value() ? nullptr : &fds[next++];
    SHOAL_RETURN_IF_ERROR(Annotate(AddRegion(offer, fd, gpu, memory), peer));
  }
  return memory;
}

std::string HostIdentity() {
  const absl::StatusOr<std::string> boot = ReadFile("/proc/sys/kernel/random/boot_id", 4096);
  struct stat network = {};
  stat("/proc/self/ns/net", &network);
  return fmt::format("{}/{}:{}", boot.ok() ? boot->substr(0, 36) : "unknown", network.st_dev,
                     network.st_ino);
}

absl::Status CheckSameUser(int socket) {
  ucred credentials = {};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return ErrnoToStatus(errno, "asking who is at the other end of a local socket");
  }
  if (credentials.uid != geteuid()) {
    return PermissionDenied(
        "shared memory joins processes of one user alone: the other runs as user {}, this one as "
        "{}; use tcp",
        credentials.uid, geteuid());
  }
  return absl::OkStatus();
}

absl::StatusOr<ShmListener> ListenShm() {
  SHOAL_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
  const std::string name = "shoal-" + SecureToken();
  socklen_t length = 0;
  const sockaddr_un address = Address(name, &length);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(fd.get(), 128) != 0) {
    return ErrnoToStatus(errno, "listening on a local socket");
  }
  return ShmListener{std::move(fd), name};
}

absl::StatusOr<UniqueFd> DialShm(const std::string& name) {
  if (name.empty() || name.size() > 100) {
    return InvalidArgument("impossible name of a local socket");
  }
  SHOAL_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
  socklen_t length = 0;
  const sockaddr_un address = Address(name, &length);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    // EAGAIN: the backlog is full. ECONNREFUSED: the listener is gone.
    const int error = errno;
    return Unavailable("cannot reach the peer's local socket: {}", std::strerror(error));
  }
  return fd;
}

}  // namespace shoal::transport
