// What a server does in an attempt, span by span, for a timeline, where the coordinator asks for
// it. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/server.pb.h"

namespace shoal::server {

class SpanLog {
 public:
  // Of an attempt; spans beyond it are counted.
  static constexpr int kMostSpans = 1 << 16;

  // An attempt begins: what is here of others goes.
  void Begin(const proto::BeginAttemptRequest& request) ABSL_LOCKS_EXCLUDED(mutex_);
  // A push that was added to its partition, by the thread that calls this.
  void AddPush(int64_t step, int64_t attempt, const std::string& client, int32_t partition,
               absl::Time start, absl::Time end);
  // What a command does.
  void AddCommand(int64_t step, int64_t attempt, proto::ServerSpan::Kind kind, absl::Time start,
                  absl::Time end);
  // Of an attempt that is recorded: what was added. It stays, for a repeated call.
  void Fill(int64_t step, int64_t attempt, proto::CommitReply& reply) const
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Add(int64_t step, int64_t attempt, absl::Time start, absl::Time end, proto::ServerSpan span)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Records(int64_t step, int64_t attempt) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return step == step_ && attempt == attempt_;
  }

  std::atomic<bool> on_ = false;
  mutable absl::Mutex mutex_;
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;  // with attempt_ what is recorded
  int64_t attempt_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::thread::id, int32_t> threads_ ABSL_GUARDED_BY(mutex_);  // that take pushes
  std::vector<proto::ServerSpan> spans_ ABSL_GUARDED_BY(mutex_);
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shoal::server
