// The listening port of a tcp transport and the thread that answers dials. A dial has a deadline
// and costs only a little memory until it has proved to know the secret of an expected connection;
// then its socket joins the sockets of that connection's queue.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/refusal_log.h"
#include "core/transport/expected_handshakes.h"
#include "core/transport/options.h"
#include "core/transport/tcp/connection.h"
#include "core/transport/tcp/frame.h"
#include "core/transport/tcp/socket.h"

namespace shoal::transport {

inline constexpr size_t kTcpSecretBytes = 32;

// What an answer says: where to dial, and for what. The secret, which nothing but the answer
// carries, is for one connection.
struct TcpAnswer {
  std::string host;
  int port = 0;
  uint64_t acceptance = 0;
  bool encrypt = false;
  std::string secret;
};
std::string EncodeTcpAnswer(const TcpAnswer& answer);
absl::StatusOr<TcpAnswer> DecodeTcpAnswer(std::string_view peer, std::string_view body);

struct TcpHello {
  uint64_t acceptance = 0;
  std::string proof;
  TcpPeer peer;
};
// Proves to have had the answer.
std::string ProofOf(const TcpAnswer& answer);
std::string EncodeTcpHello(const TcpHello& hello);
absl::StatusOr<TcpHello> DecodeTcpHello(std::string_view payload);
std::string EncodeTcpWelcome(const TcpPeer& self);
absl::StatusOr<TcpPeer> DecodeTcpWelcome(std::string_view peer, std::string_view payload);
// What records are sealed with, of an answer's secret (empty: nothing is sealed) and the payloads
// of the greetings: keys agree only where nobody has changed those on their way.
TcpSecrets DeriveTcpSecrets(std::string_view secret, std::string_view hello,
                            std::string_view welcome, bool dialled);

class TcpAcceptor {
 public:
  static absl::StatusOr<std::unique_ptr<TcpAcceptor>> Start(const TransportOptions& options);
  ~TcpAcceptor();

  int port() const { return listener_.port; }

  // A peer is to dial for `connection` with that proof; closes the connection if it does not in
  // time.
  void Expect(std::shared_ptr<TcpConnectionState> connection, std::string proof,
              absl::Duration timeout);
  void Forget(uint64_t connection);

 private:
  struct Dial {
    UniqueFd socket;
    absl::Time deadline;
    std::string bytes;  // received so far
    size_t wanted = sizeof(TcpFrame);
  };

  TcpAcceptor(const TransportOptions& options, TcpListener listener, UniqueFd epoll, UniqueFd wake);
  void Run();
  absl::Duration Expire() ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeDials();
  void HearDial(uint64_t token);
  // Returns true once the greeting is whole.
  absl::StatusOr<bool> ReceiveHello(Dial& dial);
  absl::Status Answer(Dial dial) ABSL_LOCKS_EXCLUDED(mutex_);
  void WakeThread();

  const TransportOptions options_;
  const TcpListener listener_;
  const UniqueFd epoll_;
  const UniqueFd wake_;
  RefusalLog refusals_{"tcp: refused a dial"};
  ExpectedHandshakes<TcpConnectionState> expected_;

  // Used only by the thread.
  std::map<uint64_t, Dial> dials_;  // by token
  uint64_t next_token_ = 2;         // 0 is the listener, 1 the wake-up
  // false while there are too many dials: the rest wait in the kernel's backlog
  bool listening_ = true;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace shoal::transport
