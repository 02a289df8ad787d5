#include "tests/simulation/data/sim_client.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/job/shard_map_message.h"
#include "tests/simulation/process_ids.h"
#include "worker/job/worker_core.h"

namespace shoal::simulation {
namespace {

// A turn that nothing else brings about is due by then at the latest, which is only for turns that
// are forgotten (client/io_turn.cc).
constexpr absl::Duration kIdle = absl::Milliseconds(500);
// As a handshake with a process that cannot be reached takes.
constexpr absl::Duration kHandshake = absl::Seconds(5);

}  // namespace

SimClient::SimClient(SimContext& context, SimServers& servers, SimProcess& process, SimJob& job,
                     const proto::JoinJobReply& join, uint64_t incarnation)
    : context_(context),
      servers_(servers),
      process_(process),
      job_(job),
      join_(join),
      transport_(servers.fabric().MakeTransport(
          process, [this] { Turn(); }, [] {})) {
  const client::ClientOptions options = {.job_id = join.job_id(),
                                         .incarnation = incarnation,
                                         .name = process.name(),
                                         .keep_for_step = true,
                                         .view_memory = AllocatePages,
                                         .max_gradients = 4,
                                         .get_timeout = absl::ZeroDuration(),  // nothing waits
                                         .push_timeout = absl::ZeroDuration(),
                                         .connect_timeout = absl::ZeroDuration(),
                                         .handshake_timeout = kHandshake,
                                         .seed = incarnation};
  session_ = std::make_unique<client::Session>(
      options,
      *client::MakeLayout(job.model().units(), job.model().partitions(),
                          plan::FromMessage(join.shard_map()), join.servers_size()),
      this, std::vector<transport::Transport*>{transport_.get()}, process.clock());
}

SimProcess& SimClient::ServerAtIndex(int server) {
  return servers_.process(ServerAt(join_.servers(server).address()));
}

absl::Status SimClient::Start() {
  for (int server = 0; server < join_.servers_size(); ++server) {
    if (servers_.UntilReached(process_, ServerAtIndex(server)) > 0) {
      return Unavailable("{} cannot be reached", ServerAtIndex(server).name());
    }
  }
  const absl::Status started = session_->Start([](size_t) {});
  started_ = started.ok();
  return started;
}

bool SimClient::Follow(const proto::JoinJobReply& join) {
  return join.stages_size() <= 1 && worker::IsSamePart(join, join_) &&
         session_->Follow(*client::MakeLayout(job_.model().units(), job_.model().partitions(),
                                              plan::FromMessage(join.shard_map()),
                                              join.servers_size()));
}

// A call that takes no time of its own.
absl::StatusOr<proto::ConnectReply> SimClient::Connect(int server,
                                                       const proto::ConnectRequest& request,
                                                       absl::Duration /*timeout*/) {
  SimProcess& to = ServerAtIndex(server);
  const MessageFate fate = context_.faults.OfMessage(process_.id(), to.id(), process_.name(),
                                                     to.name(), context_.loop.now());
  if (!to.alive() || fate.lose_request) {
    return Unavailable("{}: Connection refused", to.name());
  }
  auto reply = servers_.server(ServerAt(join_.servers(server).address())).Connect(request);
  if (fate.lose_reply) {
    return Unavailable("{}: the connection was reset", to.name());
  }
  return reply;
}

void SimClient::TurnAt(absl::Time time) {
  // Whole, or it would be a little early again and again.
  const absl::Duration delay = absl::Ceil(
      std::max(time - process_.clock().Now(), absl::ZeroDuration()), absl::Microseconds(1));
  const Nanoseconds at = context_.loop.now() + process_.clock().LoopTime(ToNanoseconds(delay));
  if (at >= turn_at_) {
    return;
  }
  turn_at_ = at;
  process_.After(delay, [this, at, here = std::weak_ptr(here_)] {
    if (!here.expired() && at == turn_at_) {
      turn_at_ = kNever;
      Turn();
    }
  });
}

void SimClient::Turn() {
  if (!started_) {
    return;
  }
  absl::Time next;
  while (session_->TurnIo(0, &next)) {
  }
  if (next < process_.clock().Now() + kIdle) {
    TurnAt(next);
  }
  absl::Time again = absl::InfiniteFuture();
  if (const int server = session_->LinkToConnect(&again); server >= 0) {
    const Nanoseconds wait = servers_.UntilReached(process_, ServerAtIndex(server));
    if (wait == 0) {
      session_->Reconnect(server);
      again = process_.clock().Now();
    } else {
      again = process_.clock().Now() + std::min(absl::Nanoseconds(wait), kHandshake);
    }
  }
  if (again < absl::InfiniteFuture()) {
    TurnAt(again);
  }
  PushWaiting();
  on_turn();
}

absl::Status SimClient::BeginStep(int64_t step, int64_t attempt) {
  waiting_.clear();
  failure_ = absl::OkStatus();
  SHOAL_RETURN_IF_ERROR(session_->Begin(step - 1, step, attempt));
  for (size_t unit = 0; unit < job_.model().units().size(); ++unit) {
    session_->Prefetch(static_cast<int>(unit));  // else Weights asks for it
  }
  TurnAt(process_.clock().Now());
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::vector<float>>> SimClient::Weights() {
  SHOAL_RETURN_IF_ERROR(session_->CheckAttempt());
  std::vector<float> all;
  for (const plan::UnitSpec& unit : job_.model().units()) {
    const absl::StatusOr<client::Session::View> view = session_->Get(unit.index);
    if (absl::IsDeadlineExceeded(view.status()) || absl::IsResourceExhausted(view.status())) {
      return std::nullopt;
    }
    SHOAL_RETURN_IF_ERROR(view.status());
    const auto* data = static_cast<const float*>(view->data);
    all.insert(all.end(), data, data + view->count);
    session_->Release(unit.index);
  }
  return all;
}

void SimClient::Push(std::vector<float> gradient, const plan::Contribution& contribution) {
  auto from = gradient.begin();
  for (const plan::UnitSpec& unit : job_.model().units()) {
    waiting_.push_back(
        {.unit = unit.index, .contribution = contribution, .gradient = {from, from + unit.count}});
    from += unit.count;
  }
  PushWaiting();
}

void SimClient::PushWaiting() {
  while (!waiting_.empty() && failure_.ok()) {
    failure_ = session_->CheckAttempt();
    if (!failure_.ok()) {
      return;
    }
    Waiting& next = waiting_.front();
    const void* key = next.gradient.data();
    const auto kept = gradients_.emplace(key, std::move(next.gradient)).first;
    const absl::Status pushed = session_->Enqueue(next.unit, key, next.contribution, this);
    if (absl::IsDeadlineExceeded(pushed)) {
      next.gradient = std::move(kept->second);
      gradients_.erase(kept);
      return;
    }
    failure_ = pushed;
    waiting_.pop_front();
  }
}

bool SimClient::Acknowledged(int64_t pack) const {
  return std::ranges::none_of(
             waiting_, [&](const Waiting& push) { return push.contribution.pack == pack; }) &&
         session_->Acknowledged(pack);
}

absl::Status SimClient::Finish() {
  SHOAL_RETURN_IF_ERROR(failure_);
  SHOAL_RETURN_IF_ERROR(session_->CheckAttempt());
  if (!waiting_.empty()) {
    return DeadlineExceeded("pushes wait");
  }
  return session_->Finish(absl::ZeroDuration()).status();
}

}  // namespace shoal::simulation
