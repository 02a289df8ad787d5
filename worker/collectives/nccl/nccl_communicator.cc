#include "worker/collectives/nccl/nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/threads/steady_await.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/collectives/nccl/nccl_status.h"

namespace shoal::worker {
namespace {

// Pauses between two polls of a call that continues in the background: the first, and the longest,
// to which the pause doubles.
constexpr absl::Duration kFirstPause = absl::Microseconds(20);
constexpr absl::Duration kLongestPause = absl::Milliseconds(1);
// Pause between two looks at the calls in flight.
constexpr absl::Duration kLook = absl::Milliseconds(5);
// Time for all ranks to agree that it is over; after that it just ends.
constexpr absl::Duration kFarewell = absl::Seconds(10);

ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    default:
      SHOAL_CHECK(false);
      return ncclFloat32;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> NcclCommunicator::Join(
    const Nccl& nccl, const Device& device, const CommunicatorOptions& options) {
  if (options.ranks < 1 || options.rank < 0 || options.rank >= options.ranks) {
    return InvalidArgument("{}: rank {} of {}", options.name, options.rank, options.ranks);
  }
  if (options.id.size() != sizeof(ncclUniqueId)) {
    return InvalidArgument("{}: an id of {} B, where NCCL's have {}", options.name,
                           options.id.size(), sizeof(ncclUniqueId));
  }
  std::unique_ptr<NcclCommunicator> communicator(new NcclCommunicator(nccl, device, options));
  SHOAL_RETURN_IF_ERROR(communicator->Connect());
  communicator->thread_ = std::thread([&communicator = *communicator] { communicator.Watch(); });
  return communicator;
}

absl::Status NcclCommunicator::Connect() {
  SHOAL_RETURN_IF_ERROR(MakeCurrent(device_));
  ncclUniqueId id;
  std::memcpy(id.internal, options_.id.data(), sizeof(id.internal));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 17, 0)
  if (options_.most_blocks > 0) {
    config.maxCTAs = options_.most_blocks;
  }
#endif
  absl::MutexLock lock(&mutex_);
  const ncclResult_t result =
      nccl_.init_rank_config(&communicator_, options_.ranks, id, options_.rank, &config);
  return Settle(result, fmt::format("connecting rank {} of {}", options_.rank, options_.ranks),
                options_.connect_timeout);
}

NcclCommunicator::~NcclCommunicator() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) {
    thread_.join();
  }
  absl::MutexLock lock(&mutex_);
  DropDone();
  if (communicator_ != nullptr && pending_.empty() && MakeCurrent(device_).ok() &&
      Settle(nccl_.finalize(communicator_), "finishing", kFarewell).ok()) {
    nccl_.destroy(std::exchange(communicator_, nullptr));
  }
  Fail(absl::CancelledError("the communicator is gone")).IgnoreError();
}

absl::Status NcclCommunicator::Fail(const absl::Status& why) {
  if (error_.ok()) {
    error_ = Annotate(why, options_.name);
  }
  const absl::Status error = error_;
  if (const ncclComm_t failed = std::exchange(communicator_, nullptr); failed != nullptr) {
    mutex_.Unlock();
    MakeCurrent(device_).IgnoreError();  // in a thread that may have had none
    nccl_.abort(failed);
    mutex_.Lock();
  }
  return error;
}

absl::Status NcclCommunicator::Settle(ncclResult_t result, std::string_view what,
                                      absl::Duration timeout) {
  const absl::Time deadline = RealClock().Now() + timeout;
  for (absl::Duration pause = kFirstPause; result == ncclInProgress;
       pause = std::min(2 * pause, kLongestPause)) {
    if (RealClock().Now() >= deadline) {
      return Fail(DeadlineExceeded("{}: not all other ranks came within {}", what,
                                   absl::FormatDuration(timeout)));
    }
    const auto failed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !error_.ok(); };
    if (AwaitFor(&mutex_, absl::Condition(&failed), pause)) {
      return error_;
    }
    if (options_.check != nullptr) {
      if (const absl::Status others = options_.check(); !others.ok()) {
        return Fail(Annotate(others, what));
      }
    }
    if (const ncclResult_t asked = nccl_.get_async_error(communicator_, &result);
        asked != ncclSuccess) {
      result = asked;
    }
  }
  return result == ncclSuccess ? absl::OkStatus()
                               : Fail(ToStatus(nccl_, result, communicator_, what));
}

