// Writes a checkpoint shard in the background while training goes on.
//
// It writes the published state in place, partition by partition by id; a Commit
// waits for each partition to be written before it changes it. So a checkpoint costs no memory, and
// time only if the disk is slower than a step. Has one thread; all methods are thread-safe. The
// store must outlive the task.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/checkpoint/shard_file.h"
#include "server/store/job_store.h"

namespace shoal::server {

class CheckpointTask {
 public:
  // Starts at once: store->version() is what is written.
  CheckpointTask(const JobStore* store, int server, std::string directory);
  // Gives up at the next partition, if it is not done.
  ~CheckpointTask();
  CheckpointTask(const CheckpointTask&) = delete;
  CheckpointTask& operator=(const CheckpointTask&) = delete;

  int64_t version() const { return version_; }
  const std::string& directory() const { return directory_; }

  // Blocks until that partition (its index in the store) may change; not once writing has failed.
  // Cancelled if it never may.
  absl::Status WaitUntilWritten(size_t partition);
  // Whether no partition is needed any more.
  bool AllWritten() const;
  bool Done() const;
  // Whether the shard is written, and still where it was written to.
  bool Kept() const;
  bool given_up() const;
  // Returns what was written and synced, the failure, or DeadlineExceeded.
  absl::StatusOr<ShardEntry> Wait(absl::Duration timeout) const;
  // Ends it early, and all who wait for it, with Cancelled.
  void Cancel();
  // Ends it at the next partition; who waits for one waits until then.
  void GiveUp();

 private:
  void Run();
  absl::StatusOr<ShardEntry> Write();
  bool IsWritten(size_t partition) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const JobStore* const store_;
  const int server_;
  const int64_t version_;
  // Partitions in the order in which they are written, those that a commit changes first, and the
  // place of each there.
  const std::vector<size_t> order_;
  const std::vector<size_t> places_;
  const std::string directory_;
  mutable absl::Mutex mutex_;
  size_t written_ ABSL_GUARDED_BY(mutex_) = 0;  // partitions
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool given_up_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::StatusOr<ShardEntry> result_ ABSL_GUARDED_BY(mutex_) = absl::UnknownError("under way");
  std::thread thread_;
};

}  // namespace shoal::server
