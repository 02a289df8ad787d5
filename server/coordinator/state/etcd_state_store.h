// The state in etcd, for coordinators that stand by for each other. One leads: the one whose key
// is there. Members and commands never see etcd.
//
// Keys below /shoal/NAME/: `leader` (its address, with a lease), `term`, `number` (of the last
// transaction), `format`, `cluster`, `incarnations`, `members/`, and below `jobs/ID/` request,
// outcome, stop, run, commit, checkpoints and events.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/rpc/channel.h"
#include "server/coordinator/state/etcd_lease.h"
#include "server/coordinator/state/state_store.h"

namespace shoal::server {

struct EtcdAddress {
  std::string endpoints;  // HOST:PORT, of several with commas
  std::string name;       // of the cluster
};
// Nullopt: it is no URL of etcd, but a file. InvalidArgument: one that is not
// etcd://HOST:PORT[,HOST:PORT...]/NAME.
absl::StatusOr<std::optional<EtcdAddress>> ParseEtcdUrl(const std::string& state);

struct EtcdOptions {
  EtcdAddress at;
  rpc::Security security;  // of calls to etcd
  std::string address;     // of this coordinator, which others tell who asks them
  absl::Duration lease = absl::Seconds(5);
  // Runs at most once, on any thread, as soon as this coordinator leads no more: none of its writes
  // is taken from then on, and no call of the store fails before it has returned. It must not use
  // the store.
  std::function<void(const absl::Status&)> lost = [](const absl::Status&) {};
};

// Not thread-safe.
class EtcdCandidate {
 public:
  explicit EtcdCandidate(EtcdOptions options);

  // Leads, where nobody does: the store is of that term. Null: another one leads, or is about to;
  // ask again. The store gives its lead back when it is destroyed.
  absl::StatusOr<std::unique_ptr<StateStore>> Try();
  // Who led at the last try, by its address; may be empty.
  const std::string& leader() const { return leader_; }

 private:
  absl::StatusOr<std::unique_ptr<StateStore>> Open(const EtcdLease::Granted& lease, int64_t term,
                                                   int64_t revision);

  const EtcdOptions options_;
  const std::string prefix_;
  const std::shared_ptr<rpc::Channel> etcd_;
  std::string leader_;
  std::optional<EtcdLease::Granted> lease_;  // of a try whose answer was lost
};

}  // namespace shoal::server
