#include "core/transport/tcp/acceptor.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/net/descriptors.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

constexpr uint64_t kListenerToken = 0;
constexpr uint64_t kWakeToken = 1;

constexpr absl::Duration kDialTimeout = absl::Seconds(5);
constexpr size_t kMaxDials = 256;

int Watch(int epoll, int socket, uint64_t token) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = token;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, socket, &event);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpAcceptor>> TcpAcceptor::Start(const TransportOptions& options) {
  SHOAL_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(options.listen_host, options.listen_port,
                                                         options.socket_buffer_bytes));
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid() ||
      Watch(epoll.get(), listener.socket.get(), kListenerToken) != 0 ||
      Watch(epoll.get(), wake.get(), kWakeToken) != 0) {
    return ErrnoToStatus(errno, "starting the tcp transport");
  }
  std::unique_ptr<TcpAcceptor> acceptor(
      new TcpAcceptor(options, std::move(listener), std::move(epoll), std::move(wake)));
  acceptor->thread_ = std::thread([raw = acceptor.get()] { raw->Run(); });
  return acceptor;
}

TcpAcceptor::TcpAcceptor(const TransportOptions& options, TcpListener listener, UniqueFd epoll,
                         UniqueFd wake)
    : options_(options),
      listener_(std::move(listener)),
      epoll_(std::move(epoll)),
      wake_(std::move(wake)) {}

TcpAcceptor::~TcpAcceptor() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  WakeThread();
  thread_.join();
}

void TcpAcceptor::WakeThread() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

void TcpAcceptor::Expect(std::shared_ptr<TcpConnectionState> connection, std::string proof,
                         absl::Duration timeout) {
  expected_.Add(std::move(connection), std::move(proof), RealClock().Now() + timeout);
  WakeThread();  // it may have to wake up earlier than planned
}

void TcpAcceptor::Forget(uint64_t connection) { expected_.Remove(connection); }

void TcpAcceptor::Run() {
  std::array<epoll_event, 32> events;
  for (;;) {
    const int64_t left_ms = absl::ToInt64Milliseconds(std::min(Expire(), absl::Minutes(1))) + 1;
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(),
                                 static_cast<int>(std::clamp<int64_t>(left_ms, 0, 60000)));
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) {
        return;
      }
    }
    for (int i = 0; i < count; ++i) {
      const uint64_t token = events[i].data.u64;
      if (token == kListenerToken) {
        TakeDials();
      } else if (token == kWakeToken) {
        uint64_t drained = 0;
        [[maybe_unused]] const ssize_t size = read(wake_.get(), &drained, sizeof drained);
      } else {
        HearDial(token);
      }
    }
  }
}

absl::Duration TcpAcceptor::Expire() {
  const absl::Time now = RealClock().Now();
  absl::Time next = absl::InfiniteFuture();
  for (auto it = dials_.begin(); it != dials_.end();) {
    if (it->second.deadline <= now) {
      it = dials_.erase(it);
    } else {
      next = std::min(next, it++->second.deadline);
    }
  }
  if (!listening_ && dials_.size() < kMaxDials) {
    listening_ = Watch(epoll_.get(), listener_.socket.get(), kListenerToken) == 0;
  }
  for (const auto& connection : expected_.TakeExpired(now, next)) {
    connection->Close(DeadlineExceeded("{}: the peer did not complete the handshake in time",
                                       connection->peer()));
  }
  return next - now;
}

void TcpAcceptor::TakeDials() {
  constexpr int kMostAtOnce = 64;  // so that those before have their turn; the rest stay ready
  for (int taken = 0; dials_.size() < kMaxDials; ++taken) {
    if (taken == kMostAtOnce) {
      return;
    }
    UniqueFd socket(
        accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) {
        continue;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return;
      }
      refusals_.Refused(ErrnoToStatus(errno, "taking it"));
      break;  // probably out of descriptors: try again when the next deadline passes
    }
    if (const int files = FirstDescriptorForFiles(); socket.get() >= files) {
      refusals_.Refused(
          ResourceExhausted("{} descriptors are in use, the rest is for files", files));
      continue;
    }
    const uint64_t token = next_token_++;
    if (TuneTcp(socket.get(), options_.keep_alive, options_.socket_buffer_bytes).ok() &&
        Watch(epoll_.get(), socket.get(), token) == 0) {
      dials_[token] = {std::move(socket), RealClock().Now() + kDialTimeout, {}};
    }
  }
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.socket.get(), nullptr);
  listening_ = false;
}

