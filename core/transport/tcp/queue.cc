#include "core/transport/tcp/queue.h"

#include "core/base/status.h"
#include "core/transport/tcp/io_thread.h"

namespace shoal::transport {

absl::StatusOr<std::unique_ptr<TcpQueue>> TcpQueue::Create(std::vector<TcpIoThread*> io_threads,
                                                           absl::Duration spin) {
  auto inner = std::make_shared<Inner>();
  SHOAL_ASSIGN_OR_RETURN(inner->sleeper, Sleeper::Create(nullptr, spin));
  std::unique_ptr<TcpQueue> queue(new TcpQueue(std::move(inner), std::move(io_threads)));
  for (TcpIoThread* io : queue->io_threads_) {
    SHOAL_ASSIGN_OR_RETURN(queue->inner_->sockets.emplace_back(), TcpSockets::Create(io));
  }
  return queue;
}

TcpQueue::~TcpQueue() {
  inner_->buffer.Close();
  for (size_t i = 0; i < inner_->sockets.size(); ++i) {
    if (inner_->sockets[i] != nullptr) {
      io_threads_[i]->Forget(*inner_->sockets[i]);
    }
  }
}

bool TcpQueue::Found() { return inner_->wake_requested.exchange(false) || !inner_->buffer.empty(); }

bool TcpQueue::Wait(absl::Duration timeout) {
  // Several I/O threads exist to work concurrently, which one waiter cannot do.
  TcpSockets* const sockets = inner_->sockets.size() == 1 ? inner_->sockets[0].get() : nullptr;
  const bool borrowed = sockets != nullptr && sockets->Enter();
  const auto look = [&] {
    if (Found()) {
      return Sleeper::Seen::kWork;
    }
    if (!borrowed || !sockets->Move()) {
      return Sleeper::Seen::kNothing;
    }
    return Found() ? Sleeper::Seen::kWork : Sleeper::Seen::kProgress;
  };
  const bool found = inner_->sleeper->Wait(timeout, look, borrowed ? sockets->fd() : -1);
  if (sockets != nullptr) {
    sockets->Leave();
  }
  return found;
}

void TcpQueue::Wake() {
  inner_->wake_requested.store(true);
  inner_->sleeper->Notify();
}

}  // namespace shoal::transport
