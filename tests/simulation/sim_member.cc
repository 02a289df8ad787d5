#include "tests/simulation/sim_member.h"

#include <algorithm>
#include <utility>

#include "core/base/status.h"

namespace shoal::simulation {
namespace {

// As rpc::MemberSession and rpc::CallPatiently have them.
constexpr absl::Duration kOneTry = absl::Seconds(5);
constexpr absl::Duration kBetweenTries = absl::Milliseconds(300);
constexpr absl::Duration kLeaveDeadline = absl::Seconds(2);
// As a server's program has them.
constexpr absl::Duration kBetweenAsks = absl::Milliseconds(200);
constexpr absl::Duration kAskPatience = absl::Seconds(10);

}  // namespace

SimMember::SimMember(SimContext& context, const SimOptions& options, SimCoordinator& coordinator,
                     SimProcess& process, proto::Role role, int index)
    : context_(context),
      options_(options),
      coordinator_(coordinator),
      process_(process),
      role_(role),
      index_(index) {
  process_.on_gone = [this] { coordinator_.BreakConnections(process_); };
}

void SimMember::Start() {
  if (process_.alive() || retired_) {
    return;
  }
  process_.Begin();
  registered_ = false;
  leaving_ = asks_to_leave_ = connected_ = false;
  nonce_ = context_.random.Next() | 1;
  context_.Note("start", static_cast<uint64_t>(process_.id()), [&] { return process_.name(); });
  Register();
}

void SimMember::StartAfter(Nanoseconds delay) {
  if (delay != kNever) {
    context_.loop.At(context_.loop.now() + delay, [this] { Start(); });
  }
}

void SimMember::Kill(Nanoseconds until_start) {
  retired_ = retired_ || until_start == kNever;
  process_.End();
  StartAfter(until_start);
}

bool SimMember::EndsAt(const char* point) {
  constexpr int kMostCrashes = 2;
  constexpr Nanoseconds kUntilStart = 500'000'000;
  if (crashes_ == kMostCrashes || !context_.faults.Fires(point, context_.loop.now())) {
    return false;
  }
  ++crashes_;
  Kill(kUntilStart);
  return true;
}

// As a server.
void SimMember::Drain(absl::Duration /*grace*/) {
  if (!process_.alive() || std::exchange(asks_to_leave_, true)) {
    return;
  }
  registered_ ? AskToLeave(process_.clock().Now()) : Leave(kToldTo);
}

void SimMember::AskToLeave(absl::Time answered) {
  if (leaving_) {
    return;
  }
  proto::LeaveRequest request;
  request.set_incarnation(incarnation_);
  request.set_reason(kToldTo);
  request.set_when_free(true);
  coordinator_.Ask<proto::LeaveRequest, proto::LeaveReply>(
      process_, kLeaveDeadline, request, &server::CoordinatorCore::Leave,
      [this, answered](const absl::StatusOr<proto::LeaveReply>& reply) {
        const absl::Time now = process_.clock().Now();
        const absl::Time last = reply.ok() ? now : answered;
        if ((reply.ok() && !reply->wait()) || now - last > kAskPatience) {
          Leave(kToldTo);
        } else {
          process_.After(kBetweenAsks, [this, last] { AskToLeave(last); });
        }
      });
}

proto::RegisterRequest SimMember::MakeRequest() const {
  proto::RegisterRequest request;
  request.set_role(role_);
  request.set_version("1");
  request.set_index(index_);
  request.set_nonce(nonce_);
  request.set_stays(options_.stays);
  request.set_takes_over(options_.stays);
  request.mutable_facts()->set_cpu("simulated");
  request.set_host(options_.hosts_and_loopback ? fmt::format("sim-{}", index_) : "sim");
  if (role_ == proto::ROLE_SERVER) {
    request.set_pid(100 + index_);
    request.set_address(fmt::format("server:{}", index_));
    request.set_command_token(process_.command_token());
  } else {
    request.set_pid(200 + index_);
    const bool other = index_ == options_.other_kind && process_.life() > 1;
    request.mutable_facts()->set_instructions(other ? "baseline" : "x86-64-v4");
    if (options_.addresses) {
      request.set_address(fmt::format("worker:{}", index_));
    }
    if (options_.hosts_and_loopback) {
      request.set_address("127.0.0.1:70");
    }
  }
  return request;
}

void SimMember::Register() {
  coordinator_.Ask<proto::RegisterRequest, proto::RegisterReply>(
      process_, kOneTry, MakeRequest(), &server::CoordinatorCore::Register,
      [this](const absl::StatusOr<proto::RegisterReply>& reply) {
        if (reply.ok()) {
          registered_ = true;
          incarnation_ = reply->incarnation();
          core_.emplace(*reply, process_.clock().Now());
          on_registered();
          OnRegistered();
          Keep();
          HoldConnection();
        } else if (absl::IsUnavailable(reply.status()) ||
                   absl::IsDeadlineExceeded(reply.status())) {
          process_.After(kBetweenTries, [this] { Register(); });
        } else {
          Leave(std::string(Message(reply.status())));
        }
      });
}

void SimMember::Keep() {
  process_.After(std::max(core_->next() - process_.clock().Now(), absl::ZeroDuration()),
                 [this, number = ++keeps_] {
                   if (!leaving_ && number == keeps_) {
                     Act();
                   }
                 });
}

void SimMember::HoldConnection() {
  if (leaving_ || !process_.alive() || std::exchange(connected_, true)) {
    return;
  }
  coordinator_.HoldConnection(process_, incarnation_,
                              [this](const absl::StatusOr<proto::HoldConnectionReply>& end) {
                                connected_ = false;
                                if (absl::IsUnavailable(end.status()) && !leaving_) {
                                  Act();
                                }
                              });
}

void SimMember::Act() {
  if (context_.faults.Fires("a member's connection breaks", context_.loop.now())) {
    coordinator_.BreakConnections(process_);
  }
  const absl::Time asked = process_.clock().Now();
  const auto go_on = [this](const absl::Status& no_answer) {
    if (core_->what() == rpc::MemberCore::What::kEnd) {
      Leave(std::string(Message(core_->end())));
      return;
    }
    Keep();
    if (no_answer.ok()) {
      HoldConnection();
    }
  };
  if (core_->what() == rpc::MemberCore::What::kRegister) {
    if (EndsAt("a member is to register again")) {
      return;
    }
    proto::RegisterRequest request = MakeRequest();
    *request.mutable_earlier() = core_->earlier();
    coordinator_.Ask<proto::RegisterRequest, proto::RegisterReply>(
        process_, core_->deadline(), request, &server::CoordinatorCore::Register,
        [this, asked, go_on](const absl::StatusOr<proto::RegisterReply>& reply) {
          if (!leaving_) {
            go_on(core_->OnRegistered(reply, asked, process_.clock().Now()));
          }
        });
    return;
  }
  proto::RenewLeaseRequest request;
  request.set_incarnation(incarnation_);
  coordinator_.Ask<proto::RenewLeaseRequest, proto::RenewLeaseReply>(
      process_, core_->deadline(), request, &server::CoordinatorCore::Renew,
      [this, asked, go_on](const absl::StatusOr<proto::RenewLeaseReply>& reply) {
        if (!leaving_) {
          go_on(core_->OnRenewed(reply, asked, process_.clock().Now()));
        }
      });
}

void SimMember::Leave(const std::string& why) {
  if (leaving_) {
    return;
  }
  leaving_ = true;
  context_.Note("leave", static_cast<uint64_t>(process_.id()),
                [&] { return fmt::format("{}: {}", process_.name(), why); });
  const auto end = [this] {
    process_.End();
    if (options_.stays) {
      StartAfter(context_.random.Between(100'000'000, 2'000'000'000));
    }
  };
  if (!registered_) {
    end();
    return;
  }
  registered_ = false;
  proto::LeaveRequest request;
  request.set_incarnation(incarnation_);
  request.set_reason(why);
  coordinator_.Ask<proto::LeaveRequest, proto::LeaveReply>(
      process_, kLeaveDeadline, request, &server::CoordinatorCore::Leave,
      [end](const absl::StatusOr<proto::LeaveReply>&) { end(); });
}

}  // namespace shoal::simulation
