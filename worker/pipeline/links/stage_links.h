// How messages go between the stages of a pipeline: the seam between the runtime, which executes a
// stage's list, and what carries activations and gradients to its neighbours. Within one process
// (in_process_links.h) or over the transports (transport_links.h), and from a device's memory
// (AttachedLinks).
//
// The messages of a step go through queues, one for each pair of stages, direction and kind
// (core/plan/schedule/schedule_queues.h). The receiver posts its receives, each by its name, in the
// order in which the messages of the queue are sent; a message goes once it is sent and its receive
// is posted. Sending and posting do not wait. The sender writes a message into room of the links,
// of which there is as much as the schedule needs to go on, and waits only if a receiver is far
// behind.
//
// Calls of each step:
// 1. BeginStep.
// 2. For each message to send: Reserve, then Send. For each to receive: Post, then Await
//    (repeatedly, if need be), then Consumed.
// 3. EndStep when all of them are through.
//
// A step that fails does not reach EndStep: it ends with Close, and closed links stay closed: their
// maker makes new ones for the next attempt.
//
// Threads: one thread makes the calls, but Send, Post and Consumed may come from another than the
// rest, in the order of the step, and Close and status from any; Close ends waits. Except for links
// of a device (AttachedLinks), calls about different queues may come from different threads.
//
// Ownership: memory returned by Reserve and Await belongs to the links, until Send and Consumed.
//
// Failure: a wait that exceeds its timeout is DeadlineExceeded, a lost neighbour is Unavailable and
// named, an unexpected message is DataLoss; after Close all calls return its status.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/plan/schedule/schedule_queues.h"

namespace shoal::worker {

// A message, named as its receiver sees it.
struct StageMessage {
  int peer = 0;           // the stage at the other end
  bool gradient = false;  // of the chunk's output; else the chunk's input
  int chunk = 0;          // the receiver's
  int microbatch = 0;

  auto operator<=>(const StageMessage&) const = default;
};

// "the activation of chunk 0 microbatch 3", "the gradient of ..."
std::string NameOf(const StageMessage& message);

struct StepMessages {
  int64_t step = 0;
  int64_t attempt = 0;
  std::span<const plan::MessageQueue> queues;  // of the whole schedule
  std::span<const int64_t> bytes;              // of a message, by microbatch
};

class StageLinks {
 public:
  virtual ~StageLinks() = default;

  // ResourceExhausted if the links have too little memory for such messages.
  virtual absl::Status BeginStep(const StepMessages& step) = 0;
  // Returns when everything sent has arrived, even if a peer has closed.
  virtual absl::Status EndStep(absl::Duration timeout) = 0;

  // Returns room for this stage's next message.
  virtual absl::StatusOr<std::byte*> Reserve(const StageMessage& message,
                                             absl::Duration timeout) = 0;
  virtual absl::Status Send(const StageMessage& message) = 0;

  virtual absl::Status Post(const StageMessage& message) = 0;
  virtual absl::StatusOr<const std::byte*> Await(const StageMessage& message,
                                                 absl::Duration timeout) = 0;
  virtual absl::Status Consumed(const StageMessage& message) = 0;

  // Whether messages to and from that stage lie in memory of the device that makes and uses them;
  // else in host memory. For links to which a device is attached (AttachedLinks).
  virtual bool OnDevice(int /*peer*/) const { return false; }

  // `why` must not be OK. The first call counts. Neighbours learn of it.
  virtual void Close(const absl::Status& why) = 0;
  // What closed them, Close or a neighbour; OK while they are open.
  virtual absl::Status status() const = 0;
};

// Links for messages in memory of a device, layered over other links that reach the neighbours. A
// stage's runner owns one, attaches it to the links of each step, and uses it instead. The
// underlying links carry copies of the messages (device_links.h), or only control messages about
// them (communicator_links.h).
class AttachedLinks : public StageLinks {
 public:
  // Attaches to the links of the next step. `host` must stay valid until EndStep has returned or,
  // after a failure, Abandon.
  virtual void Attach(StageLinks& host) = 0;
  // Call when the step has failed. Returns when nothing touches messages any more, except work of
  // the compute stream, and when that work waits for no other stage.
  virtual void Abandon(const absl::Status& why) = 0;
  // Call when no step follows: releases what was kept from step to step with the neighbours.
  virtual void Disconnect() {}
};

}  // namespace shoal::worker
