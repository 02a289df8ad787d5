#include "core/transport/verbs/queue_pair.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

constexpr uint8_t kHopLimit = 64;

ibv_mtu MtuOf(int bytes) {
  if (bytes >= 4096) return IBV_MTU_4096;
  if (bytes >= 2048) return IBV_MTU_2048;
  if (bytes >= 1024) return IBV_MTU_1024;
  return bytes >= 512 ? IBV_MTU_512 : IBV_MTU_256;
}

// 0 means "whatever both can do".
int ReadsInFlight(const VerbsOptions& options, int ours, int theirs) {
  int reads = std::min(ours, theirs);
  if (options.reads_in_flight > 0) {
    reads = std::min(reads, options.reads_in_flight);
  }
  return std::clamp(reads, 1, 255);
}

}  // namespace

absl::StatusOr<std::shared_ptr<CompletionChannel>> CompletionChannel::Create(
    std::shared_ptr<VerbsDevice> device) {
  ibv_comp_channel* channel = device->api().CreateCompChannel(device->context());
  if (channel == nullptr) {
    return VerbsError(errno, fmt::format("a completion channel on {}", device->name()));
  }
  fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
  return std::shared_ptr<CompletionChannel>(new CompletionChannel(std::move(device), channel));
}

ibv_cq* CompletionChannel::TakeEvent() {
  ibv_cq* cq = nullptr;
  if (device_->api().GetCqEvent(channel_, &cq) != 0) {
    return nullptr;
  }
  device_->api().AckCqEvents(cq, 1);
  return cq;
}

absl::StatusOr<std::unique_ptr<QueuePair>> QueuePair::Create(
    std::shared_ptr<VerbsDevice> device, std::shared_ptr<CompletionChannel> channel,
    const QueueDepths& depths, int inline_bytes, std::shared_ptr<QueuePairQuarantine> quarantine) {
  std::unique_ptr<QueuePair> pair(
      new QueuePair(std::move(device), std::move(channel), std::move(quarantine)));
  const DeviceDescription& limits = pair->device_->description();
  const int completions = depths.sends + depths.receives;
  if (completions > limits.max_completions ||
      std::max(depths.sends, depths.receives) > limits.max_work_requests) {
    return InvalidArgument("{}: queues of {} and {} work requests; the device has {}", limits.name,
                           depths.sends, depths.receives, limits.max_work_requests);
  }
  VerbsApi& api = pair->api();
  pair->cq_ = api.CreateCq(pair->device_->context(), completions, nullptr, pair->channel_->get());
  if (pair->cq_ == nullptr) {
    return VerbsError(errno, fmt::format("a completion queue on {}", limits.name));
  }
  ibv_qp_init_attr attributes = {};
  attributes.send_cq = pair->cq_;
  attributes.recv_cq = pair->cq_;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap = {.max_send_wr = static_cast<uint32_t>(depths.sends),
                    .max_recv_wr = static_cast<uint32_t>(depths.receives),
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = static_cast<uint32_t>(inline_bytes)};
  pair->qp_ = api.CreateQp(pair->device_->pd(), &attributes);
  if (pair->qp_ == nullptr && inline_bytes > 0) {
    // Devices differ in what fits a work request: without inline data it is slower, but works
    // everywhere.
    attributes.cap.max_inline_data = 0;
    pair->qp_ = api.CreateQp(pair->device_->pd(), &attributes);
  }
  if (pair->qp_ == nullptr) {
    return VerbsError(errno, fmt::format("a queue pair on {}", limits.name));
  }
  pair->inline_bytes_ = static_cast<int>(attributes.cap.max_inline_data);
  return pair;
}

void QueuePair::Stop() {
  if (qp_ != nullptr) {
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_ERR;
    api().ModifyQp(qp_, &attributes, IBV_QP_STATE);
    if (!device_->IsSoftware()) {
      attributes.qp_state = IBV_QPS_RESET;
      api().ModifyQp(qp_, &attributes, IBV_QP_STATE);
    }
  }
}

