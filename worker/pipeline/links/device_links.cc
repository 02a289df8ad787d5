#include "worker/pipeline/links/device_links.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/threads/steady_await.h"

namespace shoal::worker {
DeviceLinks::DeviceLinks(Device& device, Stream& compute)
    : device_(device),
      compute_(compute),
      outgoing_(device.NewStream(StreamKind::kCopy)),
      incoming_(device.NewStream(StreamKind::kCopy)),
      thread_([this] { RunThread(); }) {}

DeviceLinks::~DeviceLinks() {
  Abandon(Cancelled("the stage goes"));
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void DeviceLinks::Attach(StageLinks& host) { host_ = &host; }

void DeviceLinks::Abandon(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    failure_.Update(why);
    notices_.clear();
    const auto quiet = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !telling_; };
    mutex_.Await(absl::Condition(&quiet));
  }
  outgoing_->Synchronize().IgnoreError();
  incoming_->Synchronize().IgnoreError();
}

absl::Status DeviceLinks::BeginStep(const StepMessages& step) {
  bool failed = false;  // the step before
  {
    absl::MutexLock lock(&mutex_);
    failed = !failure_.ok();
    failure_ = absl::OkStatus();
  }
  for (auto& [message, made] : made_) {
    outgoing_buffers_.spare.push_back(std::move(made.buffer));
  }
  made_.clear();
  for (auto& [message, used] : used_) {
    incoming_buffers_.spare.push_back(std::move(used.buffer));
  }
  used_.clear();
  if (failed) {
    // Copies have ended, and compute up to here will have. Waiting for the failed step's events
    // would fail too.
    for (MessageBuffers* buffers : {&outgoing_buffers_, &incoming_buffers_}) {
      for (MessageBuffer& buffer : buffers->spare) {
        buffer.free = compute_.Record();
      }
    }
  }
  bytes_.assign(step.bytes.begin(), step.bytes.end());
  const int64_t longest = bytes_.empty() ? 0 : std::ranges::max(bytes_);
  if (longest > message_bytes_) {
    outgoing_buffers_ = {};
    incoming_buffers_ = {};
    message_bytes_ = longest;
  }
  return host_->BeginStep(step);
}

absl::Status DeviceLinks::EndStep(absl::Duration timeout) {
  const absl::Time deadline = RealClock().Now() + timeout;
  {
    absl::MutexLock lock(&mutex_);
    const auto told = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return notices_.empty() && !telling_;
    };
    if (!AwaitUntil(&mutex_, absl::Condition(&told), deadline)) {
      return DeadlineExceeded("{} messages were not made, used or copied on the device within {}",
                              notices_.size() + 1, absl::FormatDuration(timeout));
    }
    SHOAL_RETURN_IF_ERROR(failure_);
  }
  return host_->EndStep(std::max(deadline - RealClock().Now(), absl::ZeroDuration()));
}

absl::StatusOr<DeviceLinks::MessageBuffer> DeviceLinks::TakeBuffer(MessageBuffers& buffers) {
  MessageBuffer buffer;
  if (buffers.spare.empty() || buffers.count < plan::kDeviceMessages) {
    SHOAL_ASSIGN_OR_RETURN(buffer.memory, device_.Allocate(message_bytes_));
    ++buffers.count;
    return buffer;
  }
  buffer = std::move(buffers.spare.front());
  buffers.spare.pop_front();
  return buffer;
}

absl::StatusOr<std::byte*> DeviceLinks::Reserve(const StageMessage& message,
                                                absl::Duration timeout) {
  SHOAL_RETURN_IF_ERROR(failure());
  SHOAL_ASSIGN_OR_RETURN(std::byte* const room, host_->Reserve(message, timeout));
  if (host_->OnDevice(message.peer)) {
    return room;
  }
  SHOAL_ASSIGN_OR_RETURN(MessageBuffer buffer, TakeBuffer(outgoing_buffers_));
  if (buffer.free != nullptr) {
    compute_.WaitFor(*buffer.free);
  }
  std::byte* const data = buffer.memory.data();
  made_[message] = {.buffer = std::move(buffer), .host = room};
  return data;
}

