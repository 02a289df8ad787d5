// The queues through which a schedule's messages go from stage to stage, and how much of them is
// under way at once: what the runtime makes its buffers by. Pure.
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
  // Messages that the sender holds until they are received, the one it is making included: few, and
  // still as many as keep the sender from waiting for a receiver that is somewhat behind.
  int send_buffers = 0;

  bool operator==(const MessageQueue&) const = default;
};

// Where the schedule makes progress with it, no queue has more send buffers than this.
inline constexpr int kUsualSendBuffers = 8;

// Messages that a stage has on its device at once, so that one is on its way while another is made
// or used. Where messages lie in memory of the host, out of the device's reach: each way. Where
// they go from device to device: in send buffers of each queue, for the device has less memory.
inline constexpr int kDeviceMessages = 2;

// In order of (from, to, gradients). Takes a schedule that passes CheckSchedule. Senders that wait
// for a free buffer before they begin the action whose result it is for still all come to the end:
// a schedule that would not with `send_buffers` of them for each queue gets more.
std::vector<MessageQueue> MessageQueues(const Schedule& schedule,
                                        int send_buffers = kUsualSendBuffers);

// The stages that exchange messages with `stage`, in order.
std::vector<int> Neighbours(const ScheduleShape& shape, int stage);

// Whether all stages come to the end of their lists where every sender of a message waits, before
// it makes it, until fewer than `send_buffers` of the queue have no receive posted. Takes a
// schedule that passes CheckStages and CheckMessages.
bool ProgressesWith(const Schedule& schedule, int send_buffers);

}  // namespace shoal::plan
