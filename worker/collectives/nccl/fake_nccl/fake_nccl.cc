#include "worker/collectives/nccl/fake_nccl/fake_nccl.h"

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
#include "core/gpu/fake_cuda/fake_gpus.h"
#include "worker/collectives/nccl/fake_nccl/operation.h"
#include "worker/collectives/nccl/nccl_api.h"

namespace shoal::worker::fake_nccl {

using gpu::fake_cuda::CurrentDevice;
using gpu::fake_cuda::FakeGpus;

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

}  // namespace shoal::worker::fake_nccl

// NCCL's header leaves this type to NCCL.
struct ncclComm {
  std::shared_ptr<shoal::worker::fake_nccl::Group> group;
  size_t rank = 0;
  bool connecting = true;
  std::function<void()> deferred;                // what the last call has yet to put on its stream
  std::map<std::pair<int, int>, int64_t> calls;  // so far, by the ranks they connect
};

namespace shoal::worker::fake_nccl {
namespace {

// The machine's lock guards everything.
struct Library {
  FakeNccl settings;
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

void Start(FakeGpus& fake, Group& group, size_t rank, const Group::Key& key, size_t part)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(fake.mutex) {
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
  fake.memory->Open(gpu::fake_cuda::AddressSpace::kAll);
  operation->Run();
  ++(operation->kind == Kind::kAllGather       ? library.counters.all_gathers
     : operation->kind == Kind::kReduceScatter ? library.counters.reduce_scatters
                                               : library.counters.messages);
  for (const Part& each : operation->parts) {
    fake.FinishOutsidePoint(*each.done);
  }
  group.operations.erase(found);
}

void Put(FakeGpus& fake, ncclComm& communicator, CUstream_st& stream, const Call& call)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(fake.mutex) {
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
  const std::shared_ptr<gpu::fake_cuda::Point> done = fake.NewOutsidePoint();
  operation->parts[call.part] = {.from = call.from, .to = call.to, .done = done};
  fake.Put(stream, [&fake, device = stream.device, group, rank = communicator.rank, key,
                    part = call.part] {
    FakeGpus& m = fake;
    m.mutex.AssertHeld();
    m.Act(device, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { Start(m, *group, rank, key, part); });
  });
  fake.PutWait(stream, done);
}

ncclResult_t Enqueue(ncclComm_t communicator, cudaStream_t handle, const Call& call) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  CUstream_st* stream = fake.Find(handle);
  const int device = MemberOf(*communicator).device;
  if (stream == nullptr || stream->device != device || CurrentDevice() != device) {
    return ncclInvalidArgument;
  }
  if (communicator->connecting || communicator->deferred != nullptr) {
    return ncclInvalidUsage;
  }
  const auto put = [&fake, communicator, stream, call]()
                       ABSL_NO_THREAD_SAFETY_ANALYSIS { Put(fake, *communicator, *stream, call); };
  if (fake.RandomNumber() % 2 == 0) {
    communicator->deferred = put;
    return ncclInProgress;
  }
  put();
  return ncclSuccess;
}

// Ends what the rank waits for, and removes it for the others.
void Leave(FakeGpus& fake, ncclComm& communicator) ABSL_EXCLUSIVE_LOCKS_REQUIRED(fake.mutex) {
  MemberOf(communicator).gone = true;
  for (const auto& [key, operation] : communicator.group->operations) {
    const auto [from, to, number] = key;
    const auto rank = static_cast<int>(communicator.rank);
    const size_t part = from < 0 ? communicator.rank : rank == from ? 0 : 1;
    const bool own = from < 0 || rank == from || rank == to;
    if (own && operation->parts[part].done != nullptr) {
      operation->matches = false;  // its memory may be freed
      fake.FinishOutsidePoint(*operation->parts[part].done);
    }
  }
  --Library::The().counters.communicators;
}

ncclResult_t GetVersion(int* version) {
  absl::MutexLock lock(&FakeGpus::The().mutex);
  *version = Library::The().settings.version;
  return ncclSuccess;
}

ncclResult_t GetUniqueId(ncclUniqueId* id) {
  absl::MutexLock lock(&FakeGpus::The().mutex);
  const uint64_t number = ++Library::The().ids;
  *id = {};
  std::memcpy(id->internal, &number, sizeof(number));
  return ncclSuccess;
}

const char* GetErrorString(ncclResult_t) { return "fake error"; }
const char* GetLastError(ncclComm_t) { return "told by the fake\n"; }

ncclResult_t InitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank,
                            ncclConfig_t* config) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
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
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  *error = MemberOf(*communicator).error;
  if (*error != ncclSuccess) {
    return ncclSuccess;
  }
  const bool a_while = fake.RandomNumber() % 2 == 0;
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
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  Leave(fake, *communicator);
  delete communicator;
  return ncclSuccess;
}

ncclResult_t Abort(ncclComm_t communicator) {
  {
    absl::MutexLock lock(&FakeGpus::The().mutex);
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
}  // namespace shoal::worker::fake_nccl

namespace shoal::worker {

using gpu::fake_cuda::FakeGpus;

void SetFakeNccl(const FakeNccl& nccl) {
  absl::MutexLock lock(&FakeGpus::The().mutex);
  fake_nccl::Library& library = fake_nccl::Library::The();
  library = {.settings = nccl, .ids = library.ids};
}

void FailCollective(int64_t number, ncclResult_t error) {
  absl::MutexLock lock(&FakeGpus::The().mutex);
  fake_nccl::Library::The().failure_left = number;
  fake_nccl::Library::The().failure = error;
}

NcclCounters CountNccl() {
  absl::MutexLock lock(&FakeGpus::The().mutex);
  return fake_nccl::Library::The().counters;
}

absl::StatusOr<Nccl> LoadNccl() {
  absl::MutexLock lock(&FakeGpus::The().mutex);
  if (!fake_nccl::Library::The().settings.there) {
    return NotFound("no NCCL: the fake has none");
  }
  return Nccl{.get_version = fake_nccl::GetVersion,
              .get_unique_id = fake_nccl::GetUniqueId,
              .get_error_string = fake_nccl::GetErrorString,
              .get_last_error = fake_nccl::GetLastError,
              .init_rank_config = fake_nccl::InitRankConfig,
              .finalize = fake_nccl::Finalize,
              .destroy = fake_nccl::Destroy,
              .abort = fake_nccl::Abort,
              .get_async_error = fake_nccl::GetAsyncError,
              .all_gather = fake_nccl::AllGatherCall,
              .reduce_scatter = fake_nccl::ReduceScatterCall,
              .send = fake_nccl::Send,
              .receive = fake_nccl::Receive};
}

}  // namespace shoal::worker
