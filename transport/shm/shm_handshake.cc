#include "transport/shm/shm_handshake.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>

#include "common/random.h"
#include "common/status.h"

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
  WriteRegions(hello.regions, writer);
  return writer.bytes();
}

absl::StatusOr<ShmHello> DecodeShmHello(std::string_view body) {
  ByteReader reader(body);
  const uint32_t version = reader.U32();
  ShmHello hello;
  hello.acceptance = reader.U64();
  hello.secret = reader.String();
  SHOAL_ASSIGN_OR_RETURN(hello.regions, ReadRegions("a dialling process", reader));
  if (!reader.complete() || version != kTransportProtocolVersion) {
    return InvalidArgument("malformed greeting on a local socket");
  }
  return hello;
}

absl::StatusOr<PeerMemory> MapPeerMemory(std::string_view peer, std::vector<RemoteRegion> table,
                                         std::span<UniqueFd> fds, bool gpu_sources) {
  if (fds.size() != table.size() + 2 || !IsEventFd(fds[1].get())) {
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
  for (size_t i = 0; i < table.size(); ++i) {
    UniqueFd& fd = fds[i + 2];
    SharedMemory& source = memory.gpu_sources.emplace_back();
    if (gpu_sources && !table[i].writable && !SharedMemory::SealedAgainstWriting(fd.get())) {
      auto mapped = SharedMemory::Map(UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)), table[i].bytes,
                                      /*writable=*/true);
      if (!mapped.ok()) {
        return Annotate(mapped.status(), peer);
      }
      source = *std::move(mapped);
    }
    auto region = SharedMemory::Map(std::move(fd), table[i].bytes, table[i].writable);
    if (!region.ok()) {
      return Annotate(region.status(), peer);
    }
    memory.regions.push_back(*std::move(region));
  }
  memory.table = std::move(table);
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
    // A full backlog is EAGAIN, a listener that is gone ECONNREFUSED.
    const int error = errno;
    return Unavailable("cannot reach the peer's local socket: {}", std::strerror(error));
  }
  return fd;
}

}  // namespace shoal::transport
