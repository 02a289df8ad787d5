#include "worker/collectives/nccl/emulation/emulated_nccl.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/gpu/fake_cuda/machine.h"
#include "worker/collectives/nccl/emulation/emulated_operation.h"
#include "worker/collectives/nccl/nccl_api.h"

namespace shoal::worker::emulation {

using gpu::emulation::CurrentDevice;
using gpu::emulation::Machine;

// All ranks that came with one id.
struct Group {
  struct Member {
    int device = -1;                   // -1: has not come yet
    ncclResult_t error = ncclSuccess;  // returned when asked for
    bool gone = false;
  };
  // Of all ranks: {-1, -1, number}; of messages: {from, to, number}.
  using Key = std::tuple<int, int, int64_t>;

  std::vector<Member> members;
  std::map<Key, std::shared_ptr<Operation>> operations;

  bool all_came() const {
    return std::ranges::none_of(members, [](const Member& member) { return member.device < 0; });
  }
};

}  // namespace shoal::worker::emulation

// NCCL's header leaves this type to NCCL.
struct ncclComm {
  std::shared_ptr<shoal::worker::emulation::Group> group;
  size_t rank = 0;
  bool connecting = true;
  std::function<void()> deferred;                // what the last call has yet to put on its stream
  std::map<std::pair<int, int>, int64_t> calls;  // so far, by the ranks they connect
};

namespace shoal::worker::emulation {
namespace {

// The machine's lock guards everything.
struct Library {
  EmulatedNccl settings;
  NcclCounters counters;
  int64_t failure_left = 0;
  ncclResult_t failure = ncclSuccess;
  uint64_t ids = 0;
  std::map<std::string, std::weak_ptr<Group>> groups;

  static Library& The() {
    static auto* library = new Library;
    return *library;
  }
};

Group::Member& MemberOf(ncclComm& communicator) {
  return communicator.group->members[communicator.rank];
}

// What a rank contributes to an operation, identified by its number among the calls between these
// ranks.
struct Call {
  Kind kind = Kind::kAllGather;
  ncclDataType_t type = ncclFloat32;
  size_t count = 0;
  std::pair<int, int> between = {-1, -1};
  size_t parts = 0;
  size_t part = 0;  // of this rank
  const void* from = nullptr;
  void* to = nullptr;
};

void Start(Machine& machine, Group& group, size_t rank, const Group::Key& key, size_t part)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(machine.mutex) {
  Library& library = Library::The();
  const auto found = group.operations.find(key);
  if (found == group.operations.end() || group.members[rank].gone) {
    return;
  }
  if (library.failure_left > 0 && --library.failure_left == 0) {
    group.members[rank].error = library.failure;
    return;
  }
  const std::shared_ptr<Operation> operation = found->second;
  operation->parts[part].started = true;
  if (!operation->complete()) {
    return;
  }
  machine.memory->Open(gpu::emulation::AddressSpace::kAll);
  operation->Run();
  ++(operation->kind == Kind::kAllGather       ? library.counters.all_gathers
     : operation->kind == Kind::kReduceScatter ? library.counters.reduce_scatters
                                               : library.counters.messages);
  for (const Part& each : operation->parts) {
    machine.FinishOutsidePoint(*each.done);
  }
  group.operations.erase(found);
}

void Put(Machine& machine, ncclComm& communicator, CUstream_st& stream, const Call& call)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(machine.mutex) {
  const std::shared_ptr<Group> group = communicator.group;
  const Group::Key key = {call.between.first, call.between.second,
                          communicator.calls[call.between]++};
  std::shared_ptr<Operation>& operation = group->operations[key];
  if (operation == nullptr) {
    operation = std::make_shared<Operation>(Operation{.kind = call.kind,
                                                      .type = call.type,
                                                      .count = call.count,
                                                      .parts = std::vector<Part>(call.parts)});
  }
  operation->matches = operation->matches && operation->kind == call.kind &&
                       operation->type == call.type && operation->count == call.count;
  const std::shared_ptr<gpu::emulation::Point> done = machine.NewOutsidePoint();
  operation->parts[call.part] = {.from = call.from, .to = call.to, .done = done};
  machine.Put(stream, [&machine, device = stream.device, group, rank = communicator.rank, key,
                       part = call.part] {
    Machine& m = machine;
    m.mutex.AssertHeld();
    m.Act(device, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { Start(m, *group, rank, key, part); });
  });
  machine.PutWait(stream, done);
}

ncclResult_t Enqueue(ncclComm_t communicator, cudaStream_t handle, const Call& call) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  CUstream_st* stream = machine.Find(handle);
  const int device = MemberOf(*communicator).device;
  if (stream == nullptr || stream->device != device || CurrentDevice() != device) {
    return ncclInvalidArgument;
  }
  if (communicator->connecting || communicator->deferred != nullptr) {
    return ncclInvalidUsage;
  }
  const auto put = [&machine, communicator, stream, call]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Put(machine, *communicator, *stream, call);
  };
  if (machine.RandomNumber() % 2 == 0) {
    communicator->deferred = put;
    return ncclInProgress;
  }
  put();
  return ncclSuccess;
}

