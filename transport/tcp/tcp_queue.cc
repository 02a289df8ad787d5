#include "transport/tcp/tcp_queue.h"

#include "common/status.h"

namespace shoal::transport {

absl::StatusOr<std::unique_ptr<TcpQueue>> TcpQueue::Create(absl::Duration spin) {
  auto inner = std::make_shared<Inner>();
  SHOAL_ASSIGN_OR_RETURN(inner->sleeper, Sleeper::Create(nullptr, spin));
  return std::unique_ptr<TcpQueue>(new TcpQueue(std::move(inner)));
}

bool TcpQueue::Wait(absl::Duration timeout) {
  return inner_->sleeper->Wait(timeout, [this] {
    return inner_->wake_requested.exchange(false) || !inner_->buffer.empty();
  });
}

void TcpQueue::Wake() {
  inner_->wake_requested.store(true);
  inner_->sleeper->Notify();
}

}  // namespace shoal::transport
