// Links between stages for a device whose memory the host cannot reach: over links whose messages
// lie in host memory, it copies each to the device before it is used and back once it is made. The
// walk of a stage neither waits for these copies nor knows of them. Messages that lie on the device
// already (StageLinks::OnDevice) are made and used there, without a copy.
//
// Copies run on two streams, one for each direction, ordered by events: a message is copied out
// when the compute stream has made it, and the compute stream waits for one that is copied in. Only
// then may the underlying links be told that the message goes, or that its memory is free: a thread
// tells them, in the order of the calls here. Device memory is two messages in each direction, more
// if the stage makes several before it sends one.
//
// Otherwise as in AttachedLinks and StageLinks. The underlying links see Send, Post and Consumed
// from one thread and the other calls from another. Pageable host memory works too, but is not
// copied concurrently with the compute.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/backend/backend.h"
#include "worker/pipeline/links/stage_links.h"

namespace shoal::worker {

class DeviceLinks final : public AttachedLinks {
 public:
  // Messages are made and used on `compute`.
  DeviceLinks(Device& device, Stream& compute);
  ~DeviceLinks() override;

  void Attach(StageLinks& host) override;
  void Abandon(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status BeginStep(const StepMessages& step) override;
  absl::Status EndStep(absl::Duration timeout) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::byte*> Reserve(const StageMessage& message, absl::Duration timeout) override;
  absl::Status Send(const StageMessage& message) override;
  absl::Status Post(const StageMessage& message) override;
  absl::StatusOr<const std::byte*> Await(const StageMessage& message,
                                         absl::Duration timeout) override;
  absl::Status Consumed(const StageMessage& message) override;
  void Close(const absl::Status& why) override { host_->Close(why); }
  absl::Status status() const override { return host_->status(); }

 private:
  // Device memory for a message.
  struct MessageBuffer {
    Buffer memory;
    std::unique_ptr<Event> free;  // what must be done before its next use; null: nothing
  };
  struct MessageBuffers {
    std::deque<MessageBuffer> spare;  // the last entry is the one used last
    int count = 0;                    // including those in use
  };
  // On its way from or to the host.
  struct Made {
    MessageBuffer buffer;
    std::byte* host = nullptr;
  };
  struct Used {
    MessageBuffer buffer;
    std::unique_ptr<Event> copied;
  };
  // What the thread tells the links.
  struct Notice {
    enum class Kind : uint8_t { kSend, kPost, kConsumed };
    Kind kind = Kind::kPost;
    StageMessage message;
    std::unique_ptr<Event> after;  // null: at once
  };

  absl::StatusOr<MessageBuffer> TakeBuffer(MessageBuffers& buffers);
  int64_t BytesOf(const StageMessage& message) const {
    return bytes_[static_cast<size_t>(message.microbatch)];
  }
  absl::Status Put(Notice notice) ABSL_LOCKS_EXCLUDED(mutex_);
  void RunThread() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Tell(const Notice& notice) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status failure() const ABSL_LOCKS_EXCLUDED(mutex_);

  Device& device_;
  Stream& compute_;
  const std::unique_ptr<Stream> outgoing_;
  const std::unique_ptr<Stream> incoming_;
  StageLinks* host_ = nullptr;
  std::vector<int64_t> bytes_;  // of a message, by microbatch
  int64_t message_bytes_ = 0;
  MessageBuffers outgoing_buffers_;
  MessageBuffers incoming_buffers_;
  std::map<StageMessage, Made> made_;
  std::map<StageMessage, Used> used_;

  mutable absl::Mutex mutex_;
  std::deque<Notice> notices_ ABSL_GUARDED_BY(mutex_);
  bool telling_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // of the step
  std::thread thread_;
};

}  // namespace shoal::worker
