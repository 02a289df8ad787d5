#include "worker/pipeline/testing/transport_pipeline.h"

#include <algorithm>

#include "core/base/status.h"
#include "core/plan/schedule/schedule_queues.h"
#include "worker/pipeline/testing/sharing_device.h"

namespace shoal::worker {
namespace {

LinkCapacity Larger(const LinkCapacity& a, const LinkCapacity& b) {
  return {.bytes = std::max(a.bytes, b.bytes), .pieces = std::max(a.pieces, b.pieces)};
}

}  // namespace

TransportPipeline::TransportPipeline(int stages, const MakeTransport& make, bool on_devices)
    : device_(std::make_unique<SharingDevice>()),
      host_(device_->NewHostMemory(0)),
      on_devices_(on_devices) {
  for (int stage = 0; stage < stages; ++stage) {
    transports_.push_back(make(stage));
  }
}

absl::Status TransportPipeline::Connect(const plan::Schedule& schedule, int64_t longest_message) {
  links_.clear();
  const std::vector<plan::MessageQueue> queues = MessageQueues(schedule);
  for (int stage = 0; stage < schedule.shape.stages; ++stage) {
    TransportLinksOptions options = {.stage = stage,
                                     .transport = transports_[static_cast<size_t>(stage)].get(),
                                     .device = on_devices_ ? device_.get() : nullptr,
                                     .lent = &lent_,
                                     .host = stage % 2 == 1 ? host_.get() : nullptr,
                                     .poison = true};
    for (const int peer : plan::Neighbours(schedule.shape, stage)) {
      options.slots =
          Larger(options.slots, LayOut(queues, peer, stage, longest_message).slot_capacity());
      options.buffers =
          Larger(options.buffers, LayOut(queues, stage, peer, longest_message).buffer_capacity());
    }
    SHOAL_ASSIGN_OR_RETURN(auto links, TransportLinks::Create(options));
    links_.push_back(std::move(links));
  }
  for (int stage = 0; stage < schedule.shape.stages; ++stage) {
    for (const int peer : plan::Neighbours(schedule.shape, stage)) {
      if (peer > stage) {
        SHOAL_ASSIGN_OR_RETURN(const std::string offer, links(stage).Offer(peer));
        SHOAL_ASSIGN_OR_RETURN(const std::string answer, links(peer).Accept(stage, offer));
        SHOAL_RETURN_IF_ERROR(links(stage).Complete(peer, answer));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace shoal::worker
