// etcd's methods, by which rpc::Channel::Call names them, how long they are waited for, and what
// their errors mean.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/rpc/channel.h"
#include "proto/etcd.pb.h"

namespace shoal::server {

inline constexpr rpc::CallOptions kEtcdCall = {.deadline = absl::Seconds(1)};
inline constexpr absl::Duration kBetweenEtcdCalls = absl::Milliseconds(100);  // without an answer

inline bool IsNoAnswerOfEtcd(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

// With what to do where etcd is full; other errors as they are.
inline absl::Status WithRemedy(const absl::Status& error) {
  return Message(error).find("space exceeded") == std::string_view::npos
             ? error
             : ResourceExhausted(
                   "{}: compact and defragment it, then `etcdctl alarm disarm`, and start it with "
                   "--auto-compaction-retention",
                   Message(error));
}

// Nobody implements it here.
class EtcdCalls {
 public:
  virtual ~EtcdCalls() = default;
  virtual absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest&) = 0;
  virtual absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest&) = 0;
  virtual absl::StatusOr<etcdserverpb::LeaseGrantResponse> LeaseGrant(
      const etcdserverpb::LeaseGrantRequest&) = 0;
  virtual absl::StatusOr<etcdserverpb::LeaseRevokeResponse> LeaseRevoke(
      const etcdserverpb::LeaseRevokeRequest&) = 0;
  virtual absl::StatusOr<etcdserverpb::LeaseKeepAliveResponse> LeaseKeepAlive(
      const etcdserverpb::LeaseKeepAliveRequest&) = 0;
};

}  // namespace shoal::server
