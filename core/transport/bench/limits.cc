// What the machine itself can do: memcpy, and a plain blocking socket loop.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "core/transport/bench/load.h"

namespace shoal::transport {
namespace {

// Looking at the clock for every small block would be most of the work.
int64_t BlocksPerLook(int64_t bytes) { return std::max<int64_t>(1, 65536 / bytes); }

struct Memories {
  explicit Memories(const LoadShape& shape)
      : from(static_cast<size_t>(shape.client_bytes()), 'f'),
        to(static_cast<size_t>(shape.client_bytes()), 't') {}
  std::vector<char> from;
  std::vector<char> to;
};

class MemcpyLoad final : public Load {
 public:
  explicit MemcpyLoad(const LoadShape& shape) : shape_(shape) {
    for (int i = 0; i < shape.clients; ++i) {
      memories_.emplace_back(shape);
    }
  }

  absl::StatusOr<int64_t> Run(absl::Duration time) override {
    const absl::Time end = RealClock().Now() + time;
    std::vector<int64_t> copied(memories_.size());
    std::vector<std::thread> threads;
    for (size_t i = 1; i < memories_.size(); ++i) {
      threads.emplace_back([this, i, end, &copied] { copied[i] = CopyUntil(memories_[i], end); });
    }
    copied[0] = CopyUntil(memories_[0], end);
    for (std::thread& thread : threads) {
      thread.join();
    }
    int64_t sum = 0;
    for (const int64_t bytes : copied) {
      sum += bytes;
    }
    return sum;
  }

  absl::Status MoveInTurn(int blocks) override {
    for (int i = 0; i < blocks; ++i) {
      Copy(memories_[0], next_++);
    }
    return absl::OkStatus();
  }

 private:
  void Copy(Memories& memories, int64_t block) const {
    const int64_t offset = block % shape_.blocks() * shape_.bytes;
    std::memcpy(memories.to.data() + offset, memories.from.data() + offset,
                static_cast<size_t>(shape_.bytes));
  }
  int64_t CopyUntil(Memories& memories, absl::Time end) const {
    int64_t block = 0;
    do {
      for (int64_t i = BlocksPerLook(shape_.bytes); i > 0; --i) {
        Copy(memories, block++);
      }
    } while (RealClock().Now() < end);
    return block * shape_.bytes;
  }

  const LoadShape shape_;
  std::vector<Memories> memories_;
  int64_t next_ = 0;
};

bool SendBlock(int socket, const char* data, int64_t size) {
  while (size > 0) {
    const ssize_t sent = send(socket, data, static_cast<size_t>(size), MSG_NOSIGNAL);
    if (sent <= 0) {
      return false;
    }
    data += sent;
    size -= sent;
  }
  return true;
}

bool ReceiveBlock(int socket, char* data, int64_t size) {
  while (size > 0) {
    const ssize_t received = recv(socket, data, static_cast<size_t>(size), 0);
    if (received <= 0) {
      return false;
    }
    data += received;
    size -= received;
  }
  return true;
}

// A connected pair of blocking tcp sockets over loopback.
struct SocketPair {
  UniqueFd sender;
  UniqueFd receiver;
};

absl::StatusOr<SocketPair> Connect(int socket_buffer_bytes) {
  const auto make = [&] {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket_buffer_bytes > 0) {
      setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &socket_buffer_bytes, sizeof socket_buffer_bytes);
      setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &socket_buffer_bytes, sizeof socket_buffer_bytes);
    }
    return fd;
  };
  const UniqueFd listener = make();
  SocketPair pair;
  pair.sender = make();
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.get(), generic, length) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), generic, &length) != 0 ||
      connect(pair.sender.get(), generic, length) != 0) {
    return ErrnoToStatus(errno, "connecting a plain socket over loopback");
  }
  pair.receiver = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!pair.receiver.valid()) {
    return ErrnoToStatus(errno, "connecting a plain socket over loopback");
  }
  return pair;
}

class SocketLoad final : public Load {
 public:
  explicit SocketLoad(const LoadShape& shape, SocketPair to_ask)
      : shape_(shape), to_ask_(std::move(to_ask)) {
    for (int i = 0; i < shape.clients; ++i) {
      memories_.emplace_back(shape);
    }
    server_ = std::thread([this] {
      char request = 0;
      for (int64_t block = 0; ReceiveBlock(to_ask_.receiver.get(), &request, 1); ++block) {
        SendBlock(to_ask_.receiver.get(), memories_[0].from.data() + Offset(block), shape_.bytes);
      }
    });
  }
  ~SocketLoad() override {
    shutdown(to_ask_.sender.get(), SHUT_RDWR);
    server_.join();
  }

  absl::StatusOr<int64_t> Run(absl::Duration time) override {
    std::vector<SocketPair> pairs;
    for (int i = 0; i < shape_.clients; ++i) {
      SHOAL_ASSIGN_OR_RETURN(SocketPair pair, Connect(shape_.socket_buffer_bytes));
      pairs.push_back(std::move(pair));
    }
    const absl::Time end = RealClock().Now() + time;
    std::vector<int64_t> received(pairs.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < pairs.size(); ++i) {
      threads.emplace_back([this, i, end, &pairs] {
        int64_t block = 0;
        do {
          for (int64_t n = BlocksPerLook(shape_.bytes); n > 0; --n) {
            SendBlock(pairs[i].sender.get(), memories_[i].from.data() + Offset(block++),
                      shape_.bytes);
          }
        } while (RealClock().Now() < end);
        shutdown(pairs[i].sender.get(), SHUT_WR);
      });
      threads.emplace_back([this, i, &pairs, &received] {
        int64_t block = 0;
        while (ReceiveBlock(pairs[i].receiver.get(), memories_[i].to.data() + Offset(block),
                            shape_.bytes)) {
          ++block;
        }
        received[i] = block * shape_.bytes;
      });
    }
    int64_t sum = 0;
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (const int64_t bytes : received) {
      sum += bytes;
    }
    return sum;
  }

  absl::Status MoveInTurn(int blocks) override {
    const char request = 'g';
    for (int i = 0; i < blocks; ++i) {
      if (!SendBlock(to_ask_.sender.get(), &request, 1) ||
          !ReceiveBlock(to_ask_.sender.get(), memories_[0].to.data() + Offset(asked_++),
                        shape_.bytes)) {
        return Unavailable("the plain socket broke");
      }
    }
    return absl::OkStatus();
  }

 private:
  int64_t Offset(int64_t block) const { return block % shape_.blocks() * shape_.bytes; }

  const LoadShape shape_;
  const SocketPair to_ask_;
  std::vector<Memories> memories_;
  int64_t asked_ = 0;
  std::thread server_;
};

}  // namespace

std::unique_ptr<Load> MakeMemcpyLoad(const LoadShape& shape) {
  return std::make_unique<MemcpyLoad>(shape);
}

absl::StatusOr<std::unique_ptr<Load>> MakeSocketLoad(const LoadShape& shape) {
  SHOAL_ASSIGN_OR_RETURN(SocketPair to_ask, Connect(shape.socket_buffer_bytes));
  return std::make_unique<SocketLoad>(shape, std::move(to_ask));
}

}  // namespace shoal::transport