// Ends what the rank waits for, and removes it for the others.
void Leave(Machine& machine, ncclComm& communicator) ABSL_EXCLUSIVE_LOCKS_REQUIRED(machine.mutex) {
  MemberOf(communicator).gone = true;
  for (const auto& [key, operation] : communicator.group->operations) {
    const auto [from, to, number] = key;
    const auto rank = static_cast<int>(communicator.rank);
    const size_t part = from < 0 ? communicator.rank : rank == from ? 0 : 1;
    const bool own = from < 0 || rank == from || rank == to;
    if (own && operation->parts[part].done != nullptr) {
      operation->matches = false;  // its memory may be freed
      machine.FinishOutsidePoint(*operation->parts[part].done);
    }
  }
  --Library::The().counters.communicators;
}

ncclResult_t GetVersion(int* version) {
  absl::MutexLock lock(&Machine::The().mutex);
  *version = Library::The().settings.version;
  return ncclSuccess;
}

ncclResult_t GetUniqueId(ncclUniqueId* id) {
  absl::MutexLock lock(&Machine::The().mutex);
  const uint64_t number = ++Library::The().ids;
  *id = {};
  std::memcpy(id->internal, &number, sizeof(number));
  return ncclSuccess;
}

const char* GetErrorString(ncclResult_t) { return "emulated error"; }
const char* GetLastError(ncclComm_t) { return "told by the emulation\n"; }

ncclResult_t InitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank,
                            ncclConfig_t* config) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  if (config == nullptr || config->blocking != 0 || ranks < 1 || rank < 0 || rank >= ranks) {
    return ncclInvalidArgument;
  }
  Library& library = Library::The();
  std::weak_ptr<Group>& known = library.groups[std::string(id.internal, sizeof(id.internal))];
  std::shared_ptr<Group> group = known.lock();
  if (group == nullptr) {
    group = std::make_shared<Group>();
    group->members.resize(static_cast<size_t>(ranks));
    known = group;
  }
  if (group->members.size() != static_cast<size_t>(ranks) ||
      group->members[static_cast<size_t>(rank)].device >= 0) {
    return ncclInvalidArgument;
  }
  const int device = CurrentDevice();
  const bool shared = std::ranges::any_of(
      group->members, [device](const Group::Member& member) { return member.device == device; });
  group->members[static_cast<size_t>(rank)].device = device;
  for (Group::Member& member : group->members) {
    member.error = shared ? ncclInvalidUsage : member.error;
  }
  ++library.counters.communicators;
  *communicator = new ncclComm{.group = group, .rank = static_cast<size_t>(rank)};
  return ncclInProgress;
}

