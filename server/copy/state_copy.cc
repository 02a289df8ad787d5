#include "server/copy/state_copy.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/base/testing/planted.h"
#include "xxhash.h"

namespace shoal::server {
namespace {

// Of partitions, by unit and the offset in it where they begin.
class Fetch {
 public:
  Fetch(const std::vector<plan::PartitionSpec>& partitions, const std::map<int, StateGiver>& givers,
        proto::ReadStateRequest wanted, ThreadPool* readers)
      : givers_(givers), wanted_(std::move(wanted)), readers_(readers) {
    for (const plan::PartitionSpec& partition : partitions) {
      partitions_[{partition.unit, partition.offset}] = partition;
    }
  }

  // Some pieces at a time: while one is on its way, others are read, hashed and copied.
  absl::Status Read(proto::ReadStateRequest::Array array, int unit, int64_t offset,
                    std::span<float> out) const {
    SHOAL_ASSIGN_OR_RETURN(const std::vector<Piece> pieces, PiecesOf(unit, offset, out));
    absl::Mutex mutex;
    absl::Status failure;
    std::atomic<bool> failed = false;
    readers_->ParallelFor(std::ssize(pieces), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end && !failed; ++i) {
        if (const absl::Status status = ReadPiece(array, pieces[static_cast<size_t>(i)]);
            !status.ok()) {
          absl::MutexLock lock(&mutex);
          failure.Update(status);
          failed = true;
        }
      }
    });
    return failure;
  }

 private:
  struct Piece {
    int partition = 0;
    int64_t offset = 0;  // in the partition
    std::span<float> out;
  };

  absl::StatusOr<std::vector<Piece>> PiecesOf(int unit, int64_t offset,
                                              std::span<float> out) const {
    std::vector<Piece> pieces;
    while (!out.empty()) {
      const auto after = partitions_.upper_bound({unit, offset});
      if (after == partitions_.begin()) {
        return Internal("elements {} of unit {} are in no partition that comes", offset, unit);
      }
      const plan::PartitionSpec& partition = std::prev(after)->second;
      const int64_t from = offset - partition.offset;
      const int64_t count =
          std::min({static_cast<int64_t>(out.size()), kMostStateElements, partition.count - from});
      if (partition.unit != unit || count <= 0) {
        return Internal("elements {} of unit {} are in no partition that comes", offset, unit);
      }
      pieces.push_back({partition.id, from, out.first(static_cast<size_t>(count))});
      out = out.subspan(static_cast<size_t>(count));
      offset += count;
    }
    return pieces;
  }

  absl::Status ReadPiece(proto::ReadStateRequest::Array array, const Piece& piece) const {
    const auto& [partition, offset, out] = piece;
    const StateGiver& giver = givers_.at(partition);
    proto::ReadStateRequest request = wanted_;
    request.set_partition(partition);
    request.set_array(array);
    request.set_offset(offset);
    request.set_count(static_cast<int64_t>(out.size()));
    const absl::Status read = giver.read(request, out);
    if (absl::IsDataLoss(read)) {
      return DataLoss("{} answered with other state of partition {} than it read", giver.name,
                      partition);
    }
    if (!read.ok()) {
      // As its own: who asks the taker judges by the code whether that can be reached.
      return FailedPrecondition("state of partition {} from {}: {}", partition, giver.name,
                                Message(read));
    }
    return absl::OkStatus();
  }

  const std::map<int, StateGiver> givers_;
  const proto::ReadStateRequest wanted_;
  ThreadPool* const readers_;
  std::map<std::pair<int, int64_t>, plan::PartitionSpec> partitions_;
};

}  // namespace

absl::Status CheckElements(std::span<const float> elements, uint64_t hash) {
  return XXH3_64bits(elements.data(), elements.size_bytes()) == hash
             ? absl::OkStatus()
             : DataLoss("other bytes came than were read");
}

absl::Status TakeElements(const absl::StatusOr<proto::ReadStateReply>& reply,
                          std::span<float> out) {
  SHOAL_RETURN_IF_ERROR(reply.status());
  if (reply->elements().size() != out.size_bytes()) {
    return DataLoss("{} bytes came instead of {}", reply->elements().size(), out.size_bytes());
  }
  std::memcpy(out.data(), reply->elements().data(), out.size_bytes());
  return CheckElements(out, reply->hash());
}

