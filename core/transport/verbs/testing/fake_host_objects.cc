// Devices, memory and completion queues: creation, queries, destruction.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/check.h"
#include "core/transport/verbs/testing/fake_host.h"

namespace shoal::transport {
namespace {

UniqueFd EventCounter() {
  UniqueFd fd(eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC));
  SHOAL_CHECK(fd.valid());
  return fd;
}

FakeDeviceState& StateOf(ibv_context* context) {
  return *static_cast<FakeContext*>(context)->state;
}

template <typename Object>
Object* Failed(int error) {
  errno = error;
  return nullptr;
}

// Waits for a descriptor's next event, if it blocks. Returns an errno value.
int TakeOne(int fd) {
  uint64_t one = 0;
  return read(fd, &one, sizeof one) == sizeof one ? 0 : errno;
}

}  // namespace

int FakeHost::MayMake(ibv_context* context, FakeCall call) {
  return StateOf(context).removed ? EIO : engine_->faults.OnCall(call);
}

std::vector<std::string> FakeHost::DeviceNames() {
  absl::MutexLock lock(&engine_->mutex);
  std::vector<std::string> names;
  for (const FakeDeviceState* device : devices_) {
    if (!device->removed) {
      names.push_back(device->description.name);
    }
  }
  return names;
}

DeviceLocation FakeHost::Locate(const std::string& device) {
  absl::MutexLock lock(&engine_->mutex);
  for (const FakeDeviceState* candidate : devices_) {
    if (candidate->description.name == device) {
      return candidate->description.location;
    }
  }
  return {};
}

ibv_context* FakeHost::OpenDevice(const std::string& device) {
  absl::MutexLock lock(&engine_->mutex);
  for (FakeDeviceState* candidate : devices_) {
    if (candidate->description.name != device || candidate->removed) {
      continue;
    }
    const int fault = engine_->faults.OnCall(FakeCall::kOpenDevice);
    if (const int error = fault != 0 ? fault : candidate->description.open_error; error != 0) {
      return Failed<ibv_context>(error);
    }
    auto* context = new FakeContext();
    context->state = candidate;
    context->device = &candidate->listed;
    context->events_fd = EventCounter();
    context->async_fd = context->events_fd.get();
    context->num_comp_vectors = 1;
    candidate->contexts.push_back(context);
    ++engine_->live.contexts;
    return context;
  }
  return Failed<ibv_context>(ENODEV);
}

int FakeHost::CloseDevice(ibv_context* context) {
  absl::MutexLock lock(&engine_->mutex);
  auto* closed = static_cast<FakeContext*>(context);
  std::erase(closed->state->contexts, closed);
  delete closed;
  --engine_->live.contexts;
  return 0;
}

int FakeHost::QueryDevice(ibv_context* context, ibv_device_attr* attributes) {
  absl::MutexLock lock(&engine_->mutex);
  if (StateOf(context).removed) {
    return EIO;
  }
  const FakeDevice& device = StateOf(context).description;
  *attributes = {};
  attributes->max_mr_size = device.max_region_bytes;
  attributes->max_qp = device.max_queue_pairs;
  attributes->max_qp_wr = device.max_work_requests;
  attributes->max_cqe = device.max_completions;
  attributes->max_sge = 4;
  attributes->max_qp_rd_atom = device.max_reads;
  attributes->max_qp_init_rd_atom = device.max_reads;
  attributes->max_mw = device.windows ? 1 << 20 : 0;
  attributes->device_cap_flags = device.windows ? IBV_DEVICE_MEM_WINDOW_TYPE_2B : 0;
  attributes->phys_port_cnt = static_cast<uint8_t>(device.ports.size());
  return 0;
}

int FakeHost::QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attributes) {
  absl::MutexLock lock(&engine_->mutex);
  const FakeDeviceState& state = StateOf(context);
  if (state.removed) {
    return EIO;
  }
  if (port < 1 || port > state.description.ports.size()) {
    return EINVAL;
  }
  const FakePort& described = state.description.ports[port - 1u];
  *attributes = {};
  attributes->state = described.active ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  attributes->max_mtu = described.mtu;
  attributes->active_mtu = described.mtu;
  attributes->gid_tbl_len = 256;
  attributes->max_msg_sz = described.max_message_bytes;
  attributes->lid = described.lid;
  attributes->active_width = 2;   // four lanes
  attributes->active_speed = 32;  // of 25 Gbit/s
  attributes->link_layer = described.link_layer == LinkLayer::kEthernet ? IBV_LINK_LAYER_ETHERNET
                                                                        : IBV_LINK_LAYER_INFINIBAND;
  return 0;
}

