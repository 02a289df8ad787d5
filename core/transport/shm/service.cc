#include "core/transport/shm/service.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/threads/steady_await.h"

namespace shoal::transport {
namespace {

constexpr uint64_t kListenerToken = 0;
constexpr uint64_t kWakeToken = 1;

// A process that dials and says nothing is dropped after this long; more than this many at once are
// refused.
constexpr absl::Duration kDialTimeout = absl::Seconds(5);
constexpr size_t kMaxDials = 128;

}  // namespace

absl::StatusOr<std::unique_ptr<ShmService>> ShmService::Start() {
  SHOAL_ASSIGN_OR_RETURN(ShmListener listener, ListenShm());
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid()) {
    return ErrnoToStatus(errno, "starting the shared-memory transport");
  }
  std::unique_ptr<ShmService> service(
      new ShmService(std::move(listener), std::move(epoll), std::move(wake)));
  if (!service->AddToEpoll(service->listener_.socket.get(), kListenerToken) ||
      !service->AddToEpoll(service->wake_.get(), kWakeToken)) {
    return ErrnoToStatus(errno, "starting the shared-memory transport");
  }
  service->thread_ = std::thread([raw = service.get()] { raw->Run(); });
  return service;
}

ShmService::ShmService(ShmListener listener, UniqueFd epoll, UniqueFd wake)
    : listener_(std::move(listener)), epoll_(std::move(epoll)), wake_(std::move(wake)) {}

ShmService::~ShmService() {
  {
    absl::MutexLock lock(&mutex_);
    const auto none_open = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !answering_ && std::ranges::none_of(watched_, [](const auto& watched) {
        return watched.second.connection->exposes_gpu_memory();
      });
    };
    if (!AwaitFor(&mutex_, absl::Condition(&none_open), kPartingPatience)) {
      LogWarning("shm: a peer still has memory of a GPU open that goes now");
    }
    stopping_ = true;
  }
  WakeThread();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void ShmService::WakeThread() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

bool ShmService::AddToEpoll(int fd, uint64_t token) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = token;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

std::string ShmService::Expect(std::shared_ptr<ShmConnectionState> connection,
                               absl::Duration timeout) {
  std::string secret = SecureToken();
  expected_.Add(std::move(connection), secret, RealClock().Now() + timeout);
  WakeThread();  // it may have to wake up earlier than planned
  return secret;
}

void ShmService::Watch(std::shared_ptr<ShmConnectionState> connection, UniqueFd socket) {
  {
    absl::MutexLock lock(&mutex_);
    const uint64_t token = next_token_++;
    const int fd = socket.get();
    watched_[token] = {std::move(socket), connection};
    if (!AddToEpoll(fd, token)) {
      LogError("{}: cannot watch the peer: epoll_ctl failed with errno {}", connection->peer(),
               errno);
    }
  }
  if (connection->finished()) {
    Leave(connection->id());  // it was closed during the handshake
  }
}

void ShmService::Leave(uint64_t connection) {
  expected_.Remove(connection);
  absl::MutexLock lock(&mutex_);
  for (auto it = watched_.begin(); it != watched_.end(); ++it) {
    if (it->second.connection->id() == connection) {
      // A peer whose socket is full is not listening; it will see the end without a goodbye.
      (void)SendShmMessage(it->second.socket.get(), ShmMessageType::kGoodbye, "");
      if (!it->second.connection->exposes_gpu_memory()) {
        watched_.erase(it);
      }
      return;
    }
  }
}

void ShmService::Run() {
  std::array<epoll_event, 32> events;
  for (;;) {
    const absl::Duration until_deadline = ExpireHandshakes();
    const int timeout_ms = until_deadline == absl::InfiniteDuration()
                               ? -1
                               : static_cast<int>(std::clamp<int64_t>(
                                     absl::ToInt64Milliseconds(until_deadline) + 1, 0, 60000));
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), timeout_ms);
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) {
        return;
      }
    }
    for (int i = 0; i < count; ++i) {
      const uint64_t token = events[i].data.u64;
      if (token == kListenerToken) {
        AcceptDials();
      } else if (token == kWakeToken) {
        uint64_t drained = 0;
        [[maybe_unused]] const ssize_t size = read(wake_.get(), &drained, sizeof drained);
      } else {
        AnswerDial(token);
        HearFromPeer(token);
      }
    }
  }
}