absl::StatusOr<proto::ReadStateReply> ReadState(const JobStore& store,
                                                const proto::ReadStateRequest& request,
                                                std::span<std::byte> slot) {
  SHOAL_RETURN_IF_ERROR(store.failure());
  const JobStore::Held* const held = store.FindHeld(request.partition());
  if (held == nullptr) {
    return NotFound("partition {} is not here", request.partition());
  }
  if (request.version() != store.version()) {
    return FailedPrecondition("version {} of the state is wanted, {} is published",
                              request.version(), store.version());
  }
  const int64_t count = held->partition->spec().trained();  // what is frozen has no state
  if (!proto::ReadStateRequest::Array_IsValid(request.array()) || request.offset() < 0 ||
      request.count() < 1 || request.count() > kMostStateElements ||
      request.offset() > count - request.count()) {
    return InvalidArgument("{} elements from {} of array {} of partition {}, which has {}",
                           request.count(), request.offset(), static_cast<int>(request.array()),
                           request.partition(), count);
  }
  const PartitionState& state = held->extent->store->state();
  proto::ReadStateReply reply;
  const auto elements = static_cast<size_t>(request.count());
  if (slot.empty()) {
    std::string& bytes = *reply.mutable_elements();
    bytes.resize(elements * sizeof(float));
    slot = std::as_writable_bytes(std::span(bytes));
  }
  const std::span out(reinterpret_cast<float*>(slot.data()), elements);
  SHOAL_RETURN_IF_ERROR(request.array() == proto::ReadStateRequest::ARRAY_GRADIENT
                            ? state.ReadGradient(held->index, request.offset(), out)
                            : state.ReadPart(held->index, static_cast<StateArray>(request.array()),
                                             request.offset(), out));
  reply.set_hash(XXH3_64bits(out.data(), out.size_bytes()));
  return reply;
}

StoreSource FetchedFrom(const std::vector<plan::PartitionSpec>& partitions,
                        const std::map<int, StateGiver>& givers,
                        const proto::ReadStateRequest& wanted, ThreadPool* readers) {
  const auto fetch = std::make_shared<const Fetch>(partitions, givers, wanted, readers);
  const auto reader = [&fetch](proto::ReadStateRequest::Array array) {
    return [fetch, array](int unit, int64_t offset, std::span<float> out) {
      return fetch->Read(array, unit, offset, out);
    };
  };
  return {
      .master = reader(proto::ReadStateRequest::ARRAY_MASTER),
      .m = reader(SHOAL_PLANTED("moment-unmoved") ? proto::ReadStateRequest::ARRAY_SECOND_MOMENT
                                                  : proto::ReadStateRequest::ARRAY_FIRST_MOMENT),
      .v = reader(proto::ReadStateRequest::ARRAY_SECOND_MOMENT)};
}

namespace {

std::vector<plan::PartitionSpec> ReservedOf(const JobStore& store,
                                            const std::vector<plan::PartitionSpec>& job,
                                            const std::map<int, StateGiver>& givers) {
  std::vector<plan::PartitionSpec> comes;
  const auto places = store.reserved() < 0 ? JobStore::Places() : store.places(store.reserved());
  for (const auto& [id, giver] : givers) {
    if (places.contains(id) && store.Find(id) == nullptr) {
      comes.push_back(job[static_cast<size_t>(id)]);
    }
  }
  return comes;
}

}  // namespace

absl::Status FetchReserved(const std::vector<ReservedStore>& stores,
                           const std::vector<plan::PartitionSpec>& job,
                           const std::map<int, StateGiver>& givers,
                           const proto::ReadStateRequest& wanted, const plan::UnitReader& base,
                           ThreadPool* readers) {
  size_t coming = 0;
  for (const ReservedStore& reserved : stores) {
    coming += ReservedOf(*reserved.store, job, givers).size();
  }
  if (givers.empty() || coming != givers.size()) {
    return givers.empty() ? InvalidArgument("nobody is named who has what is to come")
                          : InvalidArgument("{} of the {} partitions that are to come are reserved",
                                            coming, givers.size());
  }
  for (const auto& [store, make] : stores) {
    if (const auto comes = ReservedOf(*store, job, givers); !comes.empty()) {
      SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<Store> arriving, make(comes));
      store->Arrive(std::move(arriving));
      StoreSource source = FetchedFrom(comes, givers, wanted, readers);
      source.base = base;
      SHOAL_RETURN_IF_ERROR(store->arriving()->store->Load(wanted.version(), source));
      LogInfo("{} partitions have come, as of version {}", comes.size(), wanted.version());
    }
  }
  return absl::OkStatus();
}

plan::UnitReader GradientsFrom(const std::vector<plan::PartitionSpec>& partitions,
                               const std::map<int, StateGiver>& givers,
                               const proto::ReadStateRequest& wanted, ThreadPool* readers) {
  const auto fetch = std::make_shared<const Fetch>(partitions, givers, wanted, readers);
  return [fetch](int unit, int64_t offset, std::span<float> out) {
    return fetch->Read(proto::ReadStateRequest::ARRAY_GRADIENT, unit, offset, out);
  };
}

}  // namespace shoal::server