absl::Status NcclCommunicator::Call(Stream& stream, std::string_view what,
                                    const std::function<ncclResult_t(ncclComm_t)>& call) {
  SHOAL_RETURN_IF_ERROR(MakeCurrent(device_));
  absl::MutexLock lock(&mutex_);
  SHOAL_RETURN_IF_ERROR(error_);
  SHOAL_RETURN_IF_ERROR(Settle(call(communicator_), what, options_.timeout));
  if (pending_.empty()) {
    oldest_since_ = RealClock().Now();
  }
  pending_.push_back({.what = std::string(what), .done = stream.Record()});
  return absl::OkStatus();
}

absl::Status NcclCommunicator::AllGather(const void* from, void* to, int64_t count, DType dtype,
                                         Stream& stream, std::string_view what) {
  return Call(stream, what, [&](ncclComm_t communicator) {
    return nccl_.all_gather(from, to, static_cast<size_t>(count), TypeOf(dtype), communicator,
                            NativeStream(stream));
  });
}

absl::Status NcclCommunicator::ReduceScatter(const void* from, void* to, int64_t count, DType dtype,
                                             Stream& stream, std::string_view what) {
  return Call(stream, what, [&](ncclComm_t communicator) {
    return nccl_.reduce_scatter(from, to, static_cast<size_t>(count), TypeOf(dtype), ncclSum,
                                communicator, NativeStream(stream));
  });
}

absl::Status NcclCommunicator::CheckPeer(int peer, std::string_view what) const {
  if (peer < 0 || peer >= options_.ranks || peer == options_.rank) {
    return InvalidArgument("{}: {}: rank {} of {} has no peer {}", options_.name, what,
                           options_.rank, options_.ranks, peer);
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Send(const void* from, int64_t bytes, int peer, Stream& stream,
                                    std::string_view what) {
  SHOAL_RETURN_IF_ERROR(CheckPeer(peer, what));
  return Call(stream, what, [&](ncclComm_t communicator) {
    return nccl_.send(from, static_cast<size_t>(bytes), ncclUint8, peer, communicator,
                      NativeStream(stream));
  });
}

absl::Status NcclCommunicator::Receive(void* to, int64_t bytes, int peer, Stream& stream,
                                       std::string_view what) {
  SHOAL_RETURN_IF_ERROR(CheckPeer(peer, what));
  return Call(stream, what, [&](ncclComm_t communicator) {
    return nccl_.receive(to, static_cast<size_t>(bytes), ncclUint8, peer, communicator,
                         NativeStream(stream));
  });
}

void NcclCommunicator::Abort(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  Fail(why).IgnoreError();
}

absl::Status NcclCommunicator::status() const {
  absl::MutexLock lock(&mutex_);
  return error_;
}

void NcclCommunicator::Watch() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (!pending_.empty() && error_.ok());
  };
  absl::MutexLock lock(&mutex_);
  while (true) {
    mutex_.Await(absl::Condition(&has_work));
    if (stopping_) {
      return;
    }
    Look();
    AwaitFor(&mutex_, absl::Condition(&stopping_), kLook);
  }
}

void NcclCommunicator::DropDone() {
  while (!pending_.empty() && pending_.front().done->WaitDone(absl::ZeroDuration())) {
    pending_.pop_front();
    oldest_since_ = RealClock().Now();
  }
}

void NcclCommunicator::Look() {
  DropDone();
  if (pending_.empty()) {
    return;
  }
  const std::string& what = pending_.front().what;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = nccl_.get_async_error(communicator_, &state);
  if (const ncclResult_t result = asked == ncclSuccess ? state : asked;
      result != ncclSuccess && result != ncclInProgress) {
    Fail(ToStatus(nccl_, result, communicator_, what)).IgnoreError();
    return;
  }
  if (const absl::Status others = options_.check == nullptr ? absl::OkStatus() : options_.check();
      !others.ok()) {
    Fail(Annotate(others, what)).IgnoreError();
  } else if (RealClock().Now() - oldest_since_ >= options_.timeout) {
    Fail(DeadlineExceeded("{}: not done within {}: another rank did not come to it", what,
                          absl::FormatDuration(options_.timeout)))
        .IgnoreError();
  }
}

}  // namespace shoal::worker
