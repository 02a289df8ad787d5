#include "server/service/parameter_service.h"

#include <utility>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::server {

ParameterService::ParameterService(ParameterServiceOptions options, Metrics* metrics)
    : options_(std::move(options)), metrics_(*metrics), jobs_(options_.max_jobs) {
  SHOAL_CHECK(options_.create_transport != nullptr && options_.available_memory != nullptr);
}

void ParameterService::Stop() {
  for (const auto& [id, job] : jobs_.all()) {
    job->Stop();
  }
}

template <typename Body>
auto ParameterService::Counted(const char* operation, const Body& body) -> decltype(body()) {
  const absl::Time start = options_.clock->Now();
  if (options_.reached != nullptr) {
    options_.reached(operation);
  }
  auto reply = body();
  if (options_.reached != nullptr) {
    options_.reached(std::string(operation) + " done");
  }
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
    SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<HostedJob> job, jobs_.Find(request.job_id()));
    return (job.get()->*method)(request);
  });
}

absl::StatusOr<proto::ConfigureReply> ParameterService::ConfigureJob(
    const proto::ConfigureRequest& request) {
  absl::MutexLock one_at_a_time(&configure_mutex_);
  SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "Configure"));
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<HostedJob> repeated, jobs_.Repeated(request));
  if (repeated != nullptr) {
    return repeated->reply();
  }
  {
    SHOAL_ASSIGN_OR_RETURN(const auto over, jobs_.BeginLoading(request));
    for (const std::shared_ptr<HostedJob>& job : over) {
      LetGo(*job);
    }
  }
  SetLogContext(request.job_id());
  absl::StatusOr<std::shared_ptr<HostedJob>> job =
      HostedJob::Create(request, options_, &metrics_, &term_);
  if (!job.ok()) {
    jobs_.NotLoaded();
    SetLogContext("");
    return job.status();
  }
  jobs_.Loaded(*job, request.term());
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
    const absl::StatusOr<std::shared_ptr<HostedJob>> job = jobs_.Find(request.job_id());
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

absl::StatusOr<proto::ReserveReply> ParameterService::Reserve(
    const proto::ReserveRequest& request) {
  return ForJob("reserve", request, &HostedJob::Reserve);
}

absl::StatusOr<proto::FetchReply> ParameterService::Fetch(const proto::FetchRequest& request) {
  return ForJob("fetch", request, &HostedJob::Fetch);
}

absl::StatusOr<proto::ReplicateReply> ParameterService::Replicate(
    const proto::ReplicateRequest& request) {
  return ForJob("replicate", request, &HostedJob::Replicate);
}

absl::StatusOr<proto::ReadStateReply> ParameterService::ReadState(
    const proto::ReadStateRequest& request) {
  return ForJob("read_state", request, &HostedJob::ReadState);
}

absl::StatusOr<proto::ConnectStateReply> ParameterService::ConnectState(
    const proto::ConnectStateRequest& request) {
  return ForJob("connect_state", request, &HostedJob::ConnectState);
}

absl::StatusOr<proto::TakeGradientReply> ParameterService::TakeGradient(
    const proto::TakeGradientRequest& request) {
  return ForJob("take_gradient", request, &HostedJob::TakeGradient);
}

absl::StatusOr<proto::FenceClientReply> ParameterService::FenceClient(
    const proto::FenceClientRequest& request) {
  return Counted("fence_client", [&]() -> absl::StatusOr<proto::FenceClientReply> {
    SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "FenceClient"));
    SHOAL_ASSIGN_OR_RETURN(const bool fresh, jobs_.Fence(request.incarnation()));
    if (fresh) {
      LogWarning("incarnation {:x} is fenced: its lease is over", request.incarnation());
    }
    return proto::FenceClientReply();
  });
}

void ParameterService::Release(const std::string& job_id, int64_t run) {
  absl::MutexLock not_while_one_loads(&configure_mutex_);
  if (const std::shared_ptr<HostedJob> job = jobs_.Remove(job_id, run); job != nullptr) {
    LetGo(*job);
  }
}

void ParameterService::LetGo(HostedJob& job) {
  job.Stop();
  LogInfo("{} is over", job.request().job_id());
  SetLogContext("");
}

absl::StatusOr<proto::ReleaseJobReply> ParameterService::ReleaseJob(
    const proto::ReleaseJobRequest& request) {
  return Counted("release_job", [&]() -> absl::StatusOr<proto::ReleaseJobReply> {
    SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "ReleaseJob"));
    Release(request.job_id(), request.run());
    return proto::ReleaseJobReply();
  });
}

void ParameterService::ReleaseAll() {
  for (const auto& [id, job] : jobs_.all()) {
    Release(id, job->request().run());
  }
  term_.Forget();
  jobs_.Forget();
}

absl::StatusOr<proto::ConnectReply> ParameterService::Connect(
    const proto::ConnectRequest& request) {
  return Counted("connect", [&]() -> absl::StatusOr<proto::ConnectReply> {
    const absl::StatusOr<std::shared_ptr<HostedJob>> job = jobs_.Find(request.job_id());
    if (absl::IsFailedPrecondition(job.status()) || (!job.ok() && jobs_.all().empty())) {
      return Unavailable("{}; try again", Message(job.status()));  // the job is still loading
    }
    SHOAL_RETURN_IF_ERROR(job.status());
    return (*job)->Connect(request);
  });
}

}  // namespace shoal::server
