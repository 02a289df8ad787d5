// For tests: a coordinator behind real gRPC whose events the test writes.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/status.h"
#include "core/rpc/channel.h"
#include "core/rpc/coordinator_service.h"

namespace shoal::cli {

class FakeCoordinator : public rpc::CoordinatorService {
 public:
  static constexpr const char* kJob = "job-1";  // its only job

  // 0: streams never break; otherwise each breaks after that many events.
  explicit FakeCoordinator(int64_t events_per_stream = 0) : events_per_stream_(events_per_stream) {
    std::vector<std::unique_ptr<rpc::Service>> services;
    services.push_back(rpc::MakeCoordinatorService(this));
    server_ = rpc::Server::Start({.security = token_}, std::move(services)).value();
    address_ = "127.0.0.1:" + std::to_string(server_->port());
  }
  ~FakeCoordinator() override { Shutdown(); }
  void Shutdown() {
    {
      absl::MutexLock lock(&mutex_);
      down_ = true;
    }
    server_.reset();
  }

  const rpc::Token& token() const { return token_; }
  std::string address() const { return address_; }
  std::shared_ptr<rpc::Channel> Connect() const { return Connect(token_); }
  std::shared_ptr<rpc::Channel> Connect(const rpc::Token& token) const {
    return rpc::Channel::Create(address_, token, rpc::Role::kCoordinator);
  }

  void Add(proto::JobEvent event) {
    absl::MutexLock lock(&mutex_);
    event.set_number(static_cast<int64_t>(events_.size()) + 1);
    events_.push_back(std::move(event));
  }
  void AddStep(int64_t step, double loss) {
    proto::JobEvent event;
    event.mutable_step()->set_step(step);
    event.mutable_step()->set_total_steps(10);
    event.mutable_step()->set_loss(loss);
    Add(event);
  }
  void AddDone(int64_t step, bool interrupted) {
    proto::JobEvent event;
    event.mutable_done()->set_step(step);
    event.mutable_done()->set_checkpoint("checkpoints/step");
    event.mutable_done()->set_interrupted(interrupted);
    Add(event);
  }
  void AddFailed(const std::string& message, bool non_finite) {
    proto::JobEvent event;
    event.mutable_failed()->set_message(message);
    event.mutable_failed()->set_non_finite(non_finite);
    Add(event);
  }

  // If set, answers StopJob with a done event.
  void set_stops(bool stops) {
    absl::MutexLock lock(&mutex_);
    stops_ = stops;
  }
  // That it is to be waited for, as it says.
  void set_patience(absl::Duration patience) {
    absl::MutexLock lock(&mutex_);
    patience_ = patience;
  }
  // Begins again where it ended.
  void Restart() {
    {
      absl::MutexLock lock(&mutex_);
      down_ = false;
    }
    std::vector<std::unique_ptr<rpc::Service>> services;
    services.push_back(rpc::MakeCoordinatorService(this));
    server_ =
        rpc::Server::Start({.listen = address_, .security = token_}, std::move(services)).value();
  }
  std::string stop_reason() const {
    absl::MutexLock lock(&mutex_);
    return stop_reason_;
  }
  int streams() const {
    absl::MutexLock lock(&mutex_);
    return streams_;
  }
  int64_t rate() const {
    absl::MutexLock lock(&mutex_);
    return rate_;
  }
  int64_t bytes_left() const {
    absl::MutexLock lock(&mutex_);
    return bytes_left_;
  }

