// Calls of one service that take no thread while they go on (HeldCall, server.h).
#pragma once

#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <functional>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/base/status.h"
#include "core/rpc/grpc_support.h"

namespace shoal::rpc {

class HeldCalls {
 public:
  using End = std::function<void(const absl::Status&)>;  // of a call

  // Ends those under way, and each that comes later.
  void EndAll() {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    for (const auto& [call, end] : calls_) {
      end(GoesDown());
    }
  }
  void Add(const void* call, End end) {
    absl::MutexLock lock(&mutex_);
    if (ended_) {
      end(GoesDown());
    } else {
      calls_.emplace(call, std::move(end));
    }
  }
  void Remove(const void* call) {
    absl::MutexLock lock(&mutex_);
    calls_.erase(call);
  }

 private:
  static absl::Status GoesDown() { return absl::UnavailableError("this process goes down"); }

  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<const void*, End> calls_ ABSL_GUARDED_BY(mutex_);
};

// One of them, which deletes itself when it is over.
template <typename Request>
class HeldReactor final : public grpc::ServerReadReactor<Request> {
 public:
  // Returns what is to run at the call's end, or why it is refused.
  using Take = std::function<absl::StatusOr<std::function<void()>>(const Request&)>;

  // `may`: whether anything is read of the caller.
  HeldReactor(HeldCalls& calls, const absl::Status& may, Take take)
      : calls_(calls), take_(std::move(take)) {
    may.ok() ? this->StartRead(&request_) : End(may);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      End(Internal("the call has no request, or one that cannot be read"));
      return;
    }
    absl::StatusOr<std::function<void()>> taken = take_(request_);
    if (!taken.ok()) {
      End(taken.status());
      return;
    }
    on_end_ = *std::move(taken);
    calls_.Add(this, [this](const absl::Status& why) { End(why); });
  }
  void OnCancel() override { End(absl::CancelledError("the caller is gone")); }
  // After all of the above.
  void OnDone() override {
    calls_.Remove(this);
    if (on_end_) {
      on_end_();
    }
    delete this;
  }

 private:
  void End(const absl::Status& why) {
    if (!ending_.exchange(true)) {
      this->Finish(ToGrpc(why));
    }
  }

  HeldCalls& calls_;
  const Take take_;
  Request request_;
  std::function<void()> on_end_;
  std::atomic<bool> ending_ = false;
};

}  // namespace shoal::rpc
