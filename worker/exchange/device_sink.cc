#include "worker/exchange/device_sink.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/threads/steady_await.h"
#include "worker/exchange/gpu_direct.h"

namespace shoal::worker {
namespace {

// Interval for handling new work while a gradient is not ready to be pushed.
constexpr absl::Duration kLook = absl::Milliseconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceSink>> DeviceSink::Create(const Options& options,
                                                               const StepEnvironment& environment) {
  std::unique_ptr<DeviceSink> sink(new DeviceSink(options, environment));
  const std::vector<int64_t> counts = sink->rule_.Counts(environment.units);
  const int per_size = options.rule.push_per_step ? static_cast<int>(environment.units.size())
                                                  : options.buffers_per_size;
  {
    absl::MutexLock lock(&sink->mutex_);
    SHOAL_ASSIGN_OR_RETURN(sink->accumulators_,
                           DeviceBuffers::Create(client::BufferSizes(counts, DType::kF32, per_size),
                                                 *environment.device, options.in_place));
    sink->buffer_bytes_ = sink->accumulators_.bytes();
    if (!sink->in_place()) {
      const client::BufferSizes sizes(counts, DType::kF32, options.buffers_per_size);
      SHOAL_ASSIGN_OR_RETURN(
          sink->host_buffers_,
          client::BufferPool::Create(sizes, {}, PinnedAllocator(environment.host)));
    }
  }
  sink->thread_ = std::thread([&sink = *sink] { sink.Run(); });
  return sink;
}

DeviceSink::DeviceSink(const Options& options, const StepEnvironment& environment)
    : options_(options),
      env_(environment),
      rule_(options.rule),
      filling_(environment.units.size()),
      outward_(environment.device->NewStream(StreamKind::kCopy)) {}

DeviceSink::~DeviceSink() {
  if (!thread_.joinable()) {
    return;  // Create failed halfway
  }
  EndStep().IgnoreError();
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void DeviceSink::BeginStep(const PushWork& work) {
  rule_.BeginStep(work);
  absl::MutexLock lock(&mutex_);
  SHOAL_CHECK(pending_.empty());
  error_ = lasting_;
}

absl::Status DeviceSink::EndStep() {
  const std::shared_ptr<const Event> now = env_.compute->Record();
  absl::MutexLock lock(&mutex_);
  ending_ = now;
  closing_ = true;
  const auto closed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !closing_; };
  mutex_.Await(absl::Condition(&closed));  // bounded, as each wait of the other thread
  for (size_t unit = 0; unit < filling_.size(); ++unit) {
    if (filling_[unit] != nullptr) {  // of an attempt that failed
      accumulators_.Release(static_cast<int>(unit),
                            {.data = filling_[unit], .free_after = ending_});
      filling_[unit] = nullptr;
    }
  }
  return lasting_;
}

void DeviceSink::Cancel(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  lasting_ = lasting_.ok() ? why : lasting_;
  error_ = error_.ok() ? why : error_;
}

absl::StatusOr<std::span<float>> DeviceSink::Accumulator(int unit) {
  return AsAccumulator(Gradient(unit), *env_.compute);
}

absl::StatusOr<UnitGradient> DeviceSink::Gradient(int unit) {
  EnterGradient(*env_.time_kinds, unit);
  std::byte*& data = filling_[static_cast<size_t>(unit)];
  const bool empty = data == nullptr;
  if (empty) {
    const TimeKindClock::Scope wait(*env_.time_kinds, TimeKind::kPushWait);
    SHOAL_ASSIGN_OR_RETURN(const DeviceBuffer buffer, AwaitAccumulator(unit));
    data = buffer.data;
    if (buffer.free_after != nullptr) {
      env_.compute->WaitFor(*buffer.free_after);
    }
  }
  return UnitGradient{
      .sums = std::span(reinterpret_cast<float*>(data), static_cast<size_t>(spec(unit).count)),
      .empty = empty};
}

absl::StatusOr<DeviceBuffer> DeviceSink::AwaitAccumulator(int unit) {
  absl::MutexLock lock(&mutex_);
  std::optional<DeviceBuffer> buffer;
  const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (error_.ok() && !buffer.has_value()) {
      buffer = accumulators_.Acquire(unit);
    }
    return buffer.has_value() || !error_.ok();
  };
  const absl::Time deadline = RealClock().Now() + options_.device_timeout;
  // In place, buffers come back from servers, about which only the client knows.
  const absl::Duration look = in_place() ? options_.timeout : options_.device_timeout;
  while (!AwaitFor(&mutex_, absl::Condition(&there), look) && RealClock().Now() < deadline) {
    if (const absl::Status why = WhyNotDrained(); !absl::IsDeadlineExceeded(why)) {
      SHOAL_RETURN_IF_ERROR(why);
    }
  }
  if (buffer.has_value()) {
    return *std::move(buffer);
  }
  SHOAL_RETURN_IF_ERROR(error_);
  return DeadlineExceeded("gradient of {}: no buffer on the device came back within {}",
                          spec(unit).name, absl::FormatDuration(options_.device_timeout));
}

bool DeviceSink::Acknowledged(int64_t pack) {
  {
    absl::MutexLock lock(&mutex_);
    if (std::ranges::find(pending_, pack) != pending_.end()) {
      return false;
    }
  }
  return !rule_.push_per_step() && env_.client->Acknowledged(pack);
}

absl::Status DeviceSink::PushRest() {
  for (size_t unit = 0; unit < filling_.size(); ++unit) {
    if (filling_[unit] != nullptr) {
      const int index = static_cast<int>(unit);
      SHOAL_RETURN_IF_ERROR(Push(index, rule_.OfWork(index)));
    }
  }
  return absl::OkStatus();
}

absl::Status DeviceSink::Push(int unit, const std::optional<plan::Contribution>& contribution) {
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_RETURN_IF_ERROR(error_);
  }
  if (!contribution.has_value()) {
    return absl::OkStatus();
  }
  std::byte*& data = filling_[static_cast<size_t>(unit)];
  SHOAL_CHECK(data != nullptr);
  SHOAL_RETURN_IF_ERROR(env_.barriers->BeforePush());
  {
    absl::MutexLock lock(&mutex_);
    outgoing_.push_back({.unit = unit,
                         .contribution = *contribution,
                         .data = data,
                         .complete = env_.compute->Record()});
    pending_.push_back(contribution->pack);
  }
  data = nullptr;
  // The other thread carries it from here on. Announced at the same point by all workers.
  env_.barriers->StartedPush();
  return absl::OkStatus();
}