  absl::Status WatchJob(const proto::WatchJobRequest& request,
                        const rpc::JobEvents& stream) override {
    if (request.job_id() != kJob) {
      return NotFound("{} is not here", request.job_id());
    }
    int64_t sent = request.after_event();
    {
      absl::MutexLock lock(&mutex_);
      ++streams_;
    }
    while (true) {
      proto::JobEvent event;
      {
        absl::MutexLock lock(&mutex_);
        const auto ready = [this, sent]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return down_ || static_cast<int64_t>(events_.size()) > sent;
        };
        mutex_.AwaitWithTimeout(absl::Condition(&ready), absl::Milliseconds(50));
        if (down_ || stream.gone()) {
          return absl::OkStatus();
        }
        if (static_cast<int64_t>(events_.size()) <= sent) {
          continue;
        }
        event = events_[static_cast<size_t>(sent)];
      }
      if (events_per_stream_ > 0 && sent >= request.after_event() + events_per_stream_) {
        return Unavailable("broken on purpose");
      }
      stream.write(event);
      ++sent;
      if (event.has_done() || event.has_failed()) {
        return absl::OkStatus();
      }
    }
  }
  absl::StatusOr<proto::StopJobReply> StopJob(const proto::StopJobRequest& request) override {
    if (request.job_id() != kJob) {
      return NotFound("{} is not here", request.job_id());
    }
    bool stops = false;
    {
      absl::MutexLock lock(&mutex_);
      stop_reason_ = request.reason();
      stops = stops_;
    }
    if (stops) {
      AddDone(3, true);
    }
    return proto::StopJobReply();
  }
  absl::StatusOr<proto::GetStatusReply> GetStatus(const proto::GetStatusRequest&) override {
    proto::GetStatusReply reply;
    reply.set_job_id(kJob);
    {
      absl::MutexLock lock(&mutex_);
      reply.set_coordinator_patience_seconds(absl::ToDoubleSeconds(patience_));
    }
    reply.set_state("training");
    reply.set_step(3);
    reply.set_total_steps(10);
    reply.set_mfu(0.412);
    proto::MemberStatus* member = reply.add_members();
    member->set_role(proto::ROLE_WORKER);
    member->set_index(1);
    member->set_host("reef");
    member->set_pid(42);
    member->set_seconds_since_renewal(0.5);
    member->mutable_last_step()->set_step(2);
    member->mutable_last_step()->set_compute(0.59);
    member->mutable_last_step()->set_step_wait(0.41);
    member->mutable_last_step()->set_waited_for("worker-0");
    member->mutable_last_step()->set_transfer_wait(0.13);
    member->set_place("stage 1 of group 0");
    proto::MemberStatus* leaver = reply.add_members();
    leaver->set_role(proto::ROLE_WORKER);
    leaver->set_leaving(true);
    for (const char* peer : {"server-0", "server-1", "server-2"}) {
      proto::DataConnection& connection = *member->mutable_last_step()->add_connections();
      connection.set_peer(peer);
      connection.set_transport(peer == std::string("server-2") ? "tcp" : "shm");
      connection.set_reason(peer == std::string("server-2") ? "shm: on another host" : "");
    }
    return reply;
  }
  absl::StatusOr<proto::SubmitJobReply> SubmitJob(const proto::SubmitJobRequest&) override {
    return None();
  }
  absl::StatusOr<proto::ListJobsReply> ListJobs(const proto::ListJobsRequest&) override {
    return Unimplemented("not here");
  }
  // Has 2 servers until it is asked again; gives up to have 9.
  absl::StatusOr<proto::ScaleReply> Scale(const proto::ScaleRequest& request) override {
    if (request.servers() > 9) {
      return absl::InvalidArgumentError("job-1 can have 1 to 9");
    }
    absl::MutexLock lock(&mutex_);
    wanted_ = request.servers() > 0 && !request.dry_run() ? request.servers() : wanted_;
    rate_ = request.servers() > 0 ? request.rate() : rate_;
    bytes_left_ = request.servers() == 5 ? 4'000 : std::max<int64_t>(0, bytes_left_ - 1'000);
    proto::ScaleReply reply;
    reply.set_bytes_left(bytes_left_);
    if (bytes_left_ > 0) {
      reply.add_draining(3);
    }
    reply.set_job_id("job-1");
    reply.set_servers(request.servers() > 0 ? 2 : wanted_);
    reply.set_wanted(wanted_);
    reply.set_bytes_moved(12'000);
    reply.set_least_bytes(11'000);
    reply.set_partitions_moved(3);
    if (wanted_ == 9 && request.servers() == 0) {
      reply.set_servers(2);
      reply.set_wanted(2);
      reply.set_rollbacks(1);
      reply.set_refusal("server 8: this server needs 1.0 GiB");
      return reply;
    }
    proto::Wave& wave = *reply.add_waves();
    wave.set_step(7);
    wave.set_bytes(12'000);
    wave.set_pause_seconds(0.25);
    return reply;
  }
  absl::StatusOr<proto::ReadLogReply> ReadLog(const proto::ReadLogRequest&) override {
    return None();
  }
  absl::StatusOr<proto::RegisterReply> Register(const proto::RegisterRequest&) override {
    return None();
  }
  absl::StatusOr<proto::RenewLeaseReply> RenewLease(const proto::RenewLeaseRequest&) override {
    return None();
  }
  absl::StatusOr<proto::LeaveReply> Leave(const proto::LeaveRequest&) override { return None(); }
  absl::StatusOr<rpc::HeldCall<proto::HoldConnectionReply>> HoldConnection(
      const proto::HoldConnectionRequest&) override {
    return None();
  }
  absl::StatusOr<proto::JoinJobReply> JoinJob(const proto::JoinJobRequest&) override {
    return None();
  }
  absl::StatusOr<proto::NextStepReply> NextStep(const proto::NextStepRequest&) override {
    return None();
  }
  absl::StatusOr<proto::DrawMicrobatchReply> DrawMicrobatch(
      const proto::DrawMicrobatchRequest&) override {
    return None();
  }

 private:
  static absl::Status None() { return absl::UnimplementedError("not in this test"); }

  const int64_t events_per_stream_;
  const rpc::Token token_ = rpc::Token::Generate();
  mutable absl::Mutex mutex_;
  std::vector<proto::JobEvent> events_ ABSL_GUARDED_BY(mutex_);
  absl::Duration patience_ ABSL_GUARDED_BY(mutex_);
  std::string stop_reason_ ABSL_GUARDED_BY(mutex_);
  int streams_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stops_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t wanted_ ABSL_GUARDED_BY(mutex_) = 2;  // servers
  int64_t rate_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_left_ ABSL_GUARDED_BY(mutex_) = 0;  // fewer with each question
  bool down_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<rpc::Server> server_;
  std::string address_;
};

}  // namespace shoal::cli
