#include "server/service/parameter_service.h"

#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/job/job_id.h"
#include "google/protobuf/util/message_differencer.h"

namespace shoal::server {

ParameterService::ParameterService(ParameterServiceOptions options, Metrics* metrics)
    : options_(std::move(options)), metrics_(*metrics) {
  SHOAL_CHECK(options_.create_transport != nullptr && options_.available_memory != nullptr);
}

ParameterService::Jobs ParameterService::jobs() const {
  absl::MutexLock lock(&jobs_mutex_);
  return jobs_;
}

void ParameterService::Stop() {
  for (const auto& [id, job] : jobs()) {
    job->Stop();
  }
}

absl::StatusOr<std::shared_ptr<HostedJob>> ParameterService::Find(const std::string& job_id) const {
  absl::MutexLock lock(&jobs_mutex_);
  if (const auto found = jobs_.find(job_id); found != jobs_.end()) {
    return found->second;
  }
  if (!loading_.empty() && (job_id == loading_ || jobs_.empty())) {
    return FailedPrecondition("this server is loading weights of {}", loading_);
  }
  if (jobs_.empty()) {
    return NotFound("{} is not here: this server is not configured", job_id);
  }
  std::vector<std::string> here;
  for (const auto& [id, job] : jobs_) {
    here.push_back(id);
  }
  return plan::JobNotHere(job_id, "this server holds", here);
}

template <typename Body>
auto ParameterService::Counted(const char* operation, const Body& body) -> decltype(body()) {
  const absl::Time start = options_.clock->Now();
  auto reply = body();
  metrics_.CountRequest(operation, reply.status().code(), options_.clock->Now() - start);
  if (!reply.ok()) {
    LogWarning("{} refused: {}", operation, Message(reply.status()));
  }
  return reply;
}

template <typename Request, typename Reply>
absl::StatusOr<Reply> ParameterService::ForJob(
    const char* operation, const Request& request,
    absl::StatusOr<Reply> (HostedJob::*method)(const Request&)) {
  return Counted(operation, [&]() -> absl::StatusOr<Reply> {
    SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<HostedJob> job, Find(request.job_id()));
    return (job.get()->*method)(request);
  });
}

absl::StatusOr<const proto::ConfigureReply*> ParameterService::BeginLoading(
    const proto::ConfigureRequest& request) {
  absl::MutexLock lock(&jobs_mutex_);
  if (request.job_id().empty()) {
    return InvalidArgument("a job needs an id");
  }
  if (const auto found = jobs_.find(request.job_id()); found != jobs_.end()) {
    const HostedJob& job = *found->second;
    if (!google::protobuf::util::MessageDifferencer::Equals(request, job.request())) {
      return AlreadyExists(
          "{} is configured already, as server {} of {} with another job file or shard map",
          request.job_id(), job.request().server_index(), job.request().servers());
    }
    return &job.reply();
  }
  if (std::ssize(jobs_) >= options_.max_jobs) {
    return AlreadyExists("this server cannot take {}: it holds {} already", request.job_id(),
                         jobs_.begin()->first);
  }
  loading_ = request.job_id();
  SetLogContext(loading_);
  return nullptr;
}

absl::StatusOr<proto::ConfigureReply> ParameterService::ConfigureJob(
    proto::ConfigureRequest request) {
  absl::MutexLock one_at_a_time(&configure_mutex_);
  SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "Configure"));
  request.clear_term();  // a later life's is the same job
  LetGoOfEarlierRun(request);
  SHOAL_ASSIGN_OR_RETURN(const proto::ConfigureReply* repeated, BeginLoading(request));
  if (repeated != nullptr) {
    return *repeated;
  }
  absl::StatusOr<std::shared_ptr<HostedJob>> job =
      HostedJob::Create(request, options_, &metrics_, &term_);
  absl::MutexLock lock(&jobs_mutex_);
  loading_.clear();
  if (!job.ok()) {
    SetLogContext("");
    return job.status();
  }
  for (const uint64_t incarnation : fenced_) {
    (*job)->Fence(incarnation);
  }
  jobs_[request.job_id()] = *job;
  return (*job)->reply();
}

absl::StatusOr<proto::ConfigureReply> ParameterService::Configure(
    const proto::ConfigureRequest& request) {
  return Counted("configure", [&] { return ConfigureJob(request); });
}

