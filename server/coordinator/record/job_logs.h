// What all processes of a cluster log from a job's turn to the next one's, for `shoal logs`. The
// coordinator tells whose turn it is, and lines go to the job whose turn it was when they were
// logged: they come in later. Bounded: of each job the newest lines are remembered.
//
// Not thread-safe. Times are those of the coordinator's clock.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"

namespace shoal::server {

class JobLogs {
 public:
  static constexpr size_t kMaxBytes = 512 << 10;  // of a job's lines
  static constexpr size_t kMaxTurns = 64;         // lines of earlier ones are dropped

  // It is this job's turn now. What was logged before the first is dropped.
  void Turn(const std::string& job_id, absl::Time now);
  // What a process has logged, heard of now.
  void Add(const std::string& process, const proto::NewLines& lines, absl::Time now);
  // The newest that one answer holds; none of a job that has not had a turn.
  proto::ReadLogReply Read(const std::string& job_id, int64_t after_line) const;
  void Forget(const std::string& job_id) { logs_.erase(job_id); }

 private:
  struct Log {
    std::deque<proto::LogLine> lines;
    size_t bytes = 0;
    int64_t last = 0;  // the number of the newest
  };
  struct TurnOf {
    std::string job_id;
    absl::Time since;
  };
  Log* LogAt(absl::Time time);

  std::map<std::string, Log> logs_;  // by job
  std::deque<TurnOf> turns_;
};

}  // namespace shoal::server
