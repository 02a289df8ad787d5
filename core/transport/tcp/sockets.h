// The sockets of a queue's connections that one I/O thread serves, and who moves their bytes: that
// thread, or the thread that waits on the queue.
//
// A thread that waits, takes what came and soon waits again moves the bytes itself: what it waits
// for then arrives without a wake-up and without changing cores. So a waiter that was away only
// briefly borrows the sockets, and keeps them over short absences. When it stays away, the I/O
// thread takes them back within kMostAway, and the waiter must return quickly once before it
// borrows them again. A server that adds up what it received between two waits therefore leaves its
// sockets to the I/O thread.
//
// Locks: a moving thread holds move_mutex_ while it borrows, so the I/O thread only tries it;
// mutex_ is held only briefly, and no other is taken under it.
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
  // The thread must outlive it, except as TcpIoThread::Forget says.
  static absl::StatusOr<std::shared_ptr<TcpSockets>> Create(TcpIoThread* io);

  // By connection id. Add starts with interest only in arriving bytes.
  bool Add(uint64_t id, int socket, std::shared_ptr<TcpConnectionState> connection)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(uint64_t id, int socket) ABSL_LOCKS_EXCLUDED(mutex_);
  void AwaitWritable(uint64_t id, int socket, bool wanted);
  std::vector<std::shared_ptr<TcpConnectionState>> connections() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Readable when there is something to move.
  int fd() const { return epoll_.get(); }

  // Bracket a thread's wait on the queue. Enter returns true if the thread has borrowed the
  // sockets; it then calls Move while it waits.
  bool Enter() ABSL_LOCKS_EXCLUDED(mutex_);
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_);
  // Moves bytes of all ready sockets, each connection in turn. False if none was ready.
  bool Move() ABSL_LOCKS_EXCLUDED(mutex_);

  // For the I/O thread. Moves bytes unless the sockets are lent.
  void MoveUnlessLent() ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes the sockets back if the waiter has been away for too long. Returns when to check again;
  // nullopt if there is no need, since Leave then wakes the thread.
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
  bool inside_ ABSL_GUARDED_BY(mutex_) = false;                        // the borrower is waiting
  absl::Time left_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();     // when the last wait ended
  absl::Time entered_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // when this wait began
  bool unwatched_ ABSL_GUARDED_BY(mutex_) =
      false;  // the I/O thread does not look until it is woken
};

}  // namespace shoal::transport
