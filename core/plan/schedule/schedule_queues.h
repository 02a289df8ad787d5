// The queues through which a schedule's messages go from stage to stage, and how many are in flight
// at once: the runtime sizes its buffers by it. Pure.
#pragma once

#include <vector>

#include "core/plan/schedule/schedule.h"

namespace shoal::plan {

// Between two stages the activations form one queue for each direction, and the gradients another.
struct MessageQueue {
  int from = 0;
  int to = 0;
  bool gradients = false;
  int messages = 0;
  // The most receives that the receiver has posted and not yet used, by the order of its list.
  int slots = 0;
  // Messages that the sender holds until they are received, including the one it is making: few,
  // yet enough that the sender does not wait for a receiver that is slightly behind.
  int send_buffers = 0;

  bool operator==(const MessageQueue&) const = default;
};

// No queue has more send buffers than this if the schedule makes progress with them.
inline constexpr int kUsualSendBuffers = 8;

// Messages that a stage has on its device at once, so that one is in flight while another is made
// or used: in each direction if messages lie in host memory, out of the device's reach; in send
// buffers of each queue if they go from device to device, as the device has less memory.
inline constexpr int kDeviceMessages = 2;

// Sorted by (from, to, gradients). The schedule must pass CheckSchedule. Senders wait for a free
// buffer before they begin the action whose result it will hold; a schedule that would not complete
// with `send_buffers` for each queue gets more.
std::vector<MessageQueue> MessageQueues(const Schedule& schedule,
                                        int send_buffers = kUsualSendBuffers);

inline bool IsGradientMessage(Operation operation) {
  return operation == Operation::kSendGradient || operation == Operation::kReceiveGradient;
}

// Return the message that a compute action makes or uses, as an action of its stage; if there is
// none, an operation that is no message.
Action MadeBy(const ScheduleShape& shape, int stage, const Action& action);
Action UsedBy(const ScheduleShape& shape, int stage, const Action& action);

// Returns the stages that exchange messages with `stage`, in order.
std::vector<int> Neighbours(const ScheduleShape& shape, int stage);

// Whether all stages reach the end of their lists if every sender of a message waits, before it
// makes it, until fewer than `send_buffers` of the queue have no receive posted. The schedule must
// pass CheckStages and CheckMessages.
bool ProgressesWith(const Schedule& schedule, int send_buffers);

}  // namespace shoal::plan
