// Which runs may begin at a server. Numbers of runs rise, over jobs too, within a term of the
// coordinator; so a Configure that comes late, when its run is over, is told from one of a run that
// begins, whatever the server has held in between.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "core/base/status.h"
#include "proto/server.pb.h"

namespace shoal::server {

class NewestRun {
 public:
  // AlreadyExists for one that does not come after all that have begun here.
  absl::Status Check(const proto::ConfigureRequest& request) const {
    return NumberOf(request) > newest_
               ? absl::OkStatus()
               : AlreadyExists("run {} of {} comes late: run {} has begun here", request.run(),
                               request.job_id(), newest_.second);
  }
  void Begin(int64_t term, int64_t run) { newest_ = {term, run}; }
  // As for a process that begins: for another coordinator.
  void Forget() { newest_ = kNone; }

 private:
  using Number = std::pair<int64_t, int64_t>;  // term, run
  static constexpr Number kNone = {0, -1};
  static Number NumberOf(const proto::ConfigureRequest& request) {
    return {request.term(), request.run()};
  }

  Number newest_ = kNone;
};

}  // namespace shoal::server
