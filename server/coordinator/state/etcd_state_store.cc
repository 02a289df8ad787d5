#include "server/coordinator/state/etcd_state_store.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "core/base/clock.h"
#include "core/base/net/address.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "server/coordinator/state/etcd_calls.h"
#include "server/coordinator/state/etcd_writer.h"

namespace shoal::server {
namespace {

constexpr const char* kFormat = "1";
constexpr const char* kScheme = "etcd://";
constexpr int64_t kKeysOfAPage = 32;  // each of some MiB at most

// Sorted as numbers are.
std::string Digits(int64_t number) { return fmt::format("{:020d}", number); }

int64_t ToNumber(const std::string& text) {
  int64_t number = 0;
  return absl::SimpleAtoi(text, &number) ? number : 0;
}

// The numbers in a line that people can read too, and the event.
std::string Serialize(const CommitRecord& commit) {
  return fmt::format("{} {} {:a} {:a} {}\n{}", commit.step, commit.attempt, commit.learning_rate,
                     commit.clip_coefficient, commit.generation, commit.event.SerializeAsString());
}

bool Parse(const std::string& text, CommitRecord& commit) {
  const size_t line = text.find('\n');
  return line != std::string::npos &&
         std::sscanf(text.substr(0, line).c_str(), "%" SCNd64 " %" SCNd64 " %la %la %" SCNd64,
                     &commit.step, &commit.attempt, &commit.learning_rate, &commit.clip_coefficient,
                     &commit.generation) == 5 &&
         commit.event.ParseFromString(text.substr(line + 1));
}

// What keys and values say; false: one cannot be read.
class StateReader {
 public:
  bool Read(const std::string& key, const etcdserverpb::KeyValue& entry) {
    if (key == "cluster") {
      return absl::SimpleHexAtoi(entry.value(), &state_.cluster);
    }
    if (key == "incarnations") {
      return absl::SimpleAtoi(entry.value(), &state_.incarnations);
    }
    if (absl::StartsWith(key, "members/")) {
      return state_.members.emplace_back().ParseFromString(entry.value());
    }
    const std::vector<std::string> parts = absl::StrSplit(key, '/');
    return parts.size() < 3 || parts[0] != "jobs" ||
           ReadJob(jobs_[parts[1]], parts[2], parts.back(), entry);
  }

  SavedState Take(int64_t term) {
    std::map<int64_t, SavedJob> as_submitted;
    for (auto& [id, job] : jobs_) {
      job.saved.id = id;
      as_submitted[job.submitted] = std::move(job.saved);
    }
    for (auto& [submitted, job] : as_submitted) {
      state_.jobs.push_back(std::move(job));
    }
    state_.term = term;
    return std::move(state_);
  }

 private:
  struct Job {
    int64_t submitted = 0;  // revision
    SavedJob saved;
  };
  static bool ReadJob(Job& job, const std::string& what, const std::string& last,
                      const etcdserverpb::KeyValue& entry) {
    SavedJob& saved = job.saved;
    if (what == "request") {
      job.submitted = entry.create_revision();
      saved.request = entry.value();
    } else if (what == "outcome") {
      saved.outcome = entry.value();
    } else if (what == "stop") {
      saved.stop = entry.value();
    } else if (what == "run") {
      return saved.run.emplace().ParseFromString(entry.value());
    } else if (what == "commit") {
      return Parse(entry.value(), saved.last_commit.emplace());
    } else if (what == "checkpoints") {
      saved.checkpoints.push_back({.step = ToNumber(last), .path = entry.value()});
    } else if (what == "events") {
      return saved.events.emplace_back().ParseFromString(entry.value());
    }
    return true;
  }

  SavedState state_;
  std::map<std::string, Job> jobs_;
};

class EtcdStateStore final : public StateStore {
 public:
  EtcdStateStore(const EtcdOptions& options, std::string prefix, std::shared_ptr<rpc::Channel> etcd,
                 const EtcdLease::Granted& lease, int64_t term, int64_t revision)
      : name_(fmt::format("etcd at {}", options.at.endpoints)),
        prefix_(std::move(prefix)),
        etcd_(std::move(etcd)),
        term_(term),
        lease_(etcd_, lease, options.lost),
        writer_(etcd_,
                {.leader_key = prefix_ + "leader",
                 .leader_revision = revision,
                 .number_key = prefix_ + "number",
                 .term = std::to_string(term)},
                lease_) {}

  // Begins a state where there is none.
  absl::Status Prepare() {
    SHOAL_ASSIGN_OR_RETURN(const std::string format, Get("format"));
    if (!format.empty() && format != kFormat) {
      return FailedPrecondition(
          "{}: the state below {} was written by a newer shoal-coordinator (of version {}, this "
          "one "
          "knows {}): use that program, or another name",
          name_, prefix_, format, kFormat);
    }
    if (format.empty()) {
      SHOAL_RETURN_IF_ERROR(
          writer_.Write({Put("cluster", SecureToken().substr(0, 16)), Put("format", kFormat)}));
    }
    SHOAL_ASSIGN_OR_RETURN(const SavedState state, Load());
    for (const SavedJob& job : state.jobs) {
      over_[job.id] = !job.outcome.empty();
    }
    return absl::OkStatus();
  }