void QueuePair::End() {
  if (cq_ == nullptr) {
    return;
  }
  Stop();
  QueuePairQuarantine::Ended ended = {device_, channel_, qp_, cq_, absl::InfiniteFuture()};
  if (device_->IsSoftware()) {
    QueuePairQuarantine::Destroy(ended);
  } else {
    quarantine_->Take(std::move(ended));
  }
  qp_ = nullptr;
  cq_ = nullptr;
}

absl::Status QueuePair::Initialize(const PortDescription& port, bool writable) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = 0;
  attributes.port_num = static_cast<uint8_t>(port.port);
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_READ | (writable ? IBV_ACCESS_REMOTE_WRITE : 0);
  const int error = api().ModifyQp(
      qp_, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return error == 0
             ? absl::OkStatus()
             : ErrnoToStatus(error, fmt::format("{}: preparing a queue pair", device_->name()));
}

absl::Status QueuePair::Connect(const PortDescription& port, int gid_index,
                                const QueuePairEnd& self, const QueuePairEnd& peer,
                                const VerbsOptions& options) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  int mtu = std::min(self.mtu_bytes, peer.mtu_bytes);
  if (options.mtu_bytes > 0) {
    mtu = std::min(mtu, options.mtu_bytes);
  }
  attributes.path_mtu = MtuOf(mtu);
  attributes.dest_qp_num = peer.number;
  attributes.rq_psn = peer.packet_sequence;
  attributes.max_dest_rd_atomic = static_cast<uint8_t>(std::clamp(self.reads_as_target, 1, 255));
  attributes.min_rnr_timer = options.rnr_timer;
  attributes.ah_attr.port_num = static_cast<uint8_t>(port.port);
  attributes.ah_attr.dlid = peer.lid;
  attributes.ah_attr.sl = options.service_level;
  // On Ethernet the GID is the address; on InfiniBand, within a subnet, the LID is.
  if (port.link_layer == LinkLayer::kEthernet) {
    attributes.ah_attr.is_global = 1;
    std::memcpy(&attributes.ah_attr.grh.dgid, peer.gid.data(), peer.gid.size());
    attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid_index);
    attributes.ah_attr.grh.hop_limit = kHopLimit;
    attributes.ah_attr.grh.traffic_class = options.traffic_class;
  }
  int error = api().ModifyQp(qp_, &attributes,
                             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error != 0) {
    return ErrnoToStatus(error, fmt::format("{}: a path from {} to {}", device_->name(),
                                            FormatGid(self.gid), FormatGid(peer.gid)));
  }
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = self.packet_sequence;
  attributes.timeout = options.ack_timeout;
  attributes.retry_cnt = options.retry_count;
  attributes.rnr_retry = options.rnr_retry;
  attributes.max_rd_atomic = static_cast<uint8_t>(
      ReadsInFlight(options, device_->description().max_reads_as_source, peer.reads_as_target));
  error = api().ModifyQp(qp_, &attributes,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  return error == 0 ? absl::OkStatus()
                    : ErrnoToStatus(
                          error, fmt::format("{}: readying a queue pair to send", device_->name()));
}

void QueuePairQuarantine::Take(Ended ended) {
  ended.until = RealClock().Now() + stay_;
  absl::MutexLock lock(&mutex_);
  ended_.push_back(std::move(ended));
  if (ended_.size() > kMost) {
    Destroy(ended_.front());
    ended_.pop_front();
  }
}

void QueuePairQuarantine::Release(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  while (!ended_.empty() && ended_.front().until <= now) {
    Destroy(ended_.front());
    ended_.pop_front();
  }
}

void QueuePairQuarantine::Destroy(const Ended& ended) {
  if (ended.qp != nullptr) {
    ended.device->api().DestroyQp(ended.qp);
  }
  ended.device->api().DestroyCq(ended.cq);
}

}  // namespace shoal::transport
