#include "worker/exchange/device_source.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/base/threads/steady_await.h"

namespace shoal::worker {

absl::StatusOr<std::unique_ptr<DeviceSource>> DeviceSource::Create(
    const Options& options, const StepEnvironment& environment) {
  const std::vector<plan::UnitSpec>& units = environment.units;
  std::vector<int64_t> counts(units.size(), 0);
  for (const int unit : options.landed ? std::vector<int>() : options.units) {
    counts[static_cast<size_t>(unit)] = units[static_cast<size_t>(unit)].count;
  }
  const int per_size =
      options.uses.keep_for_step ? static_cast<int>(units.size()) : options.buffers_per_size;
  SHOAL_ASSIGN_OR_RETURN(
      DeviceBuffers buffers,
      DeviceBuffers::Create(client::BufferSizes(counts, options.compute_type, per_size),
                            *environment.device));
  std::unique_ptr<DeviceSource> source(new DeviceSource(options, environment));
  source->buffer_bytes_ = buffers.bytes();
  {
    absl::MutexLock lock(&source->mutex_);
    source->buffers_ = std::move(buffers);
  }
  source->thread_ = std::thread([&source = *source] { source.Run(); });
  return source;
}

DeviceSource::DeviceSource(const Options& options, const StepEnvironment& environment)
    : options_(options),
      env_(environment),
      inward_(environment.device->NewStream(StreamKind::kCopy)),
      uses_(options.uses, environment.barriers),
      units_(environment.units.size()) {}

DeviceSource::~DeviceSource() {
  EndStep().IgnoreError();
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void DeviceSource::BeginStep(std::span<const int> uses) {
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_CHECK(fetches_.empty());
    error_ = lasting_;
  }
  started_ = 0;
  uses_.BeginStep(uses);
  StartDue();
}

absl::Status DeviceSource::EndStep() {
  const std::shared_ptr<Event> now = env_.compute->Record();
  absl::MutexLock lock(&mutex_);
  ending_ = now;
  closing_ = true;
  const auto closed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !closing_; };
  mutex_.Await(absl::Condition(&closed));  // bounded, as each wait of the other thread
  return lasting_;
}

void DeviceSource::Cancel(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  lasting_ = lasting_.ok() ? why : lasting_;
  error_ = error_.ok() ? why : error_;
}

void DeviceSource::StartDue() {
  absl::MutexLock lock(&mutex_);
  for (; started_ < uses_.due(); ++started_) {
    const int unit = uses_.unit(started_);
    if (!at(unit).started) {
      at(unit).started = true;
      fetches_.push_back({.unit = unit});
    }
    ++at(unit).uses;
  }
  if (error_.ok()) {
    Prefetch();
  }
}

absl::StatusOr<WeightsView> DeviceSource::Get(int unit) {
  env_.time_kinds->AtUnit(unit);
  if (!uses_.Expects(unit)) {
    return Internal("get {}: the step's order of use has {} here", NameOf(unit),
                    uses_.next() < uses_.count() ? NameOf(uses_.unit(uses_.next())) : "its end");
  }
  uses_.Advance();
  StartDue();
  SHOAL_RETURN_IF_ERROR(uses_.WaitAtBarrier());
  const TimeKindClock::Scope wait(*env_.time_kinds, TimeKind::kGetWait);
  const void* data = nullptr;
  std::shared_ptr<const Event> copied;
  {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return at(unit).data != nullptr || !error_.ok();
    };
    const bool in_time = AwaitFor(&mutex_, absl::Condition(&there), options_.timeout);
    SHOAL_RETURN_IF_ERROR(error_);
    if (!in_time) {
      return DeadlineExceeded("get {}: not on its way to the device within {}", NameOf(unit),
                              absl::FormatDuration(options_.timeout));
    }
    data = at(unit).data;
    copied = at(unit).copied;
    env_.time_kinds->WaitedFor(at(unit).last_server);
  }
  if (copied != nullptr) {
    env_.compute->WaitFor(*copied);
  }
  return WeightsView{.data = data,
                     .dtype = options_.compute_type,
                     .count = env_.units[static_cast<size_t>(unit)].count};
}

