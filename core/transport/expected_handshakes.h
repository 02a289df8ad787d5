// What transports that answer dials share: the connections that await a dial, and the check that a
// connection's queue and regions belong to this transport.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/transport/handshake.h"

namespace shoal::transport {

// Connections by id, each kept until its peer dials with the secret or its deadline passes.
// Thread-safe. `Connection` is the transport's own connection state.
template <typename Connection>
class ExpectedHandshakes {
 public:
  // `secret` opens this connection, once.
  void Add(std::shared_ptr<Connection> connection, std::string secret, absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    const uint64_t id = connection->id();
    expected_[id] = {std::move(connection), std::move(secret), deadline};
  }

  void Remove(uint64_t connection) {
    absl::MutexLock lock(&mutex_);
    expected_.erase(connection);
  }

  absl::StatusOr<std::shared_ptr<Connection>> Take(uint64_t connection, std::string_view secret) {
    absl::MutexLock lock(&mutex_);
    const auto it = expected_.find(connection);
    if (it == expected_.end() || !SameSecret(it->second.secret, secret)) {
      return Unauthenticated(
          "no handshake waits for this secret; it was used, has expired or is wrong");
    }
    std::shared_ptr<Connection> taken = std::move(it->second.connection);
    expected_.erase(it);
    return taken;
  }

  // Removes and returns the connections whose deadline has passed. Lowers `next` to the earliest
  // deadline of the others.
  std::vector<std::shared_ptr<Connection>> TakeExpired(absl::Time now, absl::Time& next) {
    std::vector<std::shared_ptr<Connection>> expired;
    absl::MutexLock lock(&mutex_);
    for (auto it = expected_.begin(); it != expected_.end();) {
      if (it->second.deadline <= now) {
        expired.push_back(std::move(it->second.connection));
        it = expected_.erase(it);
      } else {
        next = std::min(next, it++->second.deadline);
      }
    }
    return expired;
  }

 private:
  struct Expected {
    std::shared_ptr<Connection> connection;
    std::string secret;
    absl::Time deadline;
  };

  absl::Mutex mutex_;
  std::map<uint64_t, Expected> expected_ ABSL_GUARDED_BY(mutex_);
};

// CheckConnectionOptions, and checks that the queue is a `Queue` and every exposed region an
// `OwnRegion` that `table` knows.
template <typename Queue, typename OwnRegion, typename Table>
absl::Status CheckOwnConnectionOptions(const ConnectionOptions& options, const Table& table) {
  SHOAL_RETURN_IF_ERROR(CheckConnectionOptions(options));
  if (dynamic_cast<Queue*>(options.queue) == nullptr) {
    return InvalidArgument("{}: the event queue belongs to another transport", options.peer);
  }
  for (const auto& region : options.exposed) {
    const auto* own = dynamic_cast<const OwnRegion*>(region.get());
    if (own == nullptr || own->table() != &table) {
      return InvalidArgument("{}: an exposed region belongs to another transport", options.peer);
    }
  }
  return absl::OkStatus();
}

}  // namespace shoal::transport
