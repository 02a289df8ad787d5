#include "client/session_threads.h"

#include <algorithm>

#include "core/base/status.h"

namespace shoal::client {

absl::Status SessionThreads::Start() {
  SHOAL_RETURN_IF_ERROR(session_.Start([this](size_t transport) {
    io_[transport] = std::thread([this, transport] { RunIo(transport); });
  }));
  reconnect_ = std::thread([this] {
    for (int server = session_.AwaitLinkToConnect(); server >= 0;
         server = session_.AwaitLinkToConnect()) {
      session_.Reconnect(server);
    }
  });
  return absl::OkStatus();
}

SessionThreads::~SessionThreads() {
  session_.Stop();
  if (reconnect_.joinable()) {
    reconnect_.join();  // first: it may start another thread
  }
  for (std::thread& thread : io_) {
    if (thread.joinable()) {
      thread.join();
    }
  }
}

void SessionThreads::RunIo(size_t transport) {
  while (true) {
    absl::Time next;
    const bool worked = session_.TurnIo(transport, &next);
    if (session_.stopping()) {
      return;
    }
    if (!worked) {
      session_.queue(transport).Wait(std::max(next - clock_.Now(), absl::ZeroDuration()));
    }
  }
}

}  // namespace shoal::client