void DeviceSource::Release(int unit) {
  absl::MutexLock lock(&mutex_);
  Unit& held = at(unit);
  SHOAL_CHECK(held.uses > 0 && held.data != nullptr);
  if (--held.uses == 0 && !options_.uses.keep_for_step) {
    LetGo(unit, env_.compute->Record());
  }
}

void DeviceSource::LetGo(int unit, std::shared_ptr<Event> after) {
  Unit& held = at(unit);
  if (options_.landed) {
    readers_.push_back({.unit = unit, .done = std::move(after)});
  } else {
    buffers_.Release(unit, {.data = held.data, .free_after = std::move(after)});
  }
  held = {};
}

void DeviceSource::Run() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || closing_ || (!fetches_.empty() && error_.ok());
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
    } else if (const absl::Status status = CarryNext(); !status.ok()) {
      absl::MutexLock lock(&mutex_);
      error_ = error_.ok() ? status : error_;
    }
  }
}

absl::Status DeviceSource::CarryNext() {
  SHOAL_RETURN_IF_ERROR(FreeBuffer());
  Fetch fetch;
  {
    absl::MutexLock lock(&mutex_);
    fetch = fetches_.front();
    fetches_.pop_front();
    getting_ = !fetch.prefetched;
  }
  const absl::StatusOr<client::ParameterClient::View> view = env_.client->Get(fetch.unit);
  if (fetch.prefetched) {
    env_.client->Release(fetch.unit);  // the prefetch's use; Get took its own
  } else {
    absl::MutexLock lock(&mutex_);
    getting_ = false;
  }
  SHOAL_RETURN_IF_ERROR(view.status());
  if (options_.landed) {
    Land(fetch.unit, *view);
    return absl::OkStatus();
  }
  const absl::Status started = StartCopy(fetch.unit, *view);
  if (!started.ok()) {
    env_.client->Release(fetch.unit);
  }
  return started;
}

void DeviceSource::Land(int unit, const client::ParameterClient::View& view) {
  absl::MutexLock lock(&mutex_);
  at(unit).data = static_cast<std::byte*>(const_cast<void*>(view.data));
  at(unit).last_server = view.last_server;
}

absl::Status DeviceSource::StartCopy(int unit, const client::ParameterClient::View& view) {
  SHOAL_ASSIGN_OR_RETURN(const DeviceBuffer buffer, AwaitBuffer(unit));
  if (buffer.free_after != nullptr) {
    inward_->WaitFor(*buffer.free_after);
  }
  inward_->Copy(buffer.data, view.data, view.count * SizeOf(options_.compute_type));
  const std::shared_ptr<Event> copied = inward_->Record();
  absl::MutexLock lock(&mutex_);
  readers_.push_back({.unit = unit, .done = copied});
  at(unit).data = buffer.data;
  at(unit).copied = copied;
  at(unit).last_server = view.last_server;
  return absl::OkStatus();
}

// Blocks until the client has a buffer for the next fetch: readers may hold all of them. Without
// readers there is one, since a step never holds and fetches more at a time than there are.
absl::Status DeviceSource::FreeBuffer() {
  FinishReaders();
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      Prefetch();
      if (fetches_.front().prefetched || readers_.empty()) {
        return absl::OkStatus();
      }
    }
    SHOAL_RETURN_IF_ERROR(AwaitOldestReader());
  }
}

void DeviceSource::Prefetch() {
  for (Fetch& fetch : fetches_) {
    if (fetch.prefetched) {
      continue;
    }
    // Fetches after one that waits must wait too, or they would take its buffer.
    if (getting_ || IsLeavingClient(fetch.unit) || !env_.client->Prefetch(fetch.unit)) {
      return;
    }
    fetch.prefetched = true;
  }
}