absl::Status DeviceSink::Flush() {
  const TimeKindClock::Scope wait(*env_.time_kinds, TimeKind::kPushWait);
  absl::MutexLock lock(&mutex_);
  const auto pushed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return pending_.empty() || !error_.ok();
  };
  const bool in_time = AwaitFor(&mutex_, absl::Condition(&pushed), options_.device_timeout);
  SHOAL_RETURN_IF_ERROR(error_);
  if (!in_time) {
    return DeadlineExceeded("{} gradients have not left the device within {}", pending_.size(),
                            absl::FormatDuration(options_.device_timeout));
  }
  return absl::OkStatus();
}

void DeviceSink::Returned(int unit, const void* gradient) {
  absl::MutexLock lock(&mutex_);
  Free(unit, static_cast<std::byte*>(const_cast<void*>(gradient)));
}

void DeviceSink::Free(int unit, std::byte* data) {
  if (in_place()) {
    accumulators_.Release(unit, {.data = data});
  } else {
    host_buffers_.Release(unit, data);
  }
}

void DeviceSink::Run() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || closing_ || (!pending_.empty() && error_.ok());
  };
  while (true) {
    bool closing = false;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (stopping_) {
        return;
      }
      closing = closing_;
    }
    if (closing) {
      Close();
    } else if (const absl::Status status = CarryOn(); !status.ok()) {
      absl::MutexLock lock(&mutex_);
      error_ = error_.ok() ? status : error_;
    }
  }
}

absl::Status DeviceSink::CarryOn() {
  if (in_place()) {
    TakeInPlace();
  } else {
    SHOAL_RETURN_IF_ERROR(StartCopies());
  }
  const Leaving& oldest = leaving_.front();
  if (oldest.ready->WaitDone(kLook)) {
    return PushOldest();
  }
  return RealClock().Now() - oldest_since_ < options_.device_timeout
             ? absl::OkStatus()
             : DeadlineExceeded("gradient of {}: it is not {} within {}", spec(oldest.unit).name,
                                in_place() ? "complete" : "copied from the device",
                                absl::FormatDuration(options_.device_timeout));
}