absl::StatusOr<bool> TcpAcceptor::ReceiveHello(Dial& dial) {
  for (;;) {
    const size_t have = dial.bytes.size();
    if (have == dial.wanted) {
      TcpFrame frame;
      std::memcpy(&frame, dial.bytes.data(), sizeof frame);
      if (have == sizeof frame + frame.length) {
        return true;
      }
      SHOAL_RETURN_IF_ERROR(CheckFrame(frame));
      if (frame.type != TcpFrameType::kHello || frame.length == 0) {
        return InvalidArgument("it begins with a frame of type {}, not with a greeting",
                               static_cast<int>(frame.type));
      }
      dial.wanted = sizeof frame + frame.length;
    }
    dial.bytes.resize(dial.wanted);
    const ssize_t received =
        recv(dial.socket.get(), dial.bytes.data() + have, dial.wanted - have, MSG_DONTWAIT);
    const int error = errno;
    dial.bytes.resize(have + static_cast<size_t>(std::max<ssize_t>(received, 0)));
    if (received == 0) {
      return Unavailable("it hung up before its greeting was complete");
    }
    if (received < 0) {
      if (error == EAGAIN || error == EWOULDBLOCK) {
        return false;
      }
      if (error != EINTR) {
        return ErrnoToStatus(error, "receiving a greeting");
      }
    }
  }
}

void TcpAcceptor::HearDial(uint64_t token) {
  auto it = dials_.find(token);
  if (it == dials_.end()) {
    return;
  }
  const absl::StatusOr<bool> whole = ReceiveHello(it->second);
  if (whole.ok() && !*whole) {
    return;
  }
  Dial dial = std::move(it->second);
  dials_.erase(it);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, dial.socket.get(), nullptr);
  const int fd = dup(dial.socket.get());
  const UniqueFd to_refuse(fd);
  const absl::Status status = whole.ok() ? Answer(std::move(dial)) : whole.status();
  if (!status.ok()) {
    refusals_.Refused(status);
    const std::string payload = EncodeRefusal(status);
    (void)SendFrame(fd, {.type = TcpFrameType::kRefusal, .length = payload.size()}, payload,
                    absl::InfinitePast());
    shutdown(fd, SHUT_RDWR);
  }
}

absl::Status TcpAcceptor::Answer(Dial dial) {
  const std::string_view payload = std::string_view(dial.bytes).substr(sizeof(TcpFrame));
  SHOAL_ASSIGN_OR_RETURN(TcpHello hello, DecodeTcpHello(payload));
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<TcpConnectionState> connection,
                         expected_.Take(hello.acceptance, hello.proof));
  const std::string payload_of_welcome = EncodeTcpWelcome(
      {DescribeRegions(connection->options().exposed), connection->options().max_outstanding});
  const TcpFrame frame = {.type = TcpFrameType::kWelcome, .length = payload_of_welcome.size()};
  const std::string welcome =
      std::string(reinterpret_cast<const char*>(&frame), sizeof frame) + payload_of_welcome;
  const TcpSecrets secrets = DeriveTcpSecrets(connection->TakeSecret(), payload, payload_of_welcome,
                                              /*dialled=*/false);
  if (!connection->Open(std::move(dial.socket), std::move(hello.peer), secrets, welcome)) {
    connection->Close(Unavailable("{}: the connection could not be opened", connection->peer()));
    return Unavailable("the connection was closed before the handshake was complete");
  }
  return absl::OkStatus();
}

}  // namespace shoal::transport
