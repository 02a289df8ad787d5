#include "tests/simulation/sim_network.h"

#include <algorithm>
#include <array>

#include "core/base/status.h"

namespace shoal::simulation {
namespace {

// As rpc::Channel has them.
constexpr int kTries = 4;
constexpr std::array<absl::Duration, kTries> kBackoff = {
    absl::Milliseconds(100), absl::Milliseconds(200), absl::Milliseconds(400),
    absl::ZeroDuration()};
constexpr absl::Duration kRefused = absl::Microseconds(200);

}  // namespace

struct SimNetwork::State {
  SimProcess& from;
  SimProcess& to;
  const CallOptions options;
  const Handler handler;
  const Answer done;
  const int64_t life;  // of the caller
  const Nanoseconds deadline;
  int tries = 0;
  bool watched = false;
  bool finished = false;
};

void SimNetwork::Call(SimProcess& from, SimProcess& to, const CallOptions& options, Handler handler,
                      Answer done) {
  if (!from.alive()) {
    return;  // it ended in the midst of a function
  }
  ++calls_;
  const Nanoseconds deadline =
      options.deadline >= absl::Hours(1)
          ? kNever
          : loop_.now() + from.clock().LoopTime(ToNanoseconds(options.deadline));
  Begin(std::make_shared<State>(State{.from = from,
                                      .to = to,
                                      .options = options,
                                      .handler = std::move(handler),
                                      .done = std::move(done),
                                      .life = from.life(),
                                      .deadline = deadline}));
}

Nanoseconds SimNetwork::WaitsFor(const std::map<Link, Nanoseconds>& links, int from, int to) const {
  if (links.empty()) {
    return 0;
  }
  const auto found = links.find({from, to});
  return found == links.end() ? 0 : std::max<Nanoseconds>(found->second - loop_.now(), 0);
}

void SimNetwork::Begin(const std::shared_ptr<State>& call) {
  const SimProcess& from = call->from;
  const SimProcess& to = call->to;
  const MessageFate fate =
      faults_.OfMessage(from.id(), to.id(), from.name(), to.name(), loop_.now());
  const auto attempt = std::make_shared<Try>(Try{.call = call, .number = ++call->tries});
  Nanoseconds delay = fate.delay + WaitsFor(clogged_, from.id(), to.id());
  if (const Nanoseconds cut = WaitsFor(cut_, from.id(), to.id()); cut > 0 || fate.lose_request) {
    Watch(call);
    loop_.At(loop_.now() + (cut > 0 ? std::min(cut, kKeepAlive) + delay : *fate.lose_request),
             [this, attempt] { Fail(attempt, Unavailable("the connection is lost")); });
    return;
  }
  if (delay > fate.delay || fate.lose_reply || delay > kKeepAlive / 10) {
    Watch(call);
  }
  loop_.At(loop_.now() + delay, [this, attempt, fate] { Arrive(attempt, fate); });
  if (fate.repeat) {
    // What the network or a proxy sends twice; its answer is nobody's.
    const auto again = std::make_shared<Try>(Try{.call = call, .number = 0});
    loop_.At(loop_.now() + delay + *fate.repeat, [this, again, fate] { Arrive(again, fate); });
  }
}

void SimNetwork::Arrive(const std::shared_ptr<Try>& attempt, const MessageFate& fate) {
  SimProcess& to = attempt->call->to;
  if (!to.alive()) {
    Watch(attempt->call);
    loop_.After(kRefused, [this, attempt, &to] {
      Fail(attempt, Unavailable("{}: Connection refused", to.name()));
    });
    return;
  }
  auto& waiting = at_[to.id()];
  if (waiting.size() > 64) {
    std::erase_if(waiting, [](const auto& other) { return other.expired(); });
  }
  waiting.push_back(attempt);
  to.Run([this, attempt, fate] { Reach(attempt, fate); });
  if (!attempt->answered) {
    Watch(attempt->call);
  }
}

void SimNetwork::Reach(const std::shared_ptr<Try>& attempt, const MessageFate& fate) {
  SimProcess& to = attempt->call->to;
  attempt->call->handler(
      [this, attempt, fate, &to, life = to.life()](const absl::StatusOr<Reply>& reply) {
        if (to.alive() && life == to.life() && attempt->answered++ == 0) {
          Return(attempt, fate, reply);
        }
      });
}

void SimNetwork::Return(const std::shared_ptr<Try>& attempt, const MessageFate& fate,
                        const absl::StatusOr<Reply>& reply) {
  const std::shared_ptr<State>& call = attempt->call;
  if (attempt->number == 0) {
    return;
  }
  const int from = call->from.id();
  const int to = call->to.id();
  const MessageFate back =
      faults_.OfMessage(to, from, call->to.name(), call->from.name(), loop_.now());
  const Nanoseconds cut = WaitsFor(cut_, to, from);
  const std::optional<Nanoseconds> lost = fate.lose_reply ? fate.lose_reply : back.lose_request;
  if (cut > 0 || lost) {
    Watch(call);
    loop_.At(loop_.now() + (cut > 0 ? std::min(cut, kKeepAlive) : *lost),
             [this, attempt] { Fail(attempt, Unavailable("the connection is lost")); });
    return;
  }
  const Nanoseconds delay = back.delay + WaitsFor(clogged_, to, from);
  if (delay > kKeepAlive / 100) {
    Watch(call);
  }
  loop_.At(loop_.now() + delay, [this, attempt, reply] {
    if (absl::IsUnavailable(reply.status())) {
      Fail(attempt, reply.status());
    } else {
      Finish(attempt->call, reply);
    }
  });
}

void SimNetwork::Fail(const std::shared_ptr<Try>& attempt, const absl::Status& status) {
  const std::shared_ptr<State>& call = attempt->call;
  if (call->finished || attempt->number != call->tries || call->life != call->from.life()) {
    return;
  }
  if (call->options.owner.has_value() && call->options.owner->expired()) {
    call->finished = true;
    return;
  }
  if (!call->options.repeats || call->tries >= kTries) {
    Finish(call, status);
    return;
  }
  call->from.After(kBackoff[static_cast<size_t>(call->tries - 1)], [this, call] {
    if (!call->finished) {
      Begin(call);
    }
  });
}

// Ends the call at its deadline. Only for calls that may come to it: most are over long before.
void SimNetwork::Watch(const std::shared_ptr<State>& call) {
  if (call->watched || call->finished || call->deadline == kNever) {
    return;
  }
  call->watched = true;
  loop_.At(call->deadline, [this, call] {
    if (!call->finished) {
      Finish(call, absl::DeadlineExceededError("the deadline is over"));
    }
  });
}

void SimNetwork::Finish(const std::shared_ptr<State>& call, const absl::StatusOr<Reply>& reply) {
  if (call->finished) {
    return;
  }
  call->finished = true;
  if (call->life == call->from.life()) {
    call->from.Run([call, reply] {
      if (!call->options.owner.has_value() || !call->options.owner->expired()) {
        call->done(reply);
      }
    });
  }
}

void SimNetwork::Break(int process) {
  auto& waiting = at_[process];
  for (const std::weak_ptr<Try>& under_way : std::exchange(waiting, {})) {
    const std::shared_ptr<Try> attempt = under_way.lock();
    if (attempt != nullptr && attempt->number > 0 && attempt->answered == 0) {
      ++attempt->answered;
      loop_.After(kRefused,
                  [this, attempt] { Fail(attempt, Unavailable("the connection was reset")); });
    }
  }
}

}  // namespace shoal::simulation
