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

template <typename Request, typename Reply>
void JobRun::CallAll(ServerMethod<Request, Reply> method,
                     const std::type_identity_t<std::function<Request(int)>>& request,
                     std::type_identity_t<std::function<void(std::vector<Reply>)>> then,
                     std::function<void(int, const absl::Status&)> otherwise) {
  struct Round {
    std::vector<Reply> replies;
    size_t missing;
    int failed_server = 0;
    absl::Status failure;  // the first
  };
  auto round = std::make_shared<Round>(
      Round{.replies = std::vector<Reply>(servers_.size()), .missing = servers_.size()});
  for (int server = 0; server < static_cast<int>(servers_.size()); ++server) {
    auto on_reply = [this, round, then, otherwise, server,
                     moves = moves_](absl::StatusOr<Reply> reply) {
      if (EndsBySuccessor(reply.status()) || closed() || moves != moves_) {
        return;
      }
      if (!reply.ok() && (!otherwise || IsLoss(reply.status()))) {
        OnServerError(server, reply.status());
        return;
      }
      if (reply.ok()) {
        round->replies[static_cast<size_t>(server)] = *std::move(reply);
      } else if (round->failure.ok()) {
        round->failed_server = server;
        round->failure = reply.status();
      }
      if (--round->missing > 0) {
        environment_.reached(Request::descriptor()->name().c_str());
        return;
      }
      round->failure.ok() ? then(std::move(round->replies))
                          : otherwise(round->failed_server, round->failure);
    };
    Request message = request(server);
    message.set_job_id(job_.id);
    message.set_term(environment_.term);
    control_->Call(server, method, message,
                   [post = environment_.post, on_reply](absl::StatusOr<Reply> reply) {
                     post([on_reply, reply = std::move(reply)] { on_reply(reply); });
                   });
  }
}

}  // namespace shoal::server
