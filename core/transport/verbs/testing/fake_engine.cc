#include "core/transport/verbs/testing/fake_engine.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/transport/verbs/topology/gid_kind.h"

namespace shoal::transport {
namespace {

// Releases the lock after this many actions.
constexpr int kActionsAtOnce = 8;

void Count(const UniqueFd& fd) {
  const uint64_t one = 1;
  SHOAL_CHECK(write(fd.get(), &one, sizeof one) == sizeof one);
}

}  // namespace

void FakeEngine::Run() {
  mutex.Lock();
  for (int actions = 0; !stopping_;) {
    if (!Step()) {
      work_.WaitWithTimeout(&mutex, std::min(next_due_ - Now(), absl::Seconds(1)));
    } else if (++actions % kActionsAtOnce == 0) {
      mutex.Unlock();
      std::this_thread::yield();
      mutex.Lock();
    }
  }
  mutex.Unlock();
}

void FakeEngine::Stop() {
  absl::MutexLock lock(&mutex);
  stopping_ = true;
  work_.SignalAll();
}

bool FakeEngine::Step() {
  const absl::Time now = Now();
  if (now >= next_due_) {
    WakeDue(now);
  }
  if (RaiseLateEvents(now) || StepRunnable()) {
    return true;
  }
  if (manual && next_due_ != absl::InfiniteFuture()) {
    manual_now_ = std::max(manual_now_, next_due_);
    return true;
  }
  return false;
}

bool FakeEngine::StepRunnable() {
  using Action = bool (FakeEngine::*)(FakeQp&);
  constexpr std::array<Action, 5> kActions = {&FakeEngine::Advance, &FakeEngine::MoveRead,
                                              &FakeEngine::Complete, &FakeEngine::Deliver,
                                              &FakeEngine::Flush};
  while (!runnable_.empty()) {
    const size_t index = random_.Below(runnable_.size());
    FakeQp& qp = *runnable_[index];
    const size_t first = random_.Below(kActions.size());
    for (size_t i = 0; i < kActions.size() && !qp.device->removed; ++i) {
      if ((this->*kActions[(first + i) % kActions.size()])(qp)) {
        return true;
      }
    }
    qp.runnable = false;
    runnable_[index] = runnable_.back();
    runnable_.pop_back();
  }
  return false;
}

absl::Time FakeEngine::Now() { return manual ? manual_now_ : RealClock().Now(); }

void FakeEngine::WakeAt(absl::Time time) { next_due_ = std::min(next_due_, time); }

void FakeEngine::WakeDue(absl::Time now) {
  next_due_ = absl::InfiniteFuture();
  for (const LateEvent& event : late_events_) {
    WakeAt(event.at);
  }
  const auto consider = [&](FakeQp& qp, absl::Time time) {
    if (time <= now) {
      Wake(qp);
    } else {
      WakeAt(time);
    }
  };
  for (const auto& [number, qp] : queue_pairs_) {
    if (!qp->sends.empty()) {
      consider(*qp, qp->blocked_until);
    }
    if (!qp->arrivals.empty() && !receives_held) {
      consider(*qp, qp->arrivals.front().not_before);
    }
  }
}

void FakeEngine::Wake(FakeQp& qp) {
  if (!qp.runnable) {
    qp.runnable = true;
    runnable_.push_back(&qp);
    work_.Signal();
  }
}

void FakeEngine::WakeAll() {
  for (const auto& [number, qp] : queue_pairs_) {
    Wake(*qp);
  }
  work_.Signal();
}

FakeDeviceState* FakeEngine::AddDevice(int host, FakeDevice device) {
  auto state = std::make_unique<FakeDeviceState>();
  state->description = std::move(device);
  state->host = host;
  state->listed.node_type = IBV_NODE_CA;
  state->listed.transport_type = IBV_TRANSPORT_IB;
  std::strncpy(state->listed.name, state->description.name.c_str(), IBV_SYSFS_NAME_MAX - 1);
  devices_.push_back(std::move(state));
  return devices_.back().get();
}

std::vector<FakeDeviceState*> FakeEngine::Devices(const std::string& name) {
  std::vector<FakeDeviceState*> found;
  for (const auto& device : devices_) {
    if (device->description.name == name) {
      found.push_back(device.get());
    }
  }
  return found;
}

std::optional<FakePortRef> FakeEngine::Route(const FakePortRef& from, const ibv_ah_attr& path) {
  Gid wanted;
  std::memcpy(wanted.data(), path.grh.dgid.raw, wanted.size());
  const LinkLayer layer = from.get().link_layer;
  for (const auto& device : devices_) {
    for (int number = 1; number <= std::ssize(device->description.ports); ++number) {
      const FakePortRef port{device.get(), number};
      if (port.get().link_layer != layer) {
        continue;
      }
      if (layer == LinkLayer::kInfiniBand) {
        if (port.get().lid == path.dlid) {
          return port;
        }
        continue;
      }
      // Every host has its own loopback.
      const bool near = device->host == from.device->host;
      for (const GidDescription& gid : port.get().gids) {
        if (gid.gid == wanted && (near || KindOf(wanted) != GidKind::kLoopback)) {
          return port;
        }
      }
    }
  }
  return std::nullopt;
}

void FakeEngine::RaiseAsync(FakeDeviceState& device, ibv_async_event event) {
  for (FakeContext* context : device.contexts) {
    const bool of_queue_pair =
        event.event_type == IBV_EVENT_QP_ACCESS_ERR || event.event_type == IBV_EVENT_QP_REQ_ERR;
    if (!of_queue_pair || event.element.qp->context == context) {
      context->events.push_back(event);
      Count(context->events_fd);
    }
  }
}

bool FakeEngine::RaiseLateEvents(absl::Time now) {
  for (size_t i = 0; i < late_events_.size(); ++i) {
    if (late_events_[i].at <= now) {
      FakeCq* cq = late_events_[i].cq;
      late_events_.erase(late_events_.begin() + static_cast<std::ptrdiff_t>(i));
      RaiseEvent(*cq);
      return true;
    }
  }
  return false;
}

void FakeEngine::RaiseEvent(FakeCq& cq) {
  auto* channel = static_cast<FakeChannel*>(cq.channel);
  channel->events.push_back(&cq);
  Count(channel->events_fd);
}

void FakeEngine::WithdrawEvents(FakeCq& cq) {
  std::erase_if(late_events_, [&](const LateEvent& event) { return event.cq == &cq; });
  if (cq.channel != nullptr) {
    std::erase(static_cast<FakeChannel*>(cq.channel)->events, &cq);
  }
}

void FakeEngine::PushCompletion(ibv_cq* queue, const FakeCompletion& completion) {
  auto& cq = *static_cast<FakeCq*>(queue);
  // A completion queue must have room for everything posted: hardware stops if it is overrun.
  SHOAL_CHECK(std::ssize(cq.completions) < cq.cqe);
  cq.completions.push_back(completion);
  if (!cq.armed || cq.channel == nullptr) {
    return;
  }
  cq.armed = false;
  const absl::Duration delay = faults.OnEvent();
  if (delay == absl::ZeroDuration()) {
    RaiseEvent(cq);
  } else if (delay != absl::InfiniteDuration()) {
    late_events_.push_back({Now() + delay, &cq});
    WakeAt(late_events_.back().at);
  }
}

}  // namespace shoal::transport
