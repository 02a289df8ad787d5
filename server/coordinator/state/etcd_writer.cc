#include "server/coordinator/state/etcd_writer.h"

#include <algorithm>

#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "server/coordinator/state/etcd_calls.h"

namespace shoal::server {
namespace {

using etcdserverpb::RequestOp;

// etcd takes 128 and 1.5 MiB by default (--max-txn-ops, --max-request-bytes); some are the fence's.
constexpr size_t kMaxOperations = 120;
constexpr size_t kMaxBytes = 1 << 20;
// Of steps while etcd does not answer: a lease of theirs.
constexpr size_t kMaxWaiting = 4096;
constexpr size_t kMaxWaitingBytes = 16 << 20;
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(50);  // whether the lease is held

size_t BytesOf(const EtcdChange& change) {
  size_t bytes = 0;
  for (const RequestOp& op : change) {
    bytes += op.ByteSizeLong();
  }
  return bytes;
}

// By etcd, or by its gRPC before.
bool IsTooLarge(const absl::Status& status) {
  const std::string_view message = Message(status);
  return message.find("request is too large") != std::string_view::npos ||
         message.find("larger than max") != std::string_view::npos;
}

bool Covers(const etcdserverpb::DeleteRangeRequest& range, const std::string& key) {
  return range.range_end().empty() ? key == range.key()
                                   : range.key() <= key && key < range.range_end();
}

bool Collide(const RequestOp& op, const RequestOp& other) {
  if (op.has_request_put() && other.has_request_delete_range()) {
    return Covers(other.request_delete_range(), op.request_put().key());
  }
  return op.has_request_delete_range() && other.has_request_put() &&
         Covers(op.request_delete_range(), other.request_put().key());
}

}  // namespace

RequestOp EtcdPut(const std::string& key, std::string value, int64_t lease) {
  RequestOp op;
  op.mutable_request_put()->set_key(key);
  op.mutable_request_put()->set_value(std::move(value));
  op.mutable_request_put()->set_lease(lease);
  return op;
}

RequestOp EtcdDelete(const std::string& key) {
  RequestOp op;
  op.mutable_request_delete_range()->set_key(key);
  return op;
}

RequestOp EtcdDeleteRange(const std::string& first, const std::string& end) {
  RequestOp op = EtcdDelete(first);
  op.mutable_request_delete_range()->set_range_end(end);
  return op;
}

RequestOp EtcdDeleteBelow(const std::string& prefix) {
  return EtcdDeleteRange(prefix, EtcdEndOf(prefix));
}

RequestOp EtcdGet(const std::string& key) {
  RequestOp op;
  op.mutable_request_range()->set_key(key);
  return op;
}

std::string EtcdEndOf(std::string prefix) {
  ++prefix.back();  // our keys are ASCII
  return prefix;
}

std::string EtcdNumber(const std::string& term, int64_t count) {
  return fmt::format("{}.{}", term, count);
}

bool AddToTransaction(const EtcdChange& change, EtcdChange& changes) {
  if (changes.empty()) {
    changes = change;
    return true;
  }
  const bool fits = changes.size() + change.size() <= kMaxOperations &&
                    BytesOf(changes) + BytesOf(change) <= kMaxBytes;
  const auto collides = [&changes](const RequestOp& op) {
    return std::ranges::any_of(changes, [&op](const RequestOp& old) { return Collide(op, old); });
  };
  if (!fits || std::ranges::any_of(change, collides)) {
    return false;
  }
  for (const RequestOp& op : change) {
    std::erase_if(changes, [&op](const RequestOp& old) {
      return op.has_request_put() && old.has_request_put() &&
             op.request_put().key() == old.request_put().key();
    });
    changes.push_back(op);
  }
  return true;
}

EtcdWriter::EtcdWriter(std::shared_ptr<rpc::Channel> etcd, EtcdFence fence, EtcdLease& lease)
    : etcd_(std::move(etcd)), fence_(std::move(fence)), lease_(lease), thread_([this] { Run(); }) {}

EtcdWriter::~EtcdWriter() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

absl::Status EtcdWriter::Enqueue(EtcdChange change, Outcome* outcome) {
  const size_t bytes = BytesOf(change);
  while (waiting_.size() >= kMaxWaiting || waiting_bytes_ > kMaxWaitingBytes) {
    SHOAL_RETURN_IF_ERROR(lease_.CheckHeld());
    changed_.Wait(&mutex_, kBetweenLooks);
  }
  waiting_bytes_ += bytes;
  waiting_.push_back({.change = std::move(change), .bytes = bytes, .outcome = outcome});
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::Status EtcdWriter::Write(EtcdChange change) {
  Outcome outcome;
  absl::MutexLock lock(&mutex_);
  SHOAL_RETURN_IF_ERROR(Enqueue(std::move(change), &outcome));
  while (!outcome.known) {
    changed_.Wait(&mutex_, absl::InfiniteDuration());  // for the lease at most
  }
  return outcome.status;
}

absl::Status EtcdWriter::WriteLater(EtcdChange change) {
  SHOAL_RETURN_IF_ERROR(lease_.CheckHeld());
  absl::MutexLock lock(&mutex_);
  return Enqueue(std::move(change), nullptr);
}

std::vector<EtcdWriter::Waiting> EtcdWriter::TakeBatch(EtcdChange& changes) {
  std::vector<Waiting> batch;
  while (!waiting_.empty() && AddToTransaction(waiting_.front().change, changes)) {
    waiting_bytes_ -= waiting_.front().bytes;
    batch.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return batch;
}

void EtcdWriter::Run() {
  while (true) {
    EtcdChange changes;
    std::vector<Waiting> batch;
    {
      absl::MutexLock lock(&mutex_);
      while (waiting_.empty() && !stopping_) {
        changed_.Wait(&mutex_, absl::InfiniteDuration());
      }
      if (waiting_.empty()) {
        return;
      }
      batch = TakeBatch(changes);
    }
    const absl::Status status = Send(changes);
    absl::MutexLock lock(&mutex_);
    for (const Waiting& written : batch) {
      if (written.outcome != nullptr) {
        *written.outcome = {.known = true, .status = status};
      } else if (!status.ok() && lease_.CheckHeld().ok()) {
        LogWarning("a record will be missing in a later life: {}", Message(status));
      }
    }
    changed_.SignalAll();
  }
}

etcdserverpb::TxnRequest EtcdWriter::Fenced(const EtcdChange& changes) const {
  etcdserverpb::TxnRequest request;
  etcdserverpb::Compare& leads = *request.add_compare();
  leads.set_target(etcdserverpb::Compare::CREATE);
  leads.set_key(fence_.leader_key);
  leads.set_create_revision(fence_.leader_revision);
  etcdserverpb::Compare& next = *request.add_compare();
  next.set_target(etcdserverpb::Compare::VALUE);
  next.set_key(fence_.number_key);
  next.set_value(EtcdNumber(fence_.term, count_));
  request.mutable_success()->Assign(changes.begin(), changes.end());
  *request.add_success() = EtcdPut(fence_.number_key, EtcdNumber(fence_.term, count_ + 1));
  *request.add_failure() = EtcdGet(fence_.leader_key);
  *request.add_failure() = EtcdGet(fence_.number_key);
  return request;
}

absl::Status EtcdWriter::Send(const EtcdChange& changes) {
  const etcdserverpb::TxnRequest request = Fenced(changes);
  while (true) {
    SHOAL_RETURN_IF_ERROR(lease_.CheckHeld());
    const auto reply = etcd_->Call(&EtcdCalls::Txn, request, kEtcdCall);
    if (reply.ok() && std::exchange(told_, false)) {
      LogInfo("etcd answers again");
    }
    if (reply.ok()) {
      SHOAL_RETURN_IF_ERROR(reply->succeeded() ? absl::OkStatus() : OnRefused(*reply));
      ++count_;
      return absl::OkStatus();
    }
    if (!IsNoAnswerOfEtcd(reply.status())) {
      return OnError(reply.status());
    }
    if (!std::exchange(told_, true)) {
      LogWarning("{}; trying again for as long as the lease lasts", Message(reply.status()));
    }
    RealClock().SleepFor(kBetweenEtcdCalls);
  }
}

// OK: it was done before, and that answer was lost.
absl::Status EtcdWriter::OnRefused(const etcdserverpb::TxnResponse& reply) {
  const auto& leader = reply.responses(0).response_range().kvs();
  const auto& number = reply.responses(1).response_range().kvs();
  const bool leads = !leader.empty() && leader[0].create_revision() == fence_.leader_revision;
  if (leads && !number.empty() && number[0].value() == EtcdNumber(fence_.term, count_ + 1)) {
    return absl::OkStatus();
  }
  const absl::Status why =
      Aborted("etcd refused a write of term {}: {}", fence_.term,
              leader.empty() ? "its lease has ended"
              : leads        ? fmt::format("{} was written by somebody else", fence_.number_key)
                             : fmt::format("{} leads", leader[0].value()));
  lease_.Lose(why);
  return why;
}

absl::Status EtcdWriter::OnError(const absl::Status& error) {
  if (IsTooLarge(error)) {
    return ResourceExhausted(
        "{}; start etcd with a larger --max-request-bytes, 8388608 for the largest jobs",
        Message(error));
  }
  const absl::Status why = WithRemedy(error);
  lease_.Lose(why);
  return why;
}

}  // namespace shoal::server
