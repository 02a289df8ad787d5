#include "core/gpu/caching_pool.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::gpu {

CachingPool::CachingPool(CudaContext& context, Kind kind, std::string name, std::string advice,
                         int64_t budget_bytes)
    : context_(context),
      kind_(kind),
      name_(std::move(name)),
      advice_(std::move(advice)),
      budget_bytes_(budget_bytes),
      most_reserved_(budget_bytes == 0 ? std::numeric_limits<int64_t>::max()
                                       : RoundUp(budget_bytes, kGranule)) {}

CachingPool::~CachingPool() {
  absl::MutexLock lock(&mutex_);
  SHOAL_CHECK(allocated_ == 0);
  (void)Collect(/*wait=*/true);
  (void)context_.MakeCurrent();
  for (const auto& [data, reservation] : reservations_) {
    (void)Return(data);
  }
  (void)cudaGetLastError();
}

absl::StatusOr<std::byte*> CachingPool::Take(int64_t bytes) {
  SHOAL_CHECK(bytes > 0);
  absl::MutexLock lock(&mutex_);
  if (budget_bytes_ > 0 && bytes > budget_bytes_ - allocated_) {
    return ResourceExhausted("{} memory: {} B asked for, {} of {} B in use; {}", name_, bytes,
                             allocated_, budget_bytes_, advice_);
  }
  SHOAL_RETURN_IF_ERROR(context_.MakeCurrent());
  SHOAL_RETURN_IF_ERROR(Collect(/*wait=*/false));
  std::byte* piece = TakeKept(bytes);
  if (piece == nullptr) {
    SHOAL_ASSIGN_OR_RETURN(piece, TakeNew(bytes));
  }
  if (piece == nullptr && !leaving_.empty()) {
    SHOAL_RETURN_IF_ERROR(Collect(/*wait=*/true));
    piece = TakeKept(bytes);
  }
  if (piece == nullptr) {
    SHOAL_RETURN_IF_ERROR(ReturnEmpty());
    SHOAL_ASSIGN_OR_RETURN(piece, TakeNew(bytes));
  }
  if (piece == nullptr) {
    return NoRoom(bytes);
  }
  allocated_ += bytes;
  peak_ = std::max(peak_, allocated_);
  return piece;
}

void CachingPool::Give(std::byte* piece, int64_t bytes) {
  CudaContext::Fence fence = context_.PutFence();
  absl::MutexLock lock(&mutex_);
  allocated_ -= bytes;
  leaving_.push_back({piece, std::move(fence)});
  (void)Collect(/*wait=*/false);
}

std::byte* CachingPool::TakeKept(int64_t bytes) {
  if (bytes < kLargeBytes) {
    for (const auto& [number, data] : shared_) {
      if (const auto place = reservations_.at(data).pieces.Take(bytes); place.has_value()) {
        return data + *place;
      }
    }
    return nullptr;
  }
  auto best = reservations_.end();
  for (auto it = reservations_.begin(); it != reservations_.end(); ++it) {
    const Reservation& reservation = it->second;
    if (reservation.large && reservation.pieces.used() == 0 && reservation.bytes >= bytes &&
        static_cast<double>(bytes) >= kLeastUse * static_cast<double>(reservation.bytes) &&
        (best == reservations_.end() || reservation.bytes < best->second.bytes)) {
      best = it;
    }
  }
  if (best == reservations_.end()) {
    return nullptr;
  }
  SHOAL_CHECK(best->second.pieces.TakeAt(0, bytes));
  return best->first;
}