std::vector<ibv_gid_entry> FakeHost::QueryGids(ibv_context* context) {
  absl::MutexLock lock(&engine_->mutex);
  std::vector<ibv_gid_entry> entries;
  const FakeDevice& device = StateOf(context).description;
  for (size_t port = 0; port < device.ports.size(); ++port) {
    for (const GidDescription& gid : device.ports[port].gids) {
      ibv_gid_entry& entry = entries.emplace_back();
      std::memcpy(entry.gid.raw, gid.gid.data(), gid.gid.size());
      entry.gid_index = static_cast<uint32_t>(gid.index);
      entry.port_num = static_cast<uint32_t>(port + 1);
      entry.gid_type = gid.type == GidType::kRoceV1   ? IBV_GID_TYPE_ROCE_V1
                       : gid.type == GidType::kRoceV2 ? IBV_GID_TYPE_ROCE_V2
                                                      : IBV_GID_TYPE_IB;
    }
  }
  return entries;
}

int FakeHost::GetAsyncEvent(ibv_context* context, ibv_async_event* event) {
  auto& from = *static_cast<FakeContext*>(context);
  while (true) {
    if (const int error = TakeOne(from.async_fd); error != 0) {
      return error;
    }
    absl::MutexLock lock(&engine_->mutex);
    if (from.events.empty()) {
      continue;  // withdrawn with its queue pair
    }
    *event = from.events.front();
    from.events.pop_front();
    if (event->event_type == IBV_EVENT_QP_ACCESS_ERR || event->event_type == IBV_EVENT_QP_REQ_ERR) {
      ++static_cast<FakeQp*>(event->element.qp)->events_taken;
    }
    return 0;
  }
}

void FakeHost::AckAsyncEvent(ibv_async_event* event) {
  absl::MutexLock lock(&engine_->mutex);
  if (event->event_type == IBV_EVENT_QP_ACCESS_ERR || event->event_type == IBV_EVENT_QP_REQ_ERR) {
    ++static_cast<FakeQp*>(event->element.qp)->events_acknowledged;
  }
}

ibv_pd* FakeHost::AllocPd(ibv_context* context) {
  absl::MutexLock lock(&engine_->mutex);
  if (const int error = MayMake(context, FakeCall::kAllocPd); error != 0) {
    return Failed<ibv_pd>(error);
  }
  auto* pd = new FakePd();
  pd->context = context;
  ++engine_->live.protection_domains;
  return pd;
}

int FakeHost::DeallocPd(ibv_pd* pd) {
  absl::MutexLock lock(&engine_->mutex);
  auto* gone = static_cast<FakePd*>(pd);
  if (gone->users > 0) {
    return EBUSY;
  }
  delete gone;
  --engine_->live.protection_domains;
  return 0;
}

ibv_mr* FakeHost::RegMr(ibv_pd* pd, void* address, size_t bytes, int access) {
  absl::MutexLock lock(&engine_->mutex);
  if (const int error = MayMake(pd->context, FakeCall::kRegMr); error != 0) {
    return Failed<ibv_mr>(error);
  }
  const bool writes_remotely = (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
  if (bytes > StateOf(pd->context).description.max_region_bytes ||
      (access & IBV_ACCESS_ON_DEMAND) != 0 ||
      (writes_remotely && (access & IBV_ACCESS_LOCAL_WRITE) == 0)) {
    return Failed<ibv_mr>(EINVAL);
  }
  auto* region = new FakeMr();
  region->context = pd->context;
  region->pd = pd;
  region->addr = address;
  region->length = bytes;
  region->access = access;
  engine_->AddRegion(region);
  ++static_cast<FakePd*>(pd)->users;
  ++engine_->live.regions;
  return region;
}

ibv_mr* FakeHost::RegDmabufMr(ibv_pd*, uint64_t, size_t, uint64_t, int, int) {
  return Failed<ibv_mr>(EOPNOTSUPP);
}

int FakeHost::DeregMr(ibv_mr* mr) {
  absl::MutexLock lock(&engine_->mutex);
  auto* region = static_cast<FakeMr*>(mr);
  if (region->windows > 0) {
    return EBUSY;
  }
  engine_->RemoveRegion(region);
  --static_cast<FakePd*>(region->pd)->users;
  delete region;
  --engine_->live.regions;
  return 0;
}

ibv_mw* FakeHost::AllocMw(ibv_pd* pd, ibv_mw_type type) {
  absl::MutexLock lock(&engine_->mutex);
  if (const int error = MayMake(pd->context, FakeCall::kAllocMw); error != 0) {
    return Failed<ibv_mw>(error);
  }
  if (!StateOf(pd->context).description.windows || type != IBV_MW_TYPE_2) {
    return Failed<ibv_mw>(EOPNOTSUPP);
  }
  auto* window = new FakeMw();
  window->context = pd->context;
  window->pd = pd;
  window->type = type;
  engine_->AddWindow(window);
  ++static_cast<FakePd*>(pd)->users;
  ++engine_->live.windows;
  return window;
}

int FakeHost::DeallocMw(ibv_mw* mw) {
  absl::MutexLock lock(&engine_->mutex);
  auto* window = static_cast<FakeMw*>(mw);
  engine_->RemoveWindow(window);
  --static_cast<FakePd*>(window->pd)->users;
  delete window;
  --engine_->live.windows;
  return 0;
}

}  // namespace shoal::transport