bool DeviceSource::IsLeavingClient(int unit) const {
  return std::ranges::find(readers_, unit, &Reader::unit) != readers_.end();
}

absl::StatusOr<DeviceBuffer> DeviceSource::AwaitBuffer(int unit) {
  absl::MutexLock lock(&mutex_);
  std::optional<DeviceBuffer> buffer;
  const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!closing_ && error_.ok()) {
      buffer = buffers_.Acquire(unit);
    }
    return buffer.has_value() || closing_ || !error_.ok();
  };
  const bool in_time = AwaitFor(&mutex_, absl::Condition(&there), options_.timeout);
  if (buffer.has_value()) {
    return *std::move(buffer);
  }
  SHOAL_RETURN_IF_ERROR(error_);
  if (in_time) {
    return Cancelled("get {}: the step ended", NameOf(unit));
  }
  return ResourceExhausted("get {}: all buffers of its size on the device are in use for {}",
                           NameOf(unit), absl::FormatDuration(options_.timeout));
}

absl::Status DeviceSource::AwaitOldestReader() {
  Reader reader;
  {
    absl::MutexLock lock(&mutex_);
    reader = readers_.front();
  }
  if (!reader.done->WaitDone(options_.timeout)) {
    return DeadlineExceeded("get {}: the {} the device is not done within {}", NameOf(reader.unit),
                            options_.landed ? "use by" : "copy to",
                            absl::FormatDuration(options_.timeout));
  }
  absl::Status status = Annotate(reader.done->Wait(), "get " + NameOf(reader.unit));
  env_.client->Release(reader.unit);
  absl::MutexLock lock(&mutex_);
  readers_.pop_front();
  return status;
}

void DeviceSource::FinishReaders() {
  while (true) {
    Reader reader;
    {
      absl::MutexLock lock(&mutex_);
      if (readers_.empty()) {
        return;
      }
      reader = readers_.front();
    }
    if (!reader.done->WaitDone(absl::ZeroDuration())) {
      return;
    }
    if (const absl::Status status = AwaitOldestReader(); !status.ok()) {
      absl::MutexLock lock(&mutex_);
      error_ = error_.ok() ? status : error_;
    }
  }
}

// Whether the next step finds the unit's copy on the device. The client keeps what has landed.
bool DeviceSource::Stays(int unit) const {
  return options_.uses.keep_for_step && !options_.landed && error_.ok() &&
         env_.units[static_cast<size_t>(unit)].frozen;
}

// Of the step, or left by a failed attempt.
void DeviceSource::LetGoOfRest() {
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
    if (at(unit).data != nullptr && Stays(unit)) {
      at(unit).uses = 0;
      continue;
    }
    if (at(unit).data != nullptr) {
      LetGo(unit, ending_);
    }
    at(unit) = {};
  }
}

void DeviceSource::Close() {
  std::deque<Fetch> dropped;
  bool reading = false;
  {
    absl::MutexLock lock(&mutex_);
    dropped.swap(fetches_);
    LetGoOfRest();
    reading = !readers_.empty();
  }
  for (const Fetch& fetch : dropped) {
    if (fetch.prefetched) {
      env_.client->Release(fetch.unit);
    }
  }
  while (reading) {
    const absl::Status status = AwaitOldestReader();
    absl::MutexLock lock(&mutex_);
    if (absl::IsDeadlineExceeded(status)) {
      lasting_ = lasting_.ok() ? status : lasting_;
      readers_.clear();  // the client's buffers stay in use
    }
    error_ = error_.ok() ? status : error_;
    reading = !readers_.empty();
  }
  absl::MutexLock lock(&mutex_);
  LetGoOfRest();        // where a copy has failed
  if (lasting_.ok()) {  // a failure was reported; the next attempt starts clean
    inward_->Synchronize().IgnoreError();
    buffers_.FreeAfter(ending_);
  }
  closing_ = false;
}

}  // namespace shoal::worker