  // It began as this process came to lead.
  absl::Status BeginTerm() override { return lease_.CheckHeld(); }

  absl::StatusOr<SavedState> Load() override {
    SHOAL_RETURN_IF_ERROR(writer_.Write({}));
    StateReader reader;
    etcdserverpb::RangeRequest request;
    request.set_key(prefix_);
    request.set_range_end(EtcdEndOf(prefix_));
    request.set_limit(kKeysOfAPage);
    while (true) {
      SHOAL_ASSIGN_OR_RETURN(const etcdserverpb::RangeResponse page, Range(request));
      for (const etcdserverpb::KeyValue& entry : page.kvs()) {
        if (!reader.Read(entry.key().substr(prefix_.size()), entry)) {
          return DataLoss("{}: the record {} cannot be read", name_, entry.key());
        }
      }
      if (!page.more() || page.kvs().empty()) {
        return reader.Take(term_);
      }
      request.set_key(page.kvs().rbegin()->key() + std::string(1, '\0'));
    }
  }

  absl::Status SaveMember(const proto::SavedMember& member, int64_t issued) override {
    return writer_.Write({Put("incarnations", std::to_string(issued)),
                          Put(KeyOfMember(member.incarnation()), member.SerializeAsString())});
  }
  absl::Status RemoveMember(uint64_t incarnation) override {
    return writer_.Write({Delete(KeyOfMember(incarnation))});
  }

  absl::Status BeginJob(const std::string& id, const std::string& request) override {
    if (over_.contains(id)) {
      return AlreadyExists("{} has begun", id);
    }
    EtcdChange change;
    for (const auto& [job, over] : over_) {
      if (over) {
        change.push_back(EtcdDeleteBelow(prefix_ + KeyOf(job, "")));
      }
    }
    change.push_back(Put(KeyOf(id, "request"), request));
    SHOAL_RETURN_IF_ERROR(writer_.Write(std::move(change)));
    std::erase_if(over_, [](const auto& job) { return job.second; });
    over_[id] = false;
    dropped_.clear();  // those of forgotten jobs
    return absl::OkStatus();
  }
  absl::Status SaveRun(const std::string& id, const proto::SavedRun& run, bool begins) override {
    if (!over_.contains(id)) {
      return absl::OkStatus();
    }
    EtcdChange change = {Put(KeyOf(id, "run"), run.SerializeAsString())};
    if (begins) {
      change.push_back(Delete(KeyOf(id, "commit")));
    }
    return writer_.Write(std::move(change));
  }
  absl::Status RecordCommit(const std::string& id, const CommitRecord& commit) override {
    return writer_.WriteLater({Put(KeyOf(id, "commit"), Serialize(commit))});
  }
  absl::Status RecordCheckpoint(const std::string& id,
                                const CheckpointRecord& checkpoint) override {
    return writer_.Write(
        {Put(KeyOf(id, "checkpoints/" + Digits(checkpoint.step)), checkpoint.path)});
  }
  absl::Status SaveEvent(const std::string& id, const proto::JobEvent& event) override {
    EtcdChange change = {
        Put(KeyOf(id, "events/" + Digits(event.number())), event.SerializeAsString())};
    constexpr int64_t kBetweenDrops = 64;
    int64_t& dropped = dropped_[id];
    if (event.number() - dropped >= kBetweenDrops && event.number() > kMaxEvents) {
      dropped = event.number();
      change.push_back(EtcdDeleteRange(
          prefix_ + KeyOf(id, "events/"),
          prefix_ + KeyOf(id, "events/" + Digits(event.number() - kMaxEvents + 1))));
    }
    return writer_.WriteLater(std::move(change));
  }
  absl::Status StopJob(const std::string& id, const std::string& reason) override {
    return writer_.Write({Put(KeyOf(id, "stop"), reason)});
  }
  absl::Status EndJob(const std::string& id, const std::string& outcome) override {
    SHOAL_RETURN_IF_ERROR(writer_.Write({Put(KeyOf(id, "outcome"), outcome)}));
    over_[id] = true;
    return absl::OkStatus();
  }

 private:
  static std::string KeyOfMember(uint64_t incarnation) {
    return fmt::format("members/{:016x}", incarnation);
  }
  static std::string KeyOf(const std::string& job, const std::string& what) {
    return fmt::format("jobs/{}/{}", job, what);
  }
  etcdserverpb::RequestOp Put(const std::string& key, std::string value) const {
    return EtcdPut(prefix_ + key, std::move(value));
  }
  etcdserverpb::RequestOp Delete(const std::string& key) const { return EtcdDelete(prefix_ + key); }

