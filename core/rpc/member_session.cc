#include "core/rpc/member_session.h"

#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/host/host_facts.h"
#include "core/base/logging.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/rpc/log_lines.h"

namespace shoal::rpc {
namespace {

constexpr absl::Duration kLeaveDeadline = absl::Seconds(2);

proto::HostFacts FactsToRegister() {
  const HostFacts facts = ReadHostFacts();
  proto::HostFacts message;
  message.set_kernel(facts.kernel);
  message.set_cpu(facts.cpu_model);
  message.set_cores(facts.cores);
  message.set_memory_bytes(facts.memory_bytes);
  for (const std::string& gpu : facts.gpus) {
    message.add_gpus(gpu);
  }
  message.set_build(SHOAL_BUILD);
  return message;
}

}  // namespace

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

const char* ProgramVersion() { return SHOAL_VERSION; }

bool IsRefusal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status) ||
         absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status);
}

absl::StatusOr<std::unique_ptr<MemberSession>> MemberSession::Join(
    std::shared_ptr<Channel> coordinator, const MemberOptions& options,
    std::function<void(const absl::Status&)> on_end) {
  proto::RegisterRequest request;
  request.set_role(options.role);
  request.set_address(options.address);
  request.set_host(HostName());
  request.set_pid(getpid());
  request.set_version(ProgramVersion());
  *request.mutable_facts() = FactsToRegister();
  request.mutable_facts()->set_instructions(options.instructions);
  request.mutable_facts()->set_gpu(options.gpu);
  if (options.index >= 0) {
    request.set_index(options.index);
  }
  request.set_stays(options.stays);
  request.set_takes_over(options.takes_over);
  request.set_free_memory_bytes(options.free_memory_bytes);
  request.set_metrics_port(options.metrics_port);
  request.set_command_token(options.command_token.secret());
  request.set_nonce(std::stoull(SecureToken().substr(0, 16), nullptr, 16));
  proto::RegisterReply reply;  // twice does no harm: the nonce tells that it is the same process
  SHOAL_RETURN_IF_ERROR(CallPatiently(
      options.patience,
      [&](const CallOptions& call) -> absl::Status {
        SHOAL_ASSIGN_OR_RETURN(reply,
                               coordinator->Call(&CoordinatorService::Register, request, call));
        return absl::OkStatus();
      },
      [](const absl::Status& failure, absl::Duration left) {
        LogWarning("{}; trying {}", Message(failure),
                   left == absl::InfiniteDuration()
                       ? "until it answers"
                       : fmt::format("for {:.0f} s more", absl::ToDoubleSeconds(left)));
      },
      options.stop));
  return std::unique_ptr<MemberSession>(
      new MemberSession(std::move(coordinator), request, reply, std::move(on_end)));
}

MemberSession::MemberSession(std::shared_ptr<Channel> coordinator,
                             const proto::RegisterRequest& request,
                             const proto::RegisterReply& reply,
                             std::function<void(const absl::Status&)> on_end)
    : coordinator_(std::move(coordinator)),
      index_(reply.index()),
      incarnation_(reply.incarnation()),
      on_end_(std::move(on_end)),
      request_(request),
      core_(reply, RealClock().Now()) {
  request_.set_index(index_);
  renewal_.set_incarnation(incarnation_);
  thread_ = std::thread([this] { Keep(); });
}

MemberSession::~MemberSession() { Leave(""); }

bool MemberSession::AwaitNext() {
  const Clock& clock = RealClock();
  absl::MutexLock lock(&mutex_);
  while (!stopping_ && !broke_ && clock.Now() < core_.next()) {
    stop_.Wait(&mutex_, core_.next() - clock.Now());
  }
  broke_ = false;
  return !stopping_;
}

void MemberSession::HoldConnection() {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(connected_, true)) {
      return;
    }
  }
  proto::HoldConnectionRequest request;
  request.set_incarnation(incarnation_);
  connection_ = coordinator_->Hold(&CoordinatorService::HoldConnection, request,
                                   [this](const absl::Status& why) { OnConnectionEnd(why); });
}

// Where the coordinator refuses it there is no hurry to ask again.
void MemberSession::OnConnectionEnd(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  connected_ = false;
  broke_ = absl::IsUnavailable(why) || absl::IsCancelled(why) || absl::IsDeadlineExceeded(why);
  stop_.SignalAll();
}

void MemberSession::EndConnection() {
  coordinator_->Cancel(connection_);
  absl::MutexLock lock(&mutex_);
  const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !connected_; };
  mutex_.Await(absl::Condition(&ended));
}

void MemberSession::Act() {
  const Clock& clock = RealClock();
  const absl::Time asked = clock.Now();
  absl::Status no_answer;
  if (core_.what() == MemberCore::What::kRegister) {
    *request_.mutable_earlier() = core_.earlier();
    const auto reply =
        coordinator_->Call(&CoordinatorService::Register, request_, {.deadline = core_.deadline()});
    no_answer = core_.OnRegistered(reply, asked, clock.Now());
  } else {
    AddLogLines(*renewal_.mutable_log());
    const auto reply = coordinator_->Call(&CoordinatorService::RenewLease, renewal_,
                                          {.deadline = core_.deadline()});
    if (reply.ok()) {
      renewal_.clear_log();
    }
    no_answer = core_.OnRenewed(reply, asked, clock.Now());
  }
  if (!no_answer.ok() && !told_) {
    LogWarning("the coordinator does not answer, trying again: {}", Message(no_answer));
  } else if (no_answer.ok() && told_) {
    LogInfo("the coordinator answers again");
  }
  told_ = !no_answer.ok();
}

void MemberSession::Keep() {
  HoldConnection();
  while (AwaitNext()) {
    Act();
    if (core_.what() == MemberCore::What::kEnd) {
      on_end_(core_.end());
      return;
    }
    if (!told_) {
      HoldConnection();
    }
  }
}

absl::StatusOr<bool> MemberSession::AskToLeave(const std::string& reason) {
  proto::LeaveRequest request;
  request.set_incarnation(incarnation_);
  request.set_reason(reason);
  request.set_when_free(true);
  SHOAL_ASSIGN_OR_RETURN(
      const proto::LeaveReply reply,
      coordinator_->Call(&CoordinatorService::Leave, request, {.deadline = kLeaveDeadline}));
  return !reply.wait();
}

void MemberSession::Leave(const std::string& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) {
      return;
    }
    stopping_ = true;
    stop_.SignalAll();
  }
  thread_.join();
  proto::LeaveRequest request;
  request.set_incarnation(incarnation_);
  request.set_reason(reason);
  AddLogLines(*request.mutable_log());
  if (const absl::Status left =
          coordinator_->Call(&CoordinatorService::Leave, request, {.deadline = kLeaveDeadline})
              .status();
      !left.ok()) {
    LogDebug("leaving: {}", Message(left));
  }
  EndConnection();
}

}  // namespace shoal::rpc
