// What a run leaves of itself in CHECKPOINT_DIRECTORY/record: metrics.jsonl, a line for each event,
// appended over resumes, and job.yaml, the job as it was resolved (docs/run-record.md). The record
// of the run before is kept as record-TIME.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/file.h"
#include "server/coordinator/record/tensorboard_log.h"

namespace shoal::server {

std::string RecordFolder(const std::string& checkpoint_directory);
inline constexpr char kRecordFile[] = "metrics.jsonl";  // in that folder

// Of the last whole line that has one; 0: none has.
absl::StatusOr<int64_t> LastEventNumber(const std::string& checkpoint_directory);

// Not thread-safe; calls may block on the disk.
class RunRecord {
 public:
  // With `resume`, goes on with the record that is there. `now` names the record that makes room;
  // the newest kKept of those stay. With `tensorboard`, steps go to event files too.
  static absl::StatusOr<RunRecord> Open(const std::string& checkpoint_directory, bool resume,
                                        const std::string& job_yaml, absl::Time now,
                                        bool tensorboard = false);

  // Whole lines.
  absl::Status Append(std::string_view lines);

  static constexpr size_t kKept = 10;

 private:
  RunRecord(std::string path, UniqueFd fd, bool tensorboard)
      : path_(std::move(path)), fd_(std::move(fd)), tensorboard_(tensorboard) {}
  absl::Status AppendToTensorBoard(std::string_view lines);

  std::string path_;
  UniqueFd fd_;
  bool tensorboard_;
  std::optional<TensorBoardLog> events_;  // once there is a step
};

}  // namespace shoal::server