absl::StatusOr<proto::TakeOverReply> ParameterService::TakeOver(
    const proto::TakeOverRequest& request) {
  return Counted("take_over", [&]() -> absl::StatusOr<proto::TakeOverReply> {
    SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "TakeOver"));
    const absl::StatusOr<std::shared_ptr<HostedJob>> job = Find(request.job_id());
    const bool holds = job.ok() && (*job)->request().run() == request.run();
    return holds ? (*job)->TakeOver(request) : proto::TakeOverReply();
  });
}

absl::StatusOr<proto::BeginAttemptReply> ParameterService::BeginAttempt(
    const proto::BeginAttemptRequest& request) {
  return ForJob("begin_attempt", request, &HostedJob::BeginAttempt);
}

absl::StatusOr<proto::PrepareReply> ParameterService::Prepare(
    const proto::PrepareRequest& request) {
  return ForJob("prepare", request, &HostedJob::Prepare);
}

absl::StatusOr<proto::CommitReply> ParameterService::Commit(const proto::CommitRequest& request) {
  return ForJob("commit", request, &HostedJob::Commit);
}

absl::StatusOr<proto::WriteCheckpointReply> ParameterService::WriteCheckpoint(
    const proto::WriteCheckpointRequest& request) {
  return ForJob("write_checkpoint", request, &HostedJob::WriteCheckpoint);
}

absl::StatusOr<proto::GetChecksumsReply> ParameterService::GetChecksums(
    const proto::GetChecksumsRequest& request) {
  return ForJob("get_checksums", request, &HostedJob::GetChecksums);
}

absl::StatusOr<proto::AdmitClientsReply> ParameterService::AdmitClients(
    const proto::AdmitClientsRequest& request) {
  return ForJob("admit_clients", request, &HostedJob::AdmitClients);
}

absl::StatusOr<proto::FenceClientReply> ParameterService::FenceClient(
    const proto::FenceClientRequest& request) {
  return Counted("fence_client", [&]() -> absl::StatusOr<proto::FenceClientReply> {
    SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "FenceClient"));
    Jobs jobs;
    {
      absl::MutexLock lock(&jobs_mutex_);
      if (fenced_.size() >= kMaxFenced) {
        return ResourceExhausted("{} incarnations are fenced already", fenced_.size());
      }
      if (fenced_.insert(request.incarnation()).second) {
        LogWarning("incarnation {:x} is fenced: its lease is over", request.incarnation());
      }
      jobs = jobs_;
    }
    for (const auto& [id, job] : jobs) {
      job->Fence(request.incarnation());
    }
    return proto::FenceClientReply();
  });
}

void ParameterService::Release(const std::string& job_id) {
  absl::MutexLock not_while_one_loads(&configure_mutex_);
  LetGo(job_id);
}

// Which the coordinator took to be lost, when another process had this address.
void ParameterService::LetGoOfEarlierRun(const proto::ConfigureRequest& request) {
  const absl::StatusOr<std::shared_ptr<HostedJob>> job = Find(request.job_id());
  if (job.ok() && (*job)->request().run() < request.run()) {
    LetGo(request.job_id());
  }
}

void ParameterService::LetGo(const std::string& job_id) {
  std::shared_ptr<HostedJob> job;
  {
    absl::MutexLock lock(&jobs_mutex_);
    const auto found = jobs_.find(job_id);
    if (found == jobs_.end()) {
      return;
    }
    job = std::move(found->second);
    jobs_.erase(found);
  }
  job->Stop();
  LogInfo("{} is over", job_id);
  SetLogContext("");
}  // What it held goes with the last call that uses it.

absl::StatusOr<proto::ReleaseJobReply> ParameterService::ReleaseJob(
    const proto::ReleaseJobRequest& request) {
  return Counted("release_job", [&]() -> absl::StatusOr<proto::ReleaseJobReply> {
    SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "ReleaseJob"));
    Release(request.job_id());
    return proto::ReleaseJobReply();
  });
}

void ParameterService::ReleaseAll() {
  for (const auto& [id, job] : jobs()) {
    Release(id);
  }
  term_.Forget();
  absl::MutexLock lock(&jobs_mutex_);
  fenced_.clear();
}

absl::StatusOr<proto::ConnectReply> ParameterService::Connect(
    const proto::ConnectRequest& request) {
  return Counted("connect", [&]() -> absl::StatusOr<proto::ConnectReply> {
    const absl::StatusOr<std::shared_ptr<HostedJob>> job = Find(request.job_id());
    if (absl::IsFailedPrecondition(job.status()) || (!job.ok() && jobs().empty())) {
      return Unavailable("{}; try again", Message(job.status()));  // the job is still loading
    }
    SHOAL_RETURN_IF_ERROR(job.status());
    return (*job)->Connect(request);
  });
}

}  // namespace shoal::server
