// Calls between simulated processes, as core/rpc/channel.h makes them: a call whose connection
// breaks is tried again, four times in all, within its deadline. The request or the reply can be
// lost, late or repeated, and overtake others.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/simulation/event_loop.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/sim_process.h"

namespace shoal::simulation {

struct CallOptions {
  absl::Duration deadline = absl::Seconds(10);
  bool repeats = true;  // where the peer cannot be reached
  // If there is one: with it goes the call.
  std::optional<std::weak_ptr<void>> owner;
};

class SimNetwork {
 public:
  // A connection whose messages are lost for so long is given up.
  static constexpr Nanoseconds kKeepAlive = 10'000'000'000;

  using Reply = std::shared_ptr<const void>;
  using Answer = std::function<void(absl::StatusOr<Reply>)>;
  // Runs at the callee, and answers now or later.
  using Handler = std::function<void(const Answer&)>;

  SimNetwork(EventLoop& loop, Faults& faults) : loop_(loop), faults_(faults) {}

  // `done` runs once in the caller's life, or not at all if that ends.
  void Call(SimProcess& from, SimProcess& to, const CallOptions& options, Handler handler,
            Answer done);

  template <typename Result>
  void Call(SimProcess& from, SimProcess& to, const CallOptions& options,
            std::function<void(const std::function<void(absl::StatusOr<Result>)>&)> handler,
            std::function<void(absl::StatusOr<Result>)> done) {
    Call(
        from, to, options,
        [handler = std::move(handler)](const Answer& answer) {
          handler([answer](absl::StatusOr<Result> result) {
            result.ok() ? answer(Reply(std::make_shared<const Result>(*std::move(result))))
                        : answer(result.status());
          });
        },
        [done = std::move(done)](const absl::StatusOr<Reply>& reply) {
          reply.ok() ? done(*std::static_pointer_cast<const Result>(*reply)) : done(reply.status());
        });
  }

  // From now on, what one sends the other is lost (or, held, waits) for so long.
  void Cut(int from, int to, Nanoseconds duration) { cut_[{from, to}] = loop_.now() + duration; }
  void Clog(int from, int to, Nanoseconds duration) {
    clogged_[{from, to}] = loop_.now() + duration;
  }
  // How long that lasts yet; 0: it is not so.
  Nanoseconds CutFor(int from, int to) const { return WaitsFor(cut_, from, to); }
  Nanoseconds ClogFor(int from, int to) const { return WaitsFor(clogged_, from, to); }
  // Calls under way at that process break.
  void Break(int process);

  int64_t calls() const { return calls_; }

 private:
  using Link = std::pair<int, int>;
  struct State;  // of a call
  struct Try {
    std::shared_ptr<State> call;
    int number;
    int64_t answered = 0;
  };

  void Begin(const std::shared_ptr<State>& call);
  void Arrive(const std::shared_ptr<Try>& attempt, const MessageFate& fate);
  void Reach(const std::shared_ptr<Try>& attempt, const MessageFate& fate);
  void Return(const std::shared_ptr<Try>& attempt, const MessageFate& fate,
              const absl::StatusOr<Reply>& reply);
  void Fail(const std::shared_ptr<Try>& attempt, const absl::Status& status);
  void Watch(const std::shared_ptr<State>& call);
  void Finish(const std::shared_ptr<State>& call, const absl::StatusOr<Reply>& reply);
  Nanoseconds WaitsFor(const std::map<Link, Nanoseconds>& links, int from, int to) const;

  EventLoop& loop_;
  Faults& faults_;
  std::map<Link, Nanoseconds> cut_;                    // until when
  std::map<Link, Nanoseconds> clogged_;                // until when
  std::map<int, std::vector<std::weak_ptr<Try>>> at_;  // that a process may still answer
  int64_t calls_ = 0;
};

}  // namespace shoal::simulation
