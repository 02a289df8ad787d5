// The sockets of a queue's connections that one I/O thread looks after, and who moves their bytes:
// that thread, or the one that waits on the queue.
//
// A thread that waits, takes what came and soon waits again moves the bytes itself: what it waits
// for then comes without a wake-up and without a core changing hands. So a waiter that was away for
// a moment only borrows the sockets, and keeps them over its short absences. When it stays away,
// the I/O thread takes them back within kMostAway, and the waiter has to come back quickly once
// before it borrows them again. A server that adds up what it was sent between two waits therefore
// leaves its sockets to the I/O thread.
//
// Locks: move_mutex_ is held by who moves, for as long as it borrows, so the I/O thread tries and
// goes on; mutex_ is held for a moment, and before no other.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/file.h"

namespace shoal::transport {

class TcpConnectionState;
class TcpIoThread;

class TcpSockets {
 public:
  // The thread must outlive it, but for what is said at TcpIoThread::Forget.
  static absl::StatusOr<std::shared_ptr<TcpSockets>> Create(TcpIoThread* io);

  // By connection id. Add starts with interest in arriving bytes alone.
  bool Add(uint64_t id, int socket, std::shared_ptr<TcpConnectionState> connection)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(uint64_t id, int socket) ABSL_LOCKS_EXCLUDED(mutex_);
  void AwaitWritable(uint64_t id, int socket, bool wanted);
  std::vector<std::shared_ptr<TcpConnectionState>> connections() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Readable when there is something to move.
  int fd() const { return epoll_.get(); }

  // A thread waits on the queue, between Enter and Leave. True: it has borrowed the sockets, and
  // calls Move while it waits.
  bool Enter() ABSL_LOCKS_EXCLUDED(mutex_);
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_);
  // Moves what is ready to be moved, each connection a turn. False if nothing was.
  bool Move() ABSL_LOCKS_EXCLUDED(mutex_);

  // For the I/O thread. Moves, unless they are lent.
  void MoveUnlessLent() ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes them back if the waiter has been away for too long. When to look again; nullopt while
  // there is no need: Leave wakes the thread then.
  std::optional<absl::Duration> TakeBack(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  TcpSockets(TcpIoThread* io, UniqueFd epoll) : io_(io), epoll_(std::move(epoll)) {}
  void GiveBack() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<TcpConnectionState> Find(uint64_t id) const ABSL_LOCKS_EXCLUDED(mutex_);

  TcpIoThread* const io_;
  const UniqueFd epoll_;

  absl::Mutex move_mutex_;
  mutable absl::Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<TcpConnectionState>> connections_ ABSL_GUARDED_BY(mutex_);
  bool lent_ ABSL_GUARDED_BY(mutex_) = false;
  bool inside_ ABSL_GUARDED_BY(mutex_) = false;                        // a borrower waits
  absl::Time left_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();     // the last wait's end
  absl::Time entered_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // this wait's begin
  bool unwatched_ ABSL_GUARDED_BY(mutex_) =
      false;  // the I/O thread does not look until it is woken
};

}  // namespace shoal::transport