void DeviceSink::TakeInPlace() {
  absl::MutexLock lock(&mutex_);
  if (leaving_.empty()) {
    oldest_since_ = RealClock().Now();
  }
  for (const Outgoing& next : outgoing_) {
    leaving_.push_back({.unit = next.unit,
                        .contribution = next.contribution,
                        .data = next.data,
                        .ready = next.complete});
  }
  outgoing_.clear();
}

// Starts as many copies as there are host buffers; at least one is in progress afterwards.
absl::Status DeviceSink::StartCopies() {
  while (true) {
    Outgoing next;
    std::byte* buffer = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      if (outgoing_.empty()) {
        return absl::OkStatus();
      }
      next = outgoing_.front();
      buffer = host_buffers_.Acquire(next.unit);
    }
    if (buffer == nullptr) {
      if (!leaving_.empty()) {
        return absl::OkStatus();
      }
      SHOAL_ASSIGN_OR_RETURN(buffer, AwaitHostBuffer(next.unit));
    }
    outward_->WaitFor(*next.complete);
    outward_->Copy(buffer, next.data, BytesOf(next.unit));
    const std::shared_ptr<Event> copied = outward_->Record();
    if (leaving_.empty()) {
      oldest_since_ = RealClock().Now();
    }
    leaving_.push_back(
        {.unit = next.unit, .contribution = next.contribution, .data = buffer, .ready = copied});
    absl::MutexLock lock(&mutex_);
    outgoing_.pop_front();
    accumulators_.Release(next.unit, {.data = next.data, .free_after = copied});
  }
}

absl::StatusOr<std::byte*> DeviceSink::AwaitHostBuffer(int unit) {
  absl::MutexLock lock(&mutex_);
  std::byte* buffer = nullptr;
  const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    buffer = buffer != nullptr ? buffer : host_buffers_.Acquire(unit);
    return buffer != nullptr || closing_ || !error_.ok();
  };
  const bool in_time = AwaitFor(&mutex_, absl::Condition(&there), options_.timeout);
  if (buffer != nullptr) {
    return buffer;
  }
  SHOAL_RETURN_IF_ERROR(error_);
  if (in_time) {
    return Cancelled("gradient of {}: the step ended", spec(unit).name);
  }
  SHOAL_RETURN_IF_ERROR(WhyNotDrained());
  return DeadlineExceeded("gradient of {}: no buffer came back within {}", spec(unit).name,
                          absl::FormatDuration(options_.timeout));
}

absl::Status DeviceSink::PushOldest() {
  const Leaving next = leaving_.front();
  leaving_.pop_front();
  oldest_since_ = RealClock().Now();
  absl::Status status = Annotate(next.ready->Wait(), "gradient of " + spec(next.unit).name);
  if (status.ok()) {
    const auto count = static_cast<size_t>(spec(next.unit).count);
    status = in_place() ? env_.client->PushInPlace(next.unit, {next.data, count * sizeof(float)},
                                                   next.contribution, this)
                        : env_.client->PushAsync(next.unit,
                                                 {reinterpret_cast<const float*>(next.data), count},
                                                 next.contribution, this);
  }
  absl::MutexLock lock(&mutex_);
  pending_.pop_front();
  if (!status.ok()) {
    error_ = error_.ok() ? status : error_;  // before anybody sees that this was the last one
    Free(next.unit, next.data);
  }
  return status;
}

void DeviceSink::Close() {
  absl::Status late;
  for (const Leaving& gradient : leaving_) {
    if (late.ok() && !gradient.ready->WaitDone(options_.device_timeout)) {
      late = DeadlineExceeded("gradient of {}: it is not {} within {}", spec(gradient.unit).name,
                              in_place() ? "complete" : "copied from the device",
                              absl::FormatDuration(options_.device_timeout));
    }
  }
  absl::MutexLock lock(&mutex_);
  for (const Leaving& gradient : leaving_) {
    Free(gradient.unit, gradient.data);  // a sink whose deadline has passed hands none out again
  }
  leaving_.clear();
  if (late.ok()) {  // a failure was reported; the next attempt starts clean
    outward_->Synchronize().IgnoreError();
  }
  for (const Outgoing& gradient : outgoing_) {
    accumulators_.Release(gradient.unit, {.data = gradient.data, .free_after = gradient.complete});
  }
  accumulators_.FreeAfter(ending_);
  outgoing_.clear();
  pending_.clear();
  lasting_ = lasting_.ok() ? late : lasting_;
  closing_ = false;
}

}  // namespace shoal::worker
