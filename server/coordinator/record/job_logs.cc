#include "server/coordinator/record/job_logs.h"

#include <algorithm>

namespace shoal::server {
namespace {

absl::Time TimeOf(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

}  // namespace

void JobLogs::Turn(const std::string& job_id, absl::Time now) {
  if (!turns_.empty() && turns_.back().job_id == job_id) {
    return;
  }
  if (turns_.size() == kMaxTurns) {
    turns_.pop_front();
  }
  turns_.push_back({job_id, now});
  logs_.try_emplace(job_id);
}

JobLogs::Log* JobLogs::LogAt(absl::Time time) {
  const auto later = std::ranges::upper_bound(turns_, time, {}, &TurnOf::since);
  const auto log = later == turns_.begin() ? logs_.end() : logs_.find(std::prev(later)->job_id);
  return log == logs_.end() ? nullptr : &log->second;
}

void JobLogs::Add(const std::string& process, const proto::NewLines& lines, absl::Time now) {
  const absl::Duration ahead = now - TimeOf(lines.now());
  for (const proto::LogLine& added : lines.lines()) {
    const absl::Time time = std::min(now, TimeOf(added.time()) + ahead);
    Log* log = LogAt(time);
    if (log == nullptr) {
      continue;
    }
    proto::LogLine& line = log->lines.emplace_back(added);
    line.set_time(absl::ToDoubleSeconds(time - absl::UnixEpoch()));
    line.set_process(process);
    log->bytes += line.ByteSizeLong();
    ++log->last;
    while (log->bytes > kMaxBytes) {
      log->bytes -= log->lines.front().ByteSizeLong();
      log->lines.pop_front();
    }
  }
}

proto::ReadLogReply JobLogs::Read(const std::string& job_id, int64_t after_line) const {
  proto::ReadLogReply reply;
  const auto found = logs_.find(job_id);
  if (found == logs_.end()) {
    return reply;
  }
  const Log& log = found->second;
  const int64_t oldest = log.last - std::ssize(log.lines);  // the number before its
  // Lines of an earlier life of the coordinator had other numbers.
  const int64_t after = after_line > log.last ? 0 : std::max<int64_t>(0, after_line);
  reply.set_forgotten(std::max<int64_t>(0, oldest - after));
  reply.set_last_line(log.last);
  for (auto line = log.lines.begin() + std::max<int64_t>(0, after - oldest);
       line != log.lines.end(); ++line) {
    *reply.add_lines() = *line;
  }
  return reply;
}

}  // namespace shoal::server
