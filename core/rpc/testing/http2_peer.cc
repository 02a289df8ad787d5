#include "core/rpc/testing/http2_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <csignal>

namespace shoal::rpc {
namespace {

// RFC 9113.
enum Frame : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8
};
constexpr uint8_t kEndOfStream = 1;
constexpr uint8_t kAcknowledged = 1;
constexpr uint8_t kEndOfHeaders = 4;
constexpr uint16_t kInitialWindow = 4;
constexpr size_t kFrameHeaderBytes = 9;
constexpr int64_t kMostData = 16384;
constexpr uint32_t kStream = 1;
constexpr int kPatienceMilliseconds = 30'000;

uint32_t NumberAt(std::string_view bytes, size_t at, size_t size) {
  uint32_t number = 0;
  for (size_t i = 0; i < size; ++i) {
    number = number << 8 | static_cast<uint8_t>(bytes[at + i]);
  }
  return number;
}

std::string Bytes(uint32_t number, int size) {
  std::string bytes;
  for (int i = size - 1; i >= 0; --i) {
    bytes.push_back(static_cast<char>(number >> (8 * i)));
  }
  return bytes;
}

// Of HPACK: a header that is in no table, without compression.
std::string Header(std::string_view name, std::string_view value) {
  std::string bytes(1, '\0');
  bytes += Bytes(static_cast<uint32_t>(name.size()), 1);
  bytes += name;
  bytes += Bytes(static_cast<uint32_t>(value.size()), 1);
  bytes += value;
  return bytes;
}

}  // namespace

Http2Peer::Http2Peer(int port, const std::string& certificates)
    : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
  sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(static_cast<in_port_t>(port))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  connected_ = connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  if (connected_ && !certificates.empty()) {
    context_.reset(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_use_certificate_chain_file(context_.get(), (certificates + "/tls.crt").c_str());
    SSL_CTX_use_PrivateKey_file(context_.get(), (certificates + "/tls.key").c_str(),
                                SSL_FILETYPE_PEM);
    SSL_CTX_clear_mode(context_.get(), SSL_MODE_AUTO_RETRY);  // Hear looks at the socket itself
    constexpr std::string_view kProtocol = "\x02h2";
    SSL_CTX_set_alpn_protos(
        context_.get(), reinterpret_cast<const unsigned char*>(kProtocol.data()), kProtocol.size());
    tls_.reset(SSL_new(context_.get()));
    SSL_set_fd(tls_.get(), socket_.get());
    connected_ = SSL_connect(tls_.get()) == 1;
  }
  connected_ =
      connected_ && Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") && SendFrame(kSettings, 0, 0, "");
}

Http2Peer::~Http2Peer() = default;

bool Http2Peer::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = tls_ != nullptr
                             ? SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size()))
                             : send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      connected_ = false;
      return false;
    }
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool Http2Peer::SendFrame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  std::string frame = Bytes(static_cast<uint32_t>(payload.size()), 3);
  frame += Bytes(type, 1) + Bytes(flags, 1) + Bytes(stream, 4);
  frame += payload;
  return Send(frame);
}

bool Http2Peer::Take(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  if (type == kSettings && (flags & kAcknowledged) == 0) {
    for (size_t at = 0; at + 6 <= payload.size(); at += 6) {
      if (NumberAt(payload, at, 2) == kInitialWindow) {
        const int64_t window = NumberAt(payload, at + 2, 4);
        stream_window_ += window - initial_window_;
        initial_window_ = window;
      }
    }
    return SendFrame(kSettings, kAcknowledged, 0, "");
  }
  if (type == kPing && (flags & kAcknowledged) == 0) {
    return SendFrame(kPing, kAcknowledged, 0, payload);
  }
  if (type == kWindowUpdate) {
    (stream == 0 ? connection_window_ : stream_window_) += NumberAt(payload, 0, 4);
  }
  const bool over =
      type == kReset || type == kGoAway || (type == kHeaders && (flags & kEndOfStream) != 0);
  return !over;
}

bool Http2Peer::Hear(bool wait) {
  pollfd ready = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
  const bool pending = tls_ != nullptr && SSL_pending(tls_.get()) > 0;
  if (!pending && poll(&ready, 1, wait ? kPatienceMilliseconds : 0) <= 0) {
    return !wait;
  }
  std::array<char, 16384> bytes;
  const ssize_t received = tls_ != nullptr
                               ? SSL_read(tls_.get(), bytes.data(), static_cast<int>(bytes.size()))
                               : recv(socket_.get(), bytes.data(), bytes.size(), 0);
  if (received <= 0) {
    // Over TLS what has come may be nothing for us.
    connected_ = tls_ != nullptr &&
                 SSL_get_error(tls_.get(), static_cast<int>(received)) == SSL_ERROR_WANT_READ;
    return connected_;
  }
  heard_.append(bytes.data(), static_cast<size_t>(received));
  bool on = true;
  while (on && heard_.size() >= kFrameHeaderBytes) {
    const size_t size = kFrameHeaderBytes + NumberAt(heard_, 0, 3);
    if (heard_.size() < size) {
      break;
    }
    const std::string frame = heard_.substr(0, size);
    heard_.erase(0, size);
    on = Take(static_cast<uint8_t>(frame[3]), static_cast<uint8_t>(frame[4]), NumberAt(frame, 5, 4),
              std::string_view(frame).substr(kFrameHeaderBytes));
  }
  return on;
}

int64_t Http2Peer::CallUnfinished(const std::string& path, int64_t announced) {
  SendFrame(kHeaders, kEndOfHeaders, kStream,
            Header(":method", "POST") + Header(":scheme", "http") + Header(":path", path) +
                Header(":authority", "localhost") + Header("content-type", "application/grpc") +
                Header("te", "trailers"));
  const std::string zeros(kMostData, '\0');
  std::string announcement = Bytes(0, 1) + Bytes(static_cast<uint32_t>(announced), 4);
  int64_t left = announced - 1024;
  int64_t taken = 0;
  bool on = connected_;
  while (on && left > 0) {
    const int64_t size = std::min({left, kMostData, connection_window_, stream_window_});
    if (size > 0) {
      std::string data = announcement + zeros.substr(announcement.size());
      data.resize(static_cast<size_t>(size));
      announcement.clear();
      on = SendFrame(kData, 0, kStream, data);
      connection_window_ -= size;
      stream_window_ -= size;
      left -= size;
      taken += size;
    }
    on = on && Hear(/*wait=*/size <= 0);
  }
  return taken;
}

}  // namespace shoal::rpc
