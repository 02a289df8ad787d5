// Sends gradients that take no more pushes to the servers that back their partitions up, while the
// attempt goes on, in threads of its own: whoever takes pushes waits for nobody. What has not got
// there when the attempt is sealed those servers fetch (ReplicateRequest), so that nobody is told
// of what fails here.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/model/partition.h"
#include "proto/server.pb.h"
#include "server/copy/state_copy.h"

namespace shoal::server {

// Reads what lies here, into the answer. Thread-safe.
using GradientReader =
    std::function<absl::StatusOr<proto::ReadStateReply>(const proto::ReadStateRequest&)>;

// Reaches one server that backs partitions up. Thread-safe.
struct GradientTaker {
  // Brings it a part of a gradient.
  std::function<absl::StatusOr<proto::TakeGradientReply>(const proto::TakeGradientRequest&)> take;
  // Ends a `take` under way, and later ones, with an error.
  std::function<void()> cancel;
};

// The part of a partition's gradient that begins at this element, of an open attempt, as it is read
// by `read`.
absl::StatusOr<proto::TakeGradientRequest> NextPiece(const plan::PartitionSpec& partition,
                                                     int64_t offset,
                                                     const proto::TakeGradientRequest& of,
                                                     const GradientReader& read);

// DataLoss, unless they are what was sent.
absl::StatusOr<std::vector<float>> ElementsOf(const proto::TakeGradientRequest& piece);

class GradientSender {
 public:
  struct Options {
    std::string job_id;
    int64_t run = 0;
    int threads = 2;  // each sends to another server, so that a slow one holds up one thread
  };
  // `read` reads this server's gradients, `connect` reaches the server of an address.
  GradientSender(const Options& options, GradientReader read,
                 std::function<GradientTaker(const std::string& address)> connect);
  // Cancels what is being sent.
  ~GradientSender();
  GradientSender(const GradientSender&) = delete;
  GradientSender& operator=(const GradientSender&) = delete;

  // Says which attempt is open, and who backs up what. What waits of another is not sent, and what
  // is being sent to a server that it does not name is cancelled, where it names some.
  void Begin(const proto::BeginAttemptRequest& request) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends the gradient of a partition, in parts, one after the other. A server at which one fails
  // gets no more of the attempt.
  void Add(const plan::PartitionSpec& partition, int64_t step, int64_t attempt)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends nothing more of the attempt.
  void End() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Task {
    plan::PartitionSpec partition;
    std::string address;
    proto::TakeGradientRequest of;
  };

  struct Backup {
    GradientTaker taker;  // from the first sending on
    bool busy = false;    // a thread sends to it
    bool failed = false;  // in this attempt
  };

  static void Cancel(const Backup& backup);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // The first task of a server to which no thread sends.
  std::deque<Task>::iterator NextTask() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(const Task& task, const absl::Status& sent) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Send(const Task& task) ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsOpen(int64_t step, int64_t attempt) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return open_ && step == step_ && attempt == attempt_;
  }

  const Options options_;
  const GradientReader read_;
  const std::function<GradientTaker(const std::string&)> connect_;
  absl::Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t attempt_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int, std::vector<std::string>> addresses_ ABSL_GUARDED_BY(mutex_);  // by partition
  std::map<std::string, Backup> backups_ ABSL_GUARDED_BY(mutex_);              // by address
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);  // each partition once for each backup
  std::vector<std::thread> threads_;
};

}  // namespace shoal::server
