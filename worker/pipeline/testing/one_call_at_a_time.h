// Collectives for tests, as under a driver that waits for the whole GPU and meanwhile blocks all
// other calls of the process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/base/status.h"
#include "worker/collectives/collectives.h"

namespace shoal::worker {

// Every call holds `driver`, as does a wait for the whole GPU.
class OneCallAtATime final : public Communicator {
 public:
  OneCallAtATime(std::unique_ptr<Communicator> communicator, absl::Mutex* driver)
      : communicator_(std::move(communicator)), driver_(driver) {}

  int rank() const override { return communicator_->rank(); }
  int ranks() const override { return communicator_->ranks(); }
  absl::Status AllGather(const void*, void*, int64_t, DType, Stream&, std::string_view) override {
    return absl::UnimplementedError("not among stages");
  }
  absl::Status ReduceScatter(const void*, void*, int64_t, DType, Stream&,
                             std::string_view) override {
    return absl::UnimplementedError("not among stages");
  }
  absl::Status Send(const void* from, int64_t bytes, int peer, Stream& stream,
                    std::string_view what) override {
    return Call([&] { return communicator_->Send(from, bytes, peer, stream, what); });
  }
  absl::Status Receive(void* to, int64_t bytes, int peer, Stream& stream,
                       std::string_view what) override {
    return Call([&] { return communicator_->Receive(to, bytes, peer, stream, what); });
  }
  void Abort(const absl::Status& why) override { communicator_->Abort(why); }
  absl::Status status() const override { return communicator_->status(); }

 private:
  // The first call makes the connection, before any message: without `driver`.
  template <typename Exchange>
  absl::Status Call(const Exchange& exchange) {
    if (std::exchange(first_, false)) {
      return exchange();
    }
    absl::MutexLock lock(driver_);
    return exchange();
  }

  const std::unique_ptr<Communicator> communicator_;
  absl::Mutex* const driver_;
  bool first_ = true;
};

class OneCallAtATimeCollectives final : public Collectives {
 public:
  OneCallAtATimeCollectives(std::unique_ptr<Collectives> collectives, absl::Mutex* driver)
      : collectives_(std::move(collectives)), driver_(driver) {}

  std::string_view name() const override { return collectives_->name(); }
  int version() const override { return collectives_->version(); }
  const std::string& gpu() const override { return collectives_->gpu(); }
  absl::StatusOr<std::string> NewId() override { return collectives_->NewId(); }
  absl::StatusOr<std::unique_ptr<Communicator>> Join(const CommunicatorOptions& options) override {
    SHOAL_ASSIGN_OR_RETURN(auto communicator, collectives_->Join(options));
    return std::make_unique<OneCallAtATime>(std::move(communicator), driver_);
  }

 private:
  const std::unique_ptr<Collectives> collectives_;
  absl::Mutex* const driver_;
};

}  // namespace shoal::worker
