#include "server/store/store.h"

#include <algorithm>
#include <cstring>

#include "absl/synchronization/mutex.h"
#include "common/bytes.h"
#include "common/check.h"
#include "common/status.h"
#include "xxhash.h"

namespace shoal::server {
namespace {

// Elements one thread updates at a time: state of one chunk (28 B an element) stays within a
// second-level cache.
constexpr int64_t kUpdateChunk = 16384;
// Elements of a sealed exact gradient converted to float at a time, on the stack.
constexpr int64_t kScratch = 2048;
// No two arrays share a page, and those that are walked through together start at different places
// within one: stores and loads whose addresses agree in their last twelve bits wait for each other.
constexpr int64_t kPage = 4096;
constexpr int64_t kStagger = 256;
constexpr int64_t kMasterStart = kStagger;
constexpr int64_t kMomentsStart = 4 * kStagger;
constexpr int64_t kGradientsStart = 8 * kStagger;

int64_t ArrayBytes(int64_t count, int64_t element) {
  return RoundUp(count * element, kPage) + kStagger;
}

// All headers lie together at the start. One page even where nothing is held: a region is never
// empty.
int64_t HeadersBytes(size_t partitions) {
  return RoundUp(
      static_cast<int64_t>(std::max<size_t>(1, partitions) * sizeof(transport::PartitionHeader)),
      transport::kBufferAlignment);
}

int64_t SumElement(const StoreOptions& options) {
  return options.accumulate == plan::Accumulate::kExact ? int64_t{sizeof(int64_t)}
                                                        : int64_t{sizeof(float)};
}

}  // namespace

StoreBytes CountStoreBytes(std::span<const plan::PartitionSpec> held, const StoreOptions& options) {
  StoreBytes bytes;
  bytes.weights = HeadersBytes(held.size());
  for (const plan::PartitionSpec& spec : held) {
    bytes.weights +=
        2 * RoundUp(spec.count * SizeOf(options.wire_type), transport::kBufferAlignment);
    bytes.master += ArrayBytes(spec.count, sizeof(float));
    bytes.moments += 2 * ArrayBytes(spec.count, sizeof(float));
    bytes.gradients += ArrayBytes(spec.count, SumElement(options));
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<Store>> Store::Create(std::span<const plan::UnitSpec> units,
                                                     std::span<const plan::PartitionSpec> held,
                                                     const StoreOptions& options,
                                                     std::span<std::byte> weights,
                                                     ThreadPool* pool) {
  std::unique_ptr<Store> store(new Store(options, pool));
  SHOAL_RETURN_IF_ERROR(store->Allocate(units, held, weights));
  store->BuildChunks();
  return store;
}

absl::Status Store::Allocate(std::span<const plan::UnitSpec> units,
                             std::span<const plan::PartitionSpec> held,
                             std::span<std::byte> weights) {
  const StoreBytes bytes = CountStoreBytes(held, options_);
  SHOAL_CHECK(static_cast<int64_t>(weights.size()) >= bytes.weights);
  SHOAL_ASSIGN_OR_RETURN(master_, PageBuffer::Allocate(bytes.master + kPage));
  SHOAL_ASSIGN_OR_RETURN(moments_, PageBuffer::Allocate(bytes.moments + kPage));
  SHOAL_ASSIGN_OR_RETURN(gradients_, PageBuffer::Allocate(bytes.gradients + kPage));
  int64_t wire = HeadersBytes(held.size());
  int64_t state = 0;
  int64_t sum = 0;
  for (const plan::PartitionSpec& spec : held) {
    SHOAL_CHECK(partitions_.empty() || partitions_.back()->spec().id < spec.id);
    const int64_t wire_bytes =
        RoundUp(spec.count * SizeOf(options_.wire_type), transport::kBufferAlignment);
    const WeightsPlace place = {
        .header = static_cast<int64_t>(partitions_.size() * sizeof(transport::PartitionHeader)),
        .buffers = {wire, wire + wire_bytes}};
    const bool exact = options_.accumulate == plan::Accumulate::kExact;
    const Partition::Memory memory = {
        .header = reinterpret_cast<transport::PartitionHeader*>(weights.data() + place.header),
        .wire = {weights.data() + place.buffers[0], weights.data() + place.buffers[1]},
        .master = master_.as<float>(kMasterStart + state),
        .m = moments_.as<float>(kMomentsStart + 2 * state),
        .v = moments_.as<float>(kMomentsStart + 2 * state + ArrayBytes(spec.count, sizeof(float))),
        .sum = exact ? nullptr : gradients_.as<float>(kGradientsStart + sum),
        .exact_sum = exact ? gradients_.as<int64_t>(kGradientsStart + sum) : nullptr};
    index_[spec.id] = partitions_.size();
    partitions_.push_back(std::make_unique<Partition>(
        spec, plan::DecayRanges(units[static_cast<size_t>(spec.unit)], spec), place, memory));
    wire += 2 * wire_bytes;
    state += ArrayBytes(spec.count, sizeof(float));
    sum += ArrayBytes(spec.count, SumElement(options_));
  }
  return absl::OkStatus();
}

void Store::BuildChunks() {
  for (size_t p = 0; p < partitions_.size(); ++p) {
    const int64_t count = partitions_[p]->spec().count;
    for (int64_t begin = 0; begin < count; begin += kReductionChunk) {
      reduction_chunks_.push_back({p, begin, std::min(begin + kReductionChunk, count), false});
    }
    first_update_chunk_.push_back(update_chunks_.size());
    // Chunk borders every kUpdateChunk and wherever decay begins or ends.
    const auto add = [&](int64_t begin, int64_t end, bool decays) {
      for (; begin < end; begin += kUpdateChunk) {
        update_chunks_.push_back({p, begin, std::min(begin + kUpdateChunk, end), decays});
      }
    };
    int64_t done = 0;
    for (const plan::DecayRange& range : partitions_[p]->decay()) {
      add(done, range.begin, false);
      add(range.begin, range.end, true);
      done = range.end;
    }
    add(done, count, false);
  }
  first_update_chunk_.push_back(update_chunks_.size());
}

Partition* Store::Find(int partition) {
  const auto found = index_.find(partition);
  return found == index_.end() ? nullptr : partitions_[found->second].get();
}

absl::Status Store::Load(int64_t version, const StoreSource& source) {
  absl::Mutex mutex;
  absl::Status failure;
  pool_->ParallelFor(static_cast<int64_t>(partitions_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const absl::Status status =
          LoadPartition(*partitions_[static_cast<size_t>(p)], version, source);
      if (!status.ok()) {
        absl::MutexLock lock(&mutex);
        failure.Update(status);
        return;
      }
    }
  });
  SHOAL_RETURN_IF_ERROR(failure);
  version_ = version;
  return absl::OkStatus();
}

absl::Status Store::LoadPartition(Partition& partition, int64_t version,
                                  const StoreSource& source) const {
  const plan::PartitionSpec& spec = partition.spec();
  const Partition::Memory& memory = partition.memory();
  const auto count = static_cast<size_t>(spec.count);
  SHOAL_RETURN_IF_ERROR(source.master(spec.unit, spec.offset, {memory.master, count}));
  for (const auto& [reader, array] :
       {std::pair{&source.m, memory.m}, std::pair{&source.v, memory.v}}) {
    if (*reader) {
      SHOAL_RETURN_IF_ERROR((*reader)(spec.unit, spec.offset, {array, count}));
    } else {
      std::memset(array, 0, count * sizeof(float));
    }
  }
  partition.Clear();
  partition.Seal();  // Touches the accumulator's pages.
  const auto wire_bytes = count * static_cast<size_t>(SizeOf(options_.wire_type));
  std::byte* const wire = memory.wire[version % 2];
  std::memset(memory.wire[(version + 1) % 2], 0, wire_bytes);
  partition.BeginWrite(version);
  if (options_.wire_type == DType::kBF16) {
    Convert(std::span<const float>(memory.master, count), reinterpret_cast<BFloat16*>(wire));
  } else {
    std::memcpy(wire, memory.master, wire_bytes);
  }
  partition.EndWrite(version);
  return absl::OkStatus();
}

void Store::Clear() {
  for (const auto& partition : partitions_) {
    partition->Clear();
  }
}

std::vector<PartitionStatistics> Store::Seal() {
  for (const auto& partition : partitions_) {
    partition->Seal();
  }
  std::vector<GradientStatistics> chunks(reduction_chunks_.size());
  pool_->ParallelFor(static_cast<int64_t>(chunks.size()), 4, [&](int64_t begin, int64_t end) {
    alignas(64) float scratch[kReductionChunk];
    for (int64_t i = begin; i < end; ++i) {
      const Chunk& chunk = reduction_chunks_[static_cast<size_t>(i)];
      const float* gradient =
          partitions_[chunk.partition]->Gradient(chunk.begin, chunk.end, scratch);
      chunks[static_cast<size_t>(i)] =
          GetAccumulateKernels().statistics(gradient, chunk.end - chunk.begin);
    }
  });
  std::vector<PartitionStatistics> statistics(partitions_.size());
  for (size_t p = 0; p < partitions_.size(); ++p) {
    statistics[p].partition = partitions_[p]->spec().id;
    statistics[p].gradient.non_finite = partitions_[p]->refused_elements();
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    GradientStatistics& sum = statistics[reduction_chunks_[i].partition].gradient;
    sum.sum_of_squares += chunks[i].sum_of_squares;
    sum.non_finite += chunks[i].non_finite;
  }
  return statistics;
}

absl::flat_hash_map<uint64_t, PushCount> Store::PushCounts() const {
  absl::flat_hash_map<uint64_t, PushCount> counts;
  for (const auto& partition : partitions_) {
    partition->AddCounts(counts);
  }
  return counts;
}

void Store::UpdateChunk(const Chunk& chunk, const AdamWScalars& scalars, int64_t step) const {
  const Partition& partition = *partitions_[chunk.partition];
  const Partition::Memory& memory = partition.memory();
  const AdamWKernels& kernels = GetAdamWKernels();
  std::byte* const wire = memory.wire[step % 2];
  // A float gradient is used in place; an exact one goes through scratch memory piece by piece.
  const int64_t piece = memory.exact_sum == nullptr ? chunk.end - chunk.begin : kScratch;
  alignas(64) float scratch[kScratch];
  for (int64_t begin = chunk.begin; begin < chunk.end; begin += piece) {
    const int64_t end = std::min(begin + piece, chunk.end);
    const float* gradient = partition.Gradient(begin, end, scratch);
    float* const p = memory.master + begin;
    float* const m = memory.m + begin;
    float* const v = memory.v + begin;
    if (options_.wire_type == DType::kBF16) {
      kernels.bf16(scalars, gradient, p, m, v, reinterpret_cast<BFloat16*>(wire) + begin,
                   end - begin);
    } else {
      kernels.f32(scalars, gradient, p, m, v, reinterpret_cast<float*>(wire) + begin, end - begin);
    }
  }
}

void Store::UpdateChunks(size_t first, size_t last, const AdamWScalars& scalars,
                         int64_t step) const {
  const AdamWScalars without_decay = WithoutDecay(scalars);
  pool_->ParallelFor(static_cast<int64_t>(last - first), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Chunk& chunk = update_chunks_[first + static_cast<size_t>(i)];
      UpdateChunk(chunk, chunk.decays ? scalars : without_decay, step);
    }
  });
}

