// JobRun::CallAll: included by the files that implement JobRun.
#pragma once

#include <memory>
#include <utility>
#include <vector>

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
    std::function<void(std::vector<Reply>)> then;
  };
  auto round = std::make_shared<Round>(
      Round{std::vector<Reply>(servers_.size()), servers_.size(), std::move(then)});
  for (int server = 0; server < static_cast<int>(servers_.size()); ++server) {
    auto on_reply = [this, round, otherwise, server](absl::StatusOr<Reply> reply) {
      if (over()) {
        return;
      }
      if (!reply.ok()) {
        otherwise ? otherwise(server, reply.status()) : OnServerError(server, reply.status());
        return;
      }
      round->replies[static_cast<size_t>(server)] = *std::move(reply);
      if (--round->missing == 0) {
        round->then(std::move(round->replies));
      }
    };
    Request message = request(server);
    message.set_job_id(job_.id);
    control_->Call(server, method, message,
                   [post = environment_.post, on_reply](absl::StatusOr<Reply> reply) {
                     post([on_reply, reply = std::move(reply)] { on_reply(reply); });
                   });
  }
}

}  // namespace shoal::server
