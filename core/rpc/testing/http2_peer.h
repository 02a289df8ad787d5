// A peer that speaks HTTP/2 by hand, over TCP or TLS, to make calls that no gRPC client makes.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/file.h"

namespace shoal::rpc {

class Http2Peer {
 public:
  // `certificates`: a role's folder, whose certificate it shows; empty: plain text.
  Http2Peer(int port, const std::string& certificates);
  ~Http2Peer();
  Http2Peer(const Http2Peer&) = delete;
  Http2Peer& operator=(const Http2Peer&) = delete;

  // Whether the connection stands.
  bool connected() const { return connected_; }
  // Makes a call without a token, says that its message has that many bytes, and sends all but the
  // last KiB for as long as the server takes them and has not ended the call. The connection stays.
  // Returns how many the server has taken.
  int64_t CallUnfinished(const std::string& path, int64_t announced);

 private:
  bool Send(std::string_view bytes);
  bool SendFrame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload);
  // Hears what there is, and waits for it first if `wait`. False once the call or the connection is
  // over.
  bool Hear(bool wait);
  bool Take(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload);

  UniqueFd socket_;
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_{nullptr, SSL_CTX_free};
  std::unique_ptr<SSL, void (*)(SSL*)> tls_{nullptr, SSL_free};
  bool connected_ = false;
  std::string heard_;
  int64_t connection_window_ = 65535;
  int64_t stream_window_ = 65535;
  int64_t initial_window_ = 65535;
};

}  // namespace shoal::rpc