void Store::Commit(int64_t step, double learning_rate, double clip_coefficient,
                   const std::function<void(size_t)>& ready) {
  SHOAL_CHECK(step == version_ + 1);
  const AdamWScalars scalars =
      MakeAdamWScalars(options_.adamw, step, learning_rate, clip_coefficient);
  for (const auto& partition : partitions_) {
    partition->BeginWrite(step);
  }
  if (ready) {
    for (size_t p = 0; p < partitions_.size(); ++p) {
      ready(p);
      UpdateChunks(first_update_chunk_[p], first_update_chunk_[p + 1], scalars, step);
    }
  } else {
    UpdateChunks(0, update_chunks_.size(), scalars, step);
  }
  for (const auto& partition : partitions_) {
    partition->EndWrite(step);
  }
  version_ = step;
}

std::vector<PartitionChecksum> Store::Checksums() const {
  std::vector<PartitionChecksum> checksums(partitions_.size());
  pool_->ParallelFor(static_cast<int64_t>(partitions_.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto p = static_cast<size_t>(begin); p < static_cast<size_t>(end); ++p) {
      const std::span<const float> master = partitions_[p]->master();
      checksums[p] = {.partition = partitions_[p]->spec().id,
                      .hash = XXH3_64bits(master.data(), master.size_bytes())};
    }
  });
  return checksums;
}

}  // namespace shoal::server
