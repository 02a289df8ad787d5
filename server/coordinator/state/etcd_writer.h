// Writes a leader's changes to etcd, in order, each exactly once, and none once another leads.
//
// Every transaction compares the revision in which the leader's key was made: a lease alone
// excludes nobody, since a process that stood still wakes up and writes. It also compares and
// raises the number of the last transaction, so that one whose answer was lost can be sent again,
// and does nothing where it comes late.
//
// A thread sends what waits as one transaction, so that the caller of WriteLater waits for no disk
// and no network. What waits is bounded. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "core/base/threads/steady_condition.h"
#include "core/rpc/channel.h"
#include "proto/etcd.pb.h"
#include "server/coordinator/state/etcd_lease.h"

namespace shoal::server {

// Puts and deletions that are applied together.
using EtcdChange = std::vector<etcdserverpb::RequestOp>;

etcdserverpb::RequestOp EtcdPut(const std::string& key, std::string value, int64_t lease = 0);
etcdserverpb::RequestOp EtcdDelete(const std::string& key);
// All keys that begin with this.
etcdserverpb::RequestOp EtcdDeleteBelow(const std::string& prefix);
// From `first` to before `end`.
etcdserverpb::RequestOp EtcdDeleteRange(const std::string& first, const std::string& end);
etcdserverpb::RequestOp EtcdGet(const std::string& key);
// The end of the range of keys that begin with this.
std::string EtcdEndOf(std::string prefix);

// Adds a change to those of a transaction. False: it must be one of its own, by etcd's limits or
// since a transaction may not put and delete the same key; `changes` is as it was.
bool AddToTransaction(const EtcdChange& change, EtcdChange& changes);

struct EtcdFence {
  std::string leader_key;
  int64_t leader_revision = 0;  // that made it
  std::string number_key;       // of the last transaction
  std::string term;             // which its numbers begin with
};
// The value of the number's key once `count` transactions of the term are done.
std::string EtcdNumber(const std::string& term, int64_t count);

class EtcdWriter {
 public:
  // `lease`: outlives this; it is lost where a write is refused.
  EtcdWriter(std::shared_ptr<rpc::Channel> etcd, EtcdFence fence, EtcdLease& lease);
  ~EtcdWriter();  // once all is written, or another leads

  // Returns once it and all before it is written.
  absl::Status Write(EtcdChange change);
  // Blocks only where too much waits. An error of a change is in the log.
  absl::Status WriteLater(EtcdChange change);

 private:
  struct Outcome {
    bool known = false;
    absl::Status status;
  };
  struct Waiting {
    EtcdChange change;
    size_t bytes = 0;
    Outcome* outcome = nullptr;  // of one that is waited for
  };
  void Run();
  absl::Status Enqueue(EtcdChange change, Outcome* outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Waiting> TakeBatch(EtcdChange& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Until etcd has taken it, or it cannot be.
  absl::Status Send(const EtcdChange& changes);
  etcdserverpb::TxnRequest Fenced(const EtcdChange& changes) const;
  absl::Status OnRefused(const etcdserverpb::TxnResponse& reply);
  absl::Status OnError(const absl::Status& error);

  const std::shared_ptr<rpc::Channel> etcd_;
  const EtcdFence fence_;
  EtcdLease& lease_;
  // Of the thread.
  int64_t count_ = 0;  // of transactions that are done
  bool told_ = false;  // that etcd does not answer

  absl::Mutex mutex_;
  SteadyCondition changed_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace shoal::server
