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
         absl::IsUnauthenticated(status);
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
  if (options.index >= 0) {
    request.set_index(options.index);
  }
  request.set_stays(options.stays);
  request.set_takes_over(options.takes_over);
  request.set_free_memory_bytes(options.free_memory_bytes);
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
      new MemberSession(std::move(coordinator), reply, std::move(on_end)));
}

MemberSession::MemberSession(std::shared_ptr<Channel> coordinator,
                             const proto::RegisterReply& reply,
                             std::function<void(const absl::Status&)> on_end)
    : coordinator_(std::move(coordinator)),
      index_(reply.index()),
      incarnation_(reply.incarnation()),
      on_end_(std::move(on_end)),
      lease_(absl::Seconds(reply.lease_seconds())),
      thread_([this] { Renew(); }) {}

MemberSession::~MemberSession() { Leave(""); }

void MemberSession::Renew() {
  proto::RenewLeaseRequest request;
  request.set_incarnation(incarnation_);
  const Clock& clock = RealClock();
  absl::Time renewed = clock.Now();
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      // Three tries before the lease is over.
      const absl::Time next = clock.Now() + lease_ / 3;
      while (!stopping_ && clock.Now() < next) {
        stop_.Wait(&mutex_, next - clock.Now());
      }
      if (stopping_) {
        return;
      }
    }
    AddLogLines(*request.mutable_log());
    const absl::Time asked = clock.Now();
    const auto reply =
        coordinator_->Call(&CoordinatorService::RenewLease, request, {.deadline = lease_ / 3});
    if (reply.ok() && reply->shut_down()) {
      on_end_(absl::OkStatus());
      return;
    }
    if (reply.ok()) {
      renewed = asked;
      request.clear_log();
      lease_ = reply->lease_seconds() > 0 ? absl::Seconds(reply->lease_seconds()) : lease_;
    } else if (absl::IsNotFound(reply.status()) || absl::IsUnauthenticated(reply.status()) ||
               clock.Now() >= renewed + lease_) {
      on_end_(reply.status());
      return;
    } else {
      LogWarning("lease not renewed, trying again: {}", Message(reply.status()));
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
}

}  // namespace shoal::rpc