ncclResult_t GetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  *error = MemberOf(*communicator).error;
  if (*error != ncclSuccess) {
    return ncclSuccess;
  }
  const bool a_while = machine.RandomNumber() % 2 == 0;
  if (communicator->connecting) {
    communicator->connecting = a_while || !communicator->group->all_came();
    *error = communicator->connecting ? ncclInProgress : ncclSuccess;
  } else if (communicator->deferred != nullptr) {
    if (!a_while) {
      std::exchange(communicator->deferred, nullptr)();
    }
    *error = a_while ? ncclInProgress : ncclSuccess;
  }
  return ncclSuccess;
}

ncclResult_t Finalize(ncclComm_t) { return ncclSuccess; }

ncclResult_t Destroy(ncclComm_t communicator) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  Leave(machine, *communicator);
  delete communicator;
  return ncclSuccess;
}

ncclResult_t Abort(ncclComm_t communicator) {
  {
    absl::MutexLock lock(&Machine::The().mutex);
    ++Library::The().counters.aborted;
  }
  return Destroy(communicator);
}

ncclResult_t AllGatherCall(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  return Enqueue(communicator, stream,
                 {.kind = Kind::kAllGather,
                  .type = type,
                  .count = count,
                  .parts = communicator->group->members.size(),
                  .part = communicator->rank,
                  .from = from,
                  .to = to});
}

ncclResult_t ReduceScatterCall(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t communicator,
                               cudaStream_t stream) {
  if (operation != ncclSum) {
    return ncclInvalidArgument;
  }
  return Enqueue(communicator, stream,
                 {.kind = Kind::kReduceScatter,
                  .type = type,
                  .count = count,
                  .parts = communicator->group->members.size(),
                  .part = communicator->rank,
                  .from = from,
                  .to = to});
}

ncclResult_t Send(const void* from, size_t count, ncclDataType_t type, int peer,
                  ncclComm_t communicator, cudaStream_t stream) {
  return Enqueue(communicator, stream,
                 {.kind = Kind::kMessage,
                  .type = type,
                  .count = count,
                  .between = {static_cast<int>(communicator->rank), peer},
                  .parts = 2,
                  .part = 0,
                  .from = from});
}

ncclResult_t Receive(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                     cudaStream_t stream) {
  return Enqueue(communicator, stream,
                 {.kind = Kind::kMessage,
                  .type = type,
                  .count = count,
                  .between = {peer, static_cast<int>(communicator->rank)},
                  .parts = 2,
                  .part = 1,
                  .to = to});
}

}  // namespace
}  // namespace shoal::worker::emulation

namespace shoal::worker {

using gpu::emulation::Machine;

void SetEmulatedNccl(const EmulatedNccl& nccl) {
  absl::MutexLock lock(&Machine::The().mutex);
  emulation::Library& library = emulation::Library::The();
  library = {.settings = nccl, .ids = library.ids};
}

void FailCollective(int64_t number, ncclResult_t error) {
  absl::MutexLock lock(&Machine::The().mutex);
  emulation::Library::The().failure_left = number;
  emulation::Library::The().failure = error;
}

NcclCounters CountNccl() {
  absl::MutexLock lock(&Machine::The().mutex);
  return emulation::Library::The().counters;
}

absl::StatusOr<Nccl> LoadNccl() {
  absl::MutexLock lock(&Machine::The().mutex);
  if (!emulation::Library::The().settings.there) {
    return NotFound("no NCCL: the emulation has none");
  }
  return Nccl{.get_version = emulation::GetVersion,
              .get_unique_id = emulation::GetUniqueId,
              .get_error_string = emulation::GetErrorString,
              .get_last_error = emulation::GetLastError,
              .init_rank_config = emulation::InitRankConfig,
              .finalize = emulation::Finalize,
              .destroy = emulation::Destroy,
              .abort = emulation::Abort,
              .get_async_error = emulation::GetAsyncError,
              .all_gather = emulation::AllGatherCall,
              .reduce_scatter = emulation::ReduceScatterCall,
              .send = emulation::Send,
              .receive = emulation::Receive};
}

}  // namespace shoal::worker