absl::Duration ShmService::ExpireHandshakes() {
  absl::Time next = absl::InfiniteFuture();
  const absl::Time now = RealClock().Now();
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = dials_.begin(); it != dials_.end();) {
      if (it->second.deadline <= now) {
        it = dials_.erase(it);
      } else {
        next = std::min(next, it++->second.deadline);
      }
    }
  }
  for (const auto& connection : expected_.TakeExpired(now, next)) {
    connection->Close(
        DeadlineExceeded("{}: the peer did not complete the handshake in time", connection->peer()),
        absl::ZeroDuration());
  }
  return next - now;
}

void ShmService::AcceptDials() {
  for (;;) {
    UniqueFd socket(
        accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) {
        continue;
      }
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        LogWarning("shm: cannot take a dial: errno {}", errno);
      }
      return;
    }
    if (const absl::Status same = CheckSameUser(socket.get()); !same.ok()) {
      (void)SendShmMessage(socket.get(), ShmMessageType::kRefusal, EncodeRefusal(same));
      continue;
    }
    absl::MutexLock lock(&mutex_);
    if (dials_.size() >= kMaxDials) {
      continue;
    }
    const uint64_t token = next_token_++;
    if (AddToEpoll(socket.get(), token)) {
      dials_[token] = {std::move(socket), RealClock().Now() + kDialTimeout};
    }
  }
}

void ShmService::AnswerDial(uint64_t token) {
  UniqueFd socket;
  {
    absl::MutexLock lock(&mutex_);
    auto it = dials_.find(token);
    if (it == dials_.end()) {
      return;
    }
    socket = std::move(it->second.socket);
    dials_.erase(it);
    answering_ = true;
  }
  // The socket will be watched under a new token, or closed.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket.get(), nullptr);
  absl::StatusOr<ShmMessage> message = ReceiveShmMessage(socket.get());
  const int fd = socket.get();
  const absl::Status status =
      message.ok() ? Answer(UniqueFd(dup(fd)), *std::move(message)) : message.status();
  if (!status.ok()) {
    refusals_.Refused(status);
    (void)SendShmMessage(fd, ShmMessageType::kRefusal, EncodeRefusal(status));
  }
  absl::MutexLock lock(&mutex_);
  answering_ = false;
}

absl::Status ShmService::Answer(UniqueFd socket, ShmMessage message) {
  if (message.type != ShmMessageType::kHello) {
    return InvalidArgument("a process dialled without a greeting");
  }
  SHOAL_ASSIGN_OR_RETURN(ShmHello hello, DecodeShmHello(message.body));
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<ShmConnectionState> connection,
                         expected_.Take(hello.acceptance, hello.secret));
  absl::StatusOr<PeerMemory> peer =
      MapPeerMemory(connection->peer(), hello.regions, message.fds, connection->gpu(),
                    connection->opens_gpu_memory());
  if (!peer.ok()) {
    connection->Close(peer.status(), absl::ZeroDuration());
    return peer.status();
  }
  ByteWriter welcome;
  WriteOffers(OfferRegions(connection->exposed()), welcome);
  const ShmQueueWake& wake = connection->queue_wake();
  std::vector<int> fds = {connection->control().fd(), wake.page.fd(), wake.sleeper->event_fd()};
  AppendFds(connection->exposed(), fds);
  if (!connection->Open(*std::move(peer))) {
    return Unavailable("the connection was closed before the handshake was complete");
  }
  const absl::Status sent =
      SendShmMessage(socket.get(), ShmMessageType::kWelcome, welcome.bytes(), fds);
  if (!sent.ok()) {
    connection->Close(Annotate(sent, connection->peer()), absl::ZeroDuration());
    return absl::OkStatus();
  }
  Watch(connection, std::move(socket));
  return absl::OkStatus();
}

void ShmService::HearFromPeer(uint64_t token) {
  Watched gone;
  absl::Status why;
  {
    absl::MutexLock lock(&mutex_);
    auto it = watched_.find(token);
    if (it == watched_.end()) {
      return;
    }
    const std::string& peer = it->second.connection->peer();
    const absl::StatusOr<ShmMessage> message = ReceiveShmMessage(it->second.socket.get());
    if (absl::IsNotFound(message.status())) {
      return;
    }
    if (!message.ok()) {
      why = Annotate(message.status(), peer);
    } else if (message->type == ShmMessageType::kEnd) {
      why = Unavailable("{}: the peer is gone; its process ended without closing the connection",
                        peer);
    } else if (message->type != ShmMessageType::kGoodbye) {
      why = InvalidArgument("{}: unexpected message on the connection's socket", peer);
    }
    gone = std::move(it->second);
    watched_.erase(it);
  }
  gone.connection->Close(why, absl::ZeroDuration());
}

}  // namespace shoal::transport
