#include "server/coordinator/job/takeover.h"

#include <algorithm>

#include "fmt/format.h"

namespace shoal::server {
namespace {

using What = TakeoverDecision::What;

TakeoverDecision Restart(std::string message) {
  return {.what = What::kRestart, .commit = {}, .message = std::move(message)};
}

CommitRecord RecordOf(const proto::TakeOverReply& server) {
  const proto::CommitRequest& committed = server.committed();
  CommitRecord record = {.step = committed.step(),
                         .attempt = committed.attempt(),
                         .learning_rate = committed.learning_rate(),
                         .clip_coefficient = committed.clip_coefficient(),
                         .generation = server.generation(),
                         .event = {}};
  record.event.set_step(record.step);
  record.event.set_loss(committed.loss());
  record.event.set_grad_norm(committed.grad_norm());
  record.event.set_learning_rate(record.learning_rate);
  record.event.set_skipped(committed.skipped());
  *record.event.mutable_norms() = committed.norms();
  return record;
}

// The last commit of the run that anyone knows of.
CommitRecord LastCommit(const RecordedRun& run, const std::vector<ServerAnswer>& servers) {
  CommitRecord last = run.commit.value_or(CommitRecord());
  for (const ServerAnswer& server : servers) {
    if (server.holds && server.at.committed().step() > last.step) {
      last = RecordOf(server.at);
    }
  }
  return last;
}

// Whether the server can commit that, or has.
bool CanCommit(const proto::TakeOverReply& at, const CommitRecord& commit) {
  return at.version() == commit.step ||
         (at.version() == commit.step - 1 && at.step() == commit.step &&
          at.attempt() == commit.attempt && at.phase() == proto::ATTEMPT_PHASE_SEALED);
}

std::string Describe(const ServerAnswer& server) {
  static constexpr const char* kStates[] = {"none is open", "open", "sealed", "failed"};
  return fmt::format("{} has version {}, step {} attempt {} ({})", server.server,
                     server.at.version(), server.at.step(), server.at.attempt(),
                     kStates[std::clamp<int>(server.at.phase(), 0, 3)]);
}

}  // namespace

proto::CommitRequest CommitRequestOf(const CommitRecord& record) {
  proto::CommitRequest request;
  request.set_step(record.step);
  request.set_attempt(record.attempt);
  request.set_learning_rate(record.learning_rate);
  request.set_clip_coefficient(record.clip_coefficient);
  request.set_loss(record.event.loss());
  request.set_grad_norm(record.event.grad_norm());
  request.set_skipped(record.event.skipped());
  *request.mutable_norms() = record.event.norms();
  return request;
}

TakeoverDecision DecideTakeover(const RecordedRun& run, const std::vector<ServerAnswer>& all) {
  std::vector<ServerAnswer> servers = all;
  std::erase_if(servers, [](const ServerAnswer& server) { return server.lost; });
  const CommitRecord last = LastCommit(run, servers);
  const int64_t version = std::max(last.step, run.first_version);
  for (const ServerAnswer& server : servers) {
    if (!server.holds && version > run.first_version) {
      return Restart(fmt::format("{} no longer holds the job", server.server));
    }
    // One that has not begun a step by the newest map does by the next one.
    if (server.holds && server.at.generation() > run.generation) {
      return Restart(fmt::format("{} has generation {} of the shard map instead of {}",
                                 server.server, server.at.generation(), run.generation));
    }
  }
  TakeoverDecision decision = {.version = version, .commit = last, .message = ""};
  for (const ServerAnswer& server : servers) {
    if (server.at.step() == version + 1) {
      decision.attempt = std::max(decision.attempt, server.at.attempt());
    }
  }
  if (!std::ranges::all_of(servers, &ServerAnswer::holds)) {
    decision.what = What::kConfigure;
    return decision;
  }
  for (const ServerAnswer& server : servers) {
    if (server.at.partitions() == 0 && server.at.generation() < run.generation) {
      continue;  // what it is to hold has been fetched, of the newest version
    }
    const bool published = server.at.version() == version;
    if (!published && !CanCommit(server.at, last)) {
      return Restart(fmt::format("{}, and step {} attempt {} is committed", Describe(server),
                                 last.step, last.attempt));
    }
    if (!published) {
      decision.what = What::kCommit;
    }
  }
  return decision;
}

}  // namespace shoal::server