  // While this process leads.
  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request) {
    while (true) {
      auto reply = etcd_->Call(&EtcdCalls::Range, request, kEtcdCall);
      if (!IsNoAnswerOfEtcd(reply.status())) {
        return reply;
      }
      SHOAL_RETURN_IF_ERROR(lease_.CheckHeld());
      RealClock().SleepFor(kBetweenEtcdCalls);
    }
  }
  // Empty where there is none.
  absl::StatusOr<std::string> Get(const std::string& key) {
    etcdserverpb::RangeRequest request;
    request.set_key(prefix_ + key);
    SHOAL_ASSIGN_OR_RETURN(const etcdserverpb::RangeResponse reply, Range(request));
    return reply.kvs().empty() ? "" : reply.kvs(0).value();
  }

  const std::string name_;
  const std::string prefix_;
  const std::shared_ptr<rpc::Channel> etcd_;
  const int64_t term_;
  EtcdLease lease_;
  EtcdWriter writer_;
  std::map<std::string, bool> over_;        // jobs that are recorded
  std::map<std::string, int64_t> dropped_;  // with which event of a job older ones went
};

bool IsName(const std::string& name) {
  return !name.empty() && name.find_first_not_of(
                              "abcdefghijklmnopqrstuvwxyz"
                              "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == std::string::npos;
}

}  // namespace

absl::StatusOr<std::optional<EtcdAddress>> ParseEtcdUrl(const std::string& state) {
  const size_t scheme = state.find("://");
  if (scheme == std::string::npos) {
    return std::nullopt;
  }
  const size_t slash = state.find('/', scheme + 3);
  EtcdAddress address;
  if (absl::StartsWith(state, kScheme) && slash != std::string::npos) {
    address = {.endpoints = state.substr(scheme + 3, slash - scheme - 3),
               .name = state.substr(slash + 1)};
  }
  if (!IsName(address.name) || !AreAddresses(address.endpoints)) {
    return InvalidArgument(
        "--state: is '{}', expected a file, or etcd://HOST:PORT[,HOST:PORT...]/NAME with the name "
        "of the cluster, of letters, digits, '.', '_' and '-'",
        state);
  }
  return address;
}

EtcdCandidate::EtcdCandidate(EtcdOptions options)
    : options_(std::move(options)),
      prefix_(fmt::format("/shoal/{}/", options_.at.name)),
      etcd_(rpc::Channel::Create(options_.at.endpoints, options_.security, rpc::Role::kCoordinator,
                                 "etcd")) {}

absl::StatusOr<std::unique_ptr<StateStore>> EtcdCandidate::Try() {
  etcdserverpb::TxnRequest look;
  *look.add_success() = EtcdGet(prefix_ + "leader");
  *look.add_success() = EtcdGet(prefix_ + "term");
  SHOAL_ASSIGN_OR_RETURN(const etcdserverpb::TxnResponse seen,
                         etcd_->Call(&EtcdCalls::Txn, look, kEtcdCall));
  const auto& leader = seen.responses(0).response_range().kvs();
  const auto& term = seen.responses(1).response_range().kvs();
  const int64_t newest = term.empty() ? 0 : ToNumber(term[0].value());
  leader_ = leader.empty() ? "" : leader[0].value();
  if (!leader.empty()) {
    return lease_.has_value() && leader[0].lease() == lease_->id
               ? Open(*std::exchange(lease_, std::nullopt), newest, leader[0].create_revision())
               : absl::StatusOr<std::unique_ptr<StateStore>>(nullptr);
  }
  SHOAL_ASSIGN_OR_RETURN(lease_, EtcdLease::Grant(*etcd_, options_.lease));
  etcdserverpb::TxnRequest lead;
  for (const char* key : {"leader", "term"}) {
    etcdserverpb::Compare& as_seen = *lead.add_compare();
    as_seen.set_key(prefix_ + key);
    as_seen.set_target(etcdserverpb::Compare::CREATE);
    as_seen.set_create_revision(0);
  }
  if (!term.empty()) {
    lead.mutable_compare(1)->set_target(etcdserverpb::Compare::VALUE);
    lead.mutable_compare(1)->set_value(term[0].value());
  }
  *lead.add_success() = EtcdPut(prefix_ + "leader", options_.address, lease_->id);
  *lead.add_success() = EtcdPut(prefix_ + "term", std::to_string(newest + 1));
  *lead.add_success() =
      EtcdPut(prefix_ + "number", EtcdNumber(std::to_string(newest + 1), /*count=*/0));
  const auto led = etcd_->Call(&EtcdCalls::Txn, lead, kEtcdCall);
  SHOAL_RETURN_IF_ERROR(WithRemedy(led.status()));
  const EtcdLease::Granted lease = *std::exchange(lease_, std::nullopt);
  if (!led->succeeded()) {
    EtcdLease::Revoke(*etcd_, lease.id);
    return nullptr;
  }
  leader_ = options_.address;
  return Open(lease, newest + 1, led->header().revision());
}

absl::StatusOr<std::unique_ptr<StateStore>> EtcdCandidate::Open(const EtcdLease::Granted& lease,
                                                                int64_t term, int64_t revision) {
  auto store = std::make_unique<EtcdStateStore>(options_, prefix_, etcd_, lease, term, revision);
  SHOAL_RETURN_IF_ERROR(store->Prepare());
  return store;
}

}  // namespace shoal::server
