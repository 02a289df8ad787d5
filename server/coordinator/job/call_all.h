// JobRun::CallAll, for the files of JobRun that call servers.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/coordinator/job/job_run.h"

namespace shoal::server {

// Calls every server, in the job's name, and goes on with `then` when all have answered well,
// unless they are others by then. An error ends the job. With `otherwise` only one that is lost
// does: another error goes there once all have answered, and one alone. Where others have what a
// lost server had, a loss ends the round too, and with `otherwise` it is such an error, of least
// weight.
template <typename Request, typename Reply>
void JobRun::CallAll(ServerMethod<Request, Reply> method,
                     const std::type_identity_t<std::function<Request(int)>>& request,
                     std::type_identity_t<std::function<void(std::vector<Reply>)>> then,
                     std::function<void(int, const absl::Status&)> otherwise) {
  struct Round {
    std::function<void(std::vector<Reply>)> then;
    std::function<void(int, const absl::Status&)> otherwise;
    std::vector<Reply> replies;
    std::vector<bool> answered;
    size_t missing;
    bool over = false;
    int failed_server = 0;
    absl::Status failure;  // the first, or the first that is no loss
  };
  auto round = std::make_shared<Round>(Round{.then = std::move(then),
                                             .otherwise = std::move(otherwise),
                                             .replies = std::vector<Reply>(servers_.size()),
                                             .answered = std::vector<bool>(servers_.size()),
                                             .missing = servers_.size()});
  const int64_t number = replicas_.next_round++;
  const auto on_reply = [this, round, number, moves = moves_](int server,
                                                              absl::StatusOr<Reply> reply) {
    const auto place = static_cast<size_t>(server);
    if (EndsBySuccessor(reply.status()) || closed() || moves != moves_ || round->over) {
      return;
    }
    const bool lost = !reply.ok() && IsLoss(reply.status());
    round->over = lost && !round->otherwise;  // whether it has answered or not
    if (round->over) {
      replicas_.rounds.erase(number);
    } else if (round->answered[place]) {
      return;
    }
    round->answered[place] = true;  // before this round is told of the loss, too
    if (!reply.ok() && (!round->otherwise || lost)) {
      OnServerError(server, reply.status());
      if (closed() || !lost || !round->otherwise || moves != moves_ || round->over) {
        return;
      }
    }
    if (reply.ok()) {
      round->replies[place] = *std::move(reply);
    } else if (round->failure.ok() || (IsLoss(round->failure) && !lost)) {
      round->failed_server = server;
      round->failure = reply.status();
    }
    if (--round->missing > 0) {
      environment_.reached(Request::descriptor()->name().c_str());
      return;
    }
    round->over = true;
    replicas_.rounds.erase(number);
    round->failure.ok() ? round->then(std::move(round->replies))
                        : round->otherwise(round->failed_server, round->failure);
  };
  if (replicas() > 1) {
    replicas_.rounds[number] = [on_reply](int server) {
      on_reply(server, Unavailable("it is lost"));
    };
  }
  for (int server = 0; server < static_cast<int>(servers_.size()); ++server) {
    if (replicas_.lost.contains(servers_[static_cast<size_t>(server)].incarnation)) {
      on_reply(server, Unavailable("it is lost"));
      continue;
    }
    Request message = request(server);
    message.set_job_id(job_.id);
    message.set_term(environment_.term);
    control_->Call(server, method, std::move(message),
                   [post = environment_.post, on_reply, server](absl::StatusOr<Reply> reply) {
                     post([on_reply, server, reply = std::move(reply)]() mutable {
                       on_reply(server, std::move(reply));
                     });
                   });
  }
}

}  // namespace shoal::server