absl::Status DeviceLinks::Send(const StageMessage& message) {
  if (host_->OnDevice(message.peer)) {
    return Put({.kind = Notice::Kind::kSend, .message = message, .after = compute_.Record()});
  }
  auto found = made_.extract(message);
  SHOAL_CHECK(!found.empty());
  Made& made = found.mapped();
  outgoing_->WaitFor(*compute_.Record());
  outgoing_->Copy(made.host, made.buffer.memory.data(), BytesOf(message));
  made.buffer.free = outgoing_->Record();
  outgoing_buffers_.spare.push_back(std::move(made.buffer));
  return Put({.kind = Notice::Kind::kSend, .message = message, .after = outgoing_->Record()});
}

absl::Status DeviceLinks::Post(const StageMessage& message) {
  return Put({.kind = Notice::Kind::kPost, .message = message});
}

absl::StatusOr<const std::byte*> DeviceLinks::Await(const StageMessage& message,
                                                    absl::Duration timeout) {
  SHOAL_RETURN_IF_ERROR(failure());
  SHOAL_ASSIGN_OR_RETURN(const std::byte* const arrived, host_->Await(message, timeout));
  if (host_->OnDevice(message.peer)) {
    return arrived;
  }
  SHOAL_ASSIGN_OR_RETURN(MessageBuffer buffer, TakeBuffer(incoming_buffers_));
  if (buffer.free != nullptr) {
    incoming_->WaitFor(*buffer.free);
  }
  incoming_->Copy(buffer.memory.data(), arrived, BytesOf(message));
  std::unique_ptr<Event> copied = incoming_->Record();
  compute_.WaitFor(*copied);
  const std::byte* const data = buffer.memory.data();
  used_[message] = {.buffer = std::move(buffer), .copied = std::move(copied)};
  return data;
}

absl::Status DeviceLinks::Consumed(const StageMessage& message) {
  if (host_->OnDevice(message.peer)) {
    return Put({.kind = Notice::Kind::kConsumed, .message = message, .after = compute_.Record()});
  }
  auto found = used_.extract(message);
  SHOAL_CHECK(!found.empty());
  Used& used = found.mapped();
  used.buffer.free = compute_.Record();
  incoming_buffers_.spare.push_back(std::move(used.buffer));
  return Put(
      {.kind = Notice::Kind::kConsumed, .message = message, .after = std::move(used.copied)});
}

absl::Status DeviceLinks::Put(Notice notice) {
  absl::MutexLock lock(&mutex_);
  SHOAL_RETURN_IF_ERROR(failure_);
  notices_.push_back(std::move(notice));
  return absl::OkStatus();
}

absl::Status DeviceLinks::failure() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

void DeviceLinks::RunThread() {
  while (true) {
    Notice notice;
    {
      absl::MutexLock lock(&mutex_);
      telling_ = false;
      const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !notices_.empty();
      };
      mutex_.Await(absl::Condition(&has_work));
      if (notices_.empty()) {
        return;
      }
      notice = std::move(notices_.front());
      notices_.pop_front();
      telling_ = true;
    }
    if (const absl::Status told = Tell(notice); !told.ok()) {
      {
        absl::MutexLock lock(&mutex_);
        failure_.Update(told);
        notices_.clear();
      }
      host_->Close(told);  // fails those who wait for a message
    }
  }
}

absl::Status DeviceLinks::Tell(const Notice& notice) {
  if (notice.after != nullptr) {
    while (!notice.after->WaitDone(kLookAgain)) {
      SHOAL_RETURN_IF_ERROR(failure());
    }
    SHOAL_RETURN_IF_ERROR(notice.after->Wait());
  }
  switch (notice.kind) {
    case Notice::Kind::kSend:
      return host_->Send(notice.message);
    case Notice::Kind::kPost:
      return host_->Post(notice.message);
    case Notice::Kind::kConsumed:
      return host_->Consumed(notice.message);
  }
  return absl::OkStatus();
}

}  // namespace shoal::worker
