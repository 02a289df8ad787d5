#include "worker/pipeline/links/communicator_pair.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace shoal::worker {
namespace {

// Thread blocks of a communicator. A stage has at most two neighbours, and so four communicators,
// whose blocks wait for the other rank and must all be on the GPU at once: the smallest GPU has
// room for several times as many. Enough for the full rate of a link between GPUs.
constexpr int kMostBlocks = 8;
// Sent over each communicator to connect.
constexpr int64_t kTriedBytes = 64;
}  // namespace

CommunicatorPair::CommunicatorPair(const Options& options) : options_(options) {
  for (Path& path : paths_) {
    path.stream =
        options_.device->NewStream(StreamKind::kCopy);  // runs concurrently with the compute
  }
}

absl::StatusOr<LinkIds> CommunicatorPair::NewIds() {
  LinkIds ids;
  for (std::string& id : ids) {
    SHOAL_ASSIGN_OR_RETURN(id, options_.collectives->NewId());
  }
  return ids;
}

absl::Status CommunicatorPair::Connect(const LinkIds& ids) {
  Disconnect();
  absl::Status status = Join(ids);
  if (status.ok()) {
    status = Try();
  }
  connected_ = status.ok();
  if (!connected_) {
    Disconnect();
  }
  return status;
}

absl::Status CommunicatorPair::Join(const LinkIds& ids) {
  const auto [low, high] = std::minmax(options_.stage, options_.peer);
  for (size_t i = 0; i < paths_.size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(
        std::shared_ptr<Communicator> communicator,
        options_.collectives->Join(
            {.name = fmt::format("{} from stage {} to stage {}", options_.collectives->name(),
                                 i == 0 ? low : high, i == 0 ? high : low),
             .id = ids[i],
             .rank = rank(),
             .ranks = 2,
             .connect_timeout = options_.timeout,
             .timeout = options_.timeout,
             .most_blocks = kMostBlocks,
             .check = options_.check}));
    absl::MutexLock lock(&mutex_);
    paths_[i].communicator = std::move(communicator);
  }
  return absl::OkStatus();
}

absl::Status CommunicatorPair::Try() {
  SHOAL_ASSIGN_OR_RETURN(const Buffer memory, options_.device->Allocate(2 * kTriedBytes));
  const auto both = [&]() -> absl::Status {
    for (const Path* path : {&paths_[0], &paths_[1]}) {
      SHOAL_RETURN_IF_ERROR(
          (path == &outgoing()
               ? Send(memory.data(), kTriedBytes, "the first bytes")
               : Receive(memory.data() + kTriedBytes, kTriedBytes, "the first bytes"))
              .status());
    }
    return AwaitDone(RealClock().Now() + options_.timeout);
  };
  const absl::Status status = both();
  if (!status.ok()) {  // before the memory goes
    AbortAtOnce(communicators(), status);
    Synchronize();
  }
  return status;
}

void CommunicatorPair::Disconnect() {
  connected_ = false;
  for (Path& path : paths_) {
    std::shared_ptr<Communicator> left;  // destroyed without the lock: that may take a while
    absl::MutexLock lock(&mutex_);
    left = std::move(path.communicator);
  }
}

absl::StatusOr<std::unique_ptr<Event>> CommunicatorPair::Send(const void* from, int64_t bytes,
                                                              std::string_view what) {
  Path& path = outgoing();
  SHOAL_RETURN_IF_ERROR(path.communicator->Send(from, bytes, 1 - rank(), *path.stream, what));
  return path.stream->Record();
}

absl::StatusOr<std::unique_ptr<Event>> CommunicatorPair::Receive(void* to, int64_t bytes,
                                                                 std::string_view what) {
  Path& path = incoming();
  SHOAL_RETURN_IF_ERROR(path.communicator->Receive(to, bytes, 1 - rank(), *path.stream, what));
  return path.stream->Record();
}

absl::Status CommunicatorPair::AwaitDone(absl::Time deadline) {
  for (Path& path : paths_) {
    const std::unique_ptr<Event> done = path.stream->Record();
    while (!done->WaitDone(kLookAgain)) {
      SHOAL_RETURN_IF_ERROR(status());
      if (RealClock().Now() >= deadline) {
        return DeadlineExceeded("what goes between stages {} and {} is not done in time",
                                options_.stage, options_.peer);
      }
    }
    SHOAL_RETURN_IF_ERROR(done->Wait());
  }
  return status();  // work of a communicator that has failed is done too
}

std::vector<std::shared_ptr<Communicator>> CommunicatorPair::communicators() const {
  std::vector<std::shared_ptr<Communicator>> communicators;
  absl::MutexLock lock(&mutex_);
  for (const Path& path : paths_) {
    if (path.communicator != nullptr) {
      communicators.push_back(path.communicator);
    }
  }
  return communicators;
}

// Asks without the lock: a communicator in a call answers late, which must not delay an abort of
// the others.
absl::Status CommunicatorPair::status() const {
  for (const auto& communicator : communicators()) {
    SHOAL_RETURN_IF_ERROR(communicator->status());
  }
  return absl::OkStatus();
}

void CommunicatorPair::Synchronize() {
  for (Path& path : paths_) {
    path.stream->Synchronize().IgnoreError();
  }
}

void AbortAtOnce(const std::vector<std::shared_ptr<Communicator>>& communicators,
                 const absl::Status& why) {
  std::vector<std::thread> threads;
  for (const auto& communicator : communicators) {
    threads.emplace_back([&communicator, &why] { communicator->Abort(why); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace shoal::worker
