#include "worker/exchange/service_sink.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/base/threads/steady_await.h"

namespace shoal::worker {

absl::StatusOr<std::unique_ptr<ServiceSink>> ServiceSink::Create(
    const Options& options, const std::vector<plan::UnitSpec>& units,
    client::ParameterClient* client, LayerBarriers* barriers, TimeKindClock* time_kinds) {
  std::unique_ptr<ServiceSink> sink(new ServiceSink(options, units, client, barriers, time_kinds));
  const int per_size =
      options.rule.push_per_step ? static_cast<int>(units.size()) : options.buffers_per_size;
  absl::MutexLock lock(&sink->mutex_);
  SHOAL_ASSIGN_OR_RETURN(
      sink->buffers_,
      client::BufferPool::Create({sink->rule_.Counts(units), DType::kF32, per_size}, {}));
  sink->buffer_bytes_ = sink->buffers_.bytes();
  return sink;
}

void ServiceSink::BeginStep(const PushWork& work) {
  rule_.BeginStep(work);
  absl::MutexLock lock(&mutex_);
  for (size_t unit = 0; unit < filling_.size(); ++unit) {
    if (filling_[unit] != nullptr) {  // left by a failed attempt
      buffers_.Release(static_cast<int>(unit), reinterpret_cast<std::byte*>(filling_[unit]));
      filling_[unit] = nullptr;
    }
  }
}

float* ServiceSink::AwaitBuffer(int unit) {
  absl::MutexLock lock(&mutex_);
  std::byte* buffer = nullptr;
  const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    buffer = buffer != nullptr ? buffer : buffers_.Acquire(unit);
    return buffer != nullptr || cancelled_;
  };
  AwaitFor(&mutex_, absl::Condition(&there), options_.timeout);
  return reinterpret_cast<float*>(buffer);
}

absl::StatusOr<std::span<float>> ServiceSink::Accumulator(int unit) {
  EnterGradient(*time_kinds_, unit);
  float*& buffer = filling_[static_cast<size_t>(unit)];
  const plan::UnitSpec& spec = units_[static_cast<size_t>(unit)];
  const auto count = static_cast<size_t>(spec.count);
  if (buffer == nullptr) {
    {
      const TimeKindClock::Scope wait(*time_kinds_, TimeKind::kPushWait);
      buffer = AwaitBuffer(unit);
    }
    if (buffer == nullptr) {
      // The client knows why pushes do not drain.
      SHOAL_RETURN_IF_ERROR(client_->Finish(absl::ZeroDuration()).status());
      return DeadlineExceeded("gradient of {}: no buffer came back within {}", spec.name,
                              absl::FormatDuration(options_.timeout));
    }
    std::fill_n(buffer, count, 0.0F);
  }
  return std::span<float>(buffer, count);
}

absl::Status ServiceSink::PushRest() {
  for (size_t unit = 0; unit < filling_.size(); ++unit) {
    if (filling_[unit] != nullptr) {
      const int index = static_cast<int>(unit);
      SHOAL_RETURN_IF_ERROR(Push(index, rule_.OfWork(index)));
    }
  }
  return absl::OkStatus();
}

absl::Status ServiceSink::Push(int unit, const std::optional<plan::Contribution>& contribution) {
  if (!contribution.has_value()) {
    return absl::OkStatus();
  }
  float*& buffer = filling_[static_cast<size_t>(unit)];
  SHOAL_CHECK(buffer != nullptr);
  SHOAL_RETURN_IF_ERROR(barriers_->BeforePush());
  const TimeKindClock::Scope wait(*time_kinds_, TimeKind::kPushWait);
  SHOAL_RETURN_IF_ERROR(client_->PushAsync(
      unit, {buffer, static_cast<size_t>(units_[static_cast<size_t>(unit)].count)}, *contribution,
      this));
  buffer = nullptr;
  barriers_->StartedPush();
  return absl::OkStatus();
}

// The client, which was cancelled before, says why.
void ServiceSink::Cancel(const absl::Status& /*why*/) {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
}

void ServiceSink::Returned(int unit, const void* gradient) {
  absl::MutexLock lock(&mutex_);
  buffers_.Release(unit, static_cast<std::byte*>(const_cast<void*>(gradient)));
}

}  // namespace shoal::worker