absl::StatusOr<std::byte*> CachingPool::TakeNew(int64_t bytes) {
  const bool large = bytes >= kLargeBytes;
  const int64_t least = RoundUp(bytes, kGranule);
  const int64_t room = most_reserved_ - reserved_;
  if (least > room) {
    return nullptr;
  }
  // A shared reservation is smaller if the budget or the memory has no more left.
  for (const int64_t size : {large ? least : std::min(kSharedBytes, room), least}) {
    void* data = nullptr;
    const cudaError_t error = Reserve(&data, size);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      continue;
    }
    SHOAL_RETURN_IF_ERROR(context_.Check(error, fmt::format("reserving {} B", size)));
    auto* begin = static_cast<std::byte*>(data);
    const uint64_t number = next_number_++;
    Reservation& reservation =
        reservations_
            .emplace(begin, Reservation{.number = number,
                                        .bytes = size,
                                        .large = large,
                                        .pieces = RangeAllocator(size, kAlignment)})
            .first->second;
    if (!large) {
      shared_.emplace(number, begin);
    }
    reserved_ += size;
    SHOAL_CHECK(reservation.pieces.TakeAt(0, bytes));
    return begin;
  }
  return nullptr;
}

absl::Status CachingPool::Collect(bool wait) {
  for (auto it = leaving_.begin(); it != leaving_.end();) {
    if (wait) {
      SHOAL_RETURN_IF_ERROR(context_.Wait(it->fence));
    }
    if (!context_.IsDone(it->fence)) {
      ++it;
      continue;
    }
    PutBack(it->piece);
    it = leaving_.erase(it);
  }
  return absl::OkStatus();
}

absl::Status CachingPool::ReturnEmpty() {
  for (auto it = reservations_.begin(); it != reservations_.end();) {
    if (it->second.pieces.used() > 0) {
      ++it;
      continue;
    }
    SHOAL_RETURN_IF_ERROR(context_.Check(
        Return(it->first), fmt::format("giving {} B back to the driver", it->second.bytes)));
    reserved_ -= it->second.bytes;
    shared_.erase(it->second.number);
    it = reservations_.erase(it);
  }
  return absl::OkStatus();
}

void CachingPool::PutBack(std::byte* piece) {
  auto it = reservations_.upper_bound(piece);
  SHOAL_CHECK(it != reservations_.begin());
  --it;
  it->second.pieces.Give(piece - it->first);
}

absl::Status CachingPool::NoRoom(int64_t bytes) {
  if (RoundUp(bytes, kGranule) > most_reserved_ - reserved_) {
    return ResourceExhausted(
        "{} memory: {} B asked for, {} of {} B in use and {} B free in pieces that are too small; "
        "{}",
        name_, bytes, allocated_, budget_bytes_, reserved_ - allocated_, advice_);
  }
  if (kind_ == Kind::kPinnedHost) {
    return ResourceExhausted(
        "{} memory: {} B asked for, {} B in use; the machine pins no more: free memory of the "
        "host, or {}",
        name_, bytes, allocated_, advice_);
  }
  size_t free = 0;
  size_t total = 0;
  SHOAL_RETURN_IF_ERROR(
      context_.Check(cudaMemGetInfo(&free, &total), "asking for what memory is free"));
  return ResourceExhausted(
      "{} memory: {} B asked for, {} of {} B in use, but the GPU has {} of {} B free: others use "
      "it too; end them, or {}",
      name_, bytes, allocated_, budget_bytes_, free, total, advice_);
}

cudaError_t CachingPool::Reserve(void** data, int64_t bytes) const {
  const auto size = static_cast<size_t>(bytes);
  return kind_ == Kind::kDevice ? cudaMalloc(data, size)
                                : cudaHostAlloc(data, size, cudaHostAllocPortable);
}

cudaError_t CachingPool::Return(void* data) const {
  return kind_ == Kind::kDevice ? cudaFree(data) : cudaFreeHost(data);
}

int64_t CachingPool::allocated_bytes() const {
  absl::MutexLock lock(&mutex_);
  return allocated_;
}

int64_t CachingPool::peak_bytes() const {
  absl::MutexLock lock(&mutex_);
  return peak_;
}

int64_t CachingPool::reserved_bytes() const {
  absl::MutexLock lock(&mutex_);
  return reserved_;
}

}  // namespace shoal::gpu
