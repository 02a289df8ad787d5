#include "core/transport/verbs/service.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

// How often handshakes are checked: this often at first, less while nothing happens. They are rare
// and short.
constexpr absl::Duration kFirstLook = absl::Microseconds(100);
constexpr absl::Duration kSlowestLook = absl::Milliseconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsService>> VerbsService::Start(
    std::vector<std::shared_ptr<VerbsDevice>> devices,
    std::shared_ptr<QueuePairQuarantine> quarantine, absl::Duration keep_alive) {
  SHOAL_ASSIGN_OR_RETURN(std::shared_ptr<Nudge> nudge, Nudge::Create());
  for (const auto& device : devices) {
    const int fd = device->context()->async_fd;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  const absl::Duration tick = std::max(keep_alive / kTicksPerKeepAlive, absl::Milliseconds(1));
  std::unique_ptr<VerbsService> service(
      new VerbsService(std::move(devices), std::move(quarantine), tick, std::move(nudge)));
  service->thread_ = std::thread([raw = service.get()] { raw->Run(); });
  return service;
}

VerbsService::VerbsService(std::vector<std::shared_ptr<VerbsDevice>> devices,
                           std::shared_ptr<QueuePairQuarantine> quarantine, absl::Duration tick,
                           std::shared_ptr<Nudge> nudge)
    : devices_(std::move(devices)),
      quarantine_(std::move(quarantine)),
      tick_(tick),
      nudge_(std::move(nudge)) {}

VerbsService::~VerbsService() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  nudge_->Now();
  thread_.join();
}

bool VerbsService::stopping() const {
  absl::MutexLock lock(&mutex_);
  return stopping_;
}

void VerbsService::Watch(std::weak_ptr<VerbsQueueCore> queue) {
  absl::MutexLock lock(&mutex_);
  std::erase_if(queues_, [](const auto& known) { return known.expired(); });
  queues_.push_back(std::move(queue));
}

void VerbsService::Expect(std::shared_ptr<VerbsConnectionState> connection,
                          absl::Duration timeout) {
  {
    absl::MutexLock lock(&mutex_);
    expected_.push_back({std::move(connection), RealClock().Now() + timeout});
  }
  nudge_->Now();
}

void VerbsService::Run() {
  absl::Time next_tick = RealClock().Now() + tick_;
  absl::Duration look = kFirstLook;
  while (!stopping()) {
    bool busy = LookAtHandshakes();
    for (const auto& queue : Queues()) {
      busy = queue->Help() || busy;
    }
    const absl::Duration left = std::max(next_tick - RealClock().Now(), absl::ZeroDuration());
    Sleep(busy ? std::min(look, left) : left);
    look = busy ? std::min(2 * look, kSlowestLook) : kFirstLook;
    for (const auto& device : devices_) {
      HearDevice(*device);
    }
    if (const absl::Time now = RealClock().Now(); now >= next_tick) {
      for (const auto& queue : Queues()) {
        queue->Tick();
      }
      quarantine_->Release(now);
      next_tick = now + tick_;
    }
  }
}

void VerbsService::Sleep(absl::Duration time) {
  std::vector<pollfd> watched = {{.fd = nudge_->fd(), .events = POLLIN, .revents = 0}};
  for (const auto& device : devices_) {
    watched.push_back({.fd = device->context()->async_fd, .events = POLLIN, .revents = 0});
  }
  const timespec spec = absl::ToTimespec(time);
  ppoll(watched.data(), watched.size(), &spec, nullptr);
  nudge_->Clear();
}

bool VerbsService::LookAtHandshakes() {
  std::vector<Expected> expected;
  {
    absl::MutexLock lock(&mutex_);
    expected = expected_;
  }
  for (const Expected& handshake : expected) {
    VerbsConnectionState& connection = *handshake.connection;
    connection.queue()->Drive(connection);
    if (!connection.open() && !connection.ended() && RealClock().Now() >= handshake.deadline) {
      connection.queue()->End(
          connection, DeadlineExceeded("{}: the peer did not complete the handshake in time",
                                       connection.peer()));
    }
    if (connection.ended() && absl::IsUnauthenticated(connection.end_status())) {
      refusals_.Refused(connection.end_status());
    }
  }
  expected.clear();  // may hold the last reference to a connection: not under the lock
  std::vector<Expected> over;
  absl::MutexLock lock(&mutex_);
  const auto still =
      std::stable_partition(expected_.begin(), expected_.end(), [](const Expected& handshake) {
        return !handshake.connection->open() && !handshake.connection->ended();
      });
  over.assign(std::make_move_iterator(still), std::make_move_iterator(expected_.end()));
  expected_.erase(still, expected_.end());
  return !expected_.empty();
}

std::vector<std::shared_ptr<VerbsQueueCore>> VerbsService::Queues() {
  std::vector<std::shared_ptr<VerbsQueueCore>> queues;
  absl::MutexLock lock(&mutex_);
  for (const auto& known : queues_) {
    if (auto queue = known.lock()) {
      queues.push_back(std::move(queue));
    }
  }
  return queues;
}

void VerbsService::HearDevice(const VerbsDevice& device) {
  ibv_async_event event = {};
  while (device.api().GetAsyncEvent(device.context(), &event) == 0) {
    const ibv_event_type type = event.event_type;
    const bool of_queue_pair = type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
                               type == IBV_EVENT_QP_ACCESS_ERR;
    const uint32_t queue_pair =
        of_queue_pair ? event.element.qp->qp_num : VerbsConnectionState::kAnyQueuePair;
    const int port = event.element.port_num;
    // Destroying a queue pair waits until its events are acknowledged, so acknowledge before taking
    // any lock.
    device.api().AckAsyncEvent(&event);
    if (of_queue_pair) {
      EndAll(device.context(), queue_pair,
             Unavailable("{}: {}", device.name(), ibv_event_type_str(type)));
    } else if (type == IBV_EVENT_DEVICE_FATAL || type == IBV_EVENT_CQ_ERR) {
      LogError("RDMA device {} failed or was removed ({}); its connections end", device.name(),
               ibv_event_type_str(type));
      EndAll(device.context(), queue_pair,
             Unavailable("RDMA device {} failed or was removed", device.name()));
    } else if (type == IBV_EVENT_PORT_ERR) {
      // Devices retry as configured; after that its connections end by themselves.
      LogWarning("RDMA device {} port {}: the link is down", device.name(), port);
    } else if (type == IBV_EVENT_PORT_ACTIVE) {
      LogInfo("RDMA device {} port {}: the link is up", device.name(), port);
    }
  }
}

void VerbsService::EndAll(const ibv_context* context, uint32_t queue_pair,
                          const absl::Status& why) {
  for (const auto& queue : Queues()) {
    for (const auto& connection : queue->connections()) {
      if (connection->Uses(context, queue_pair)) {
        queue->End(*connection, Annotate(why, connection->peer()));
      }
    }
  }
}

}  // namespace shoal::transport
