#include "server/store/host_state.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "core/base/bf16.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/base/testing/planted.h"
#include "server/store/optimizer.h"
#include "server/store/packed_moments.h"

namespace shoal::server {
namespace {

// Elements that one thread updates at a time: a chunk's state (28 B per element) stays within a
// second-level cache.
constexpr int64_t kUpdateChunk = 16384;
// Elements of a sealed exact gradient that are converted to float at a time, on the stack.
constexpr int64_t kScratch = 2048;
// Elements of a moment that are loaded at a time where they are packed.
constexpr size_t kPackedPiece = size_t{1} << 18;
constexpr int64_t kMasterStart = kStateStagger;
constexpr int64_t kMomentsStart = 4 * kStateStagger;
constexpr int64_t kGradientsStart = 8 * kStateStagger;

}  // namespace

absl::StatusOr<std::unique_ptr<PartitionState>> HostState::Create(const StateLayout& layout,
                                                                  ThreadPool* pool) {
  std::unique_ptr<HostState> state(new HostState(layout, pool));
  SHOAL_RETURN_IF_ERROR(state->Allocate());
  state->BuildChunks();
  return state;
}

absl::Status HostState::Allocate() {
  int64_t state = 0;
  int64_t moments = 0;
  int64_t sum = 0;
  const auto moment_bytes = [](const plan::PartitionSpec& spec) {
    return StateArrayBytes(spec.moments.ArrayBytes(spec.count), 1);
  };
  for (const plan::PartitionSpec& spec : layout_.partitions) {
    SHOAL_CHECK(spec.moments == plan::MomentsOf(layout_.options.optimizer.kind));
    state += StateArrayBytes(spec.count, sizeof(float));
    moments += spec.moment_arrays() * moment_bytes(spec);
    sum += StateArrayBytes(spec.count, layout_.options.sum_element());
  }
  SHOAL_ASSIGN_OR_RETURN(master_, PageBuffer::Allocate(state + kStatePage));
  SHOAL_ASSIGN_OR_RETURN(moments_, PageBuffer::Allocate(moments + kStatePage));
  SHOAL_ASSIGN_OR_RETURN(gradients_, PageBuffer::Allocate(sum + kStatePage));
  state = 0;
  moments = 0;
  sum = 0;
  const bool exact = layout_.options.exact();
  for (const plan::PartitionSpec& spec : layout_.partitions) {
    const auto moment = [&](int which) {
      return which < spec.moments.arrays
                 ? moments_.as<std::byte>(kMomentsStart + moments + which * moment_bytes(spec))
                 : nullptr;
    };
    arrays_.push_back(
        {.count = spec.count,
         .master = master_.as<float>(kMasterStart + state),
         .m = moment(0),
         .v = moment(1),
         .sum = exact ? nullptr : gradients_.as<float>(kGradientsStart + sum),
         .exact_sum = exact ? gradients_.as<int64_t>(kGradientsStart + sum) : nullptr});
    state += StateArrayBytes(spec.count, sizeof(float));
    moments += spec.moment_arrays() * moment_bytes(spec);
    sum += StateArrayBytes(spec.count, layout_.options.sum_element());
  }
  return absl::OkStatus();
}

void HostState::BuildChunks() {
  for (size_t p = 0; p < arrays_.size(); ++p) {
    const int64_t count = arrays_[p].count;
    for (int64_t begin = 0; begin < count; begin += kReductionChunk) {
      reduction_chunks_.push_back({p, begin, std::min(begin + kReductionChunk, count)});
    }
    first_update_chunk_.push_back(update_chunks_.size());
    for (const UpdateRange& range : layout_.updates[p]) {
      for (int64_t begin = range.begin; begin < range.end; begin += kUpdateChunk) {
        update_chunks_.push_back({p, begin, std::min(begin + kUpdateChunk, range.end), range.rule});
      }
    }
  }
  first_update_chunk_.push_back(update_chunks_.size());
  std::ranges::copy_if(update_chunks_, std::back_inserter(frozen_chunks_),
                       [this](const Chunk& chunk) { return layout_.rules[chunk.rule].frozen; });
}

absl::StatusOr<std::shared_ptr<std::byte>> HostState::AllocateShared(int64_t /*bytes*/) {
  return Unimplemented("partitions lie in memory of the host");
}

absl::Status HostState::CopyToHost(size_t /*partition*/, const WeightsBuffers& /*weights*/) {
  return Unimplemented("partitions lie in memory of the host");
}

absl::Status HostState::CopyToShared(const WeightsBuffers& /*weights*/, int64_t /*bytes*/) {
  return Unimplemented("partitions lie in memory of the host");
}

absl::Status HostState::Load(size_t partition, const StoreSource& source,
                             const WeightsBuffers& weights) {
  const plan::PartitionSpec& spec = layout_.partitions[partition];
  const Arrays& arrays = arrays_[partition];
  const auto count = static_cast<size_t>(spec.count);
  SHOAL_RETURN_IF_ERROR(source.master(spec.unit, spec.offset, {arrays.master, count}));
  SHOAL_RETURN_IF_ERROR(LoadMoment(source.m, partition, /*second=*/false));
  SHOAL_RETURN_IF_ERROR(LoadMoment(source.v, partition, /*second=*/true));
  if (weights.host == nullptr) {
    return absl::OkStatus();  // a backup
  }
  if (layout_.options.wire_type == DType::kBF16) {
    Convert(std::span<const float>(arrays.master, count),
            reinterpret_cast<BFloat16*>(weights.host));
  } else {
    std::memcpy(weights.host, arrays.master, count * sizeof(float));
  }
  return absl::OkStatus();
}

absl::Status HostState::LoadMoment(const plan::UnitReader& reader, size_t partition,
                                   bool second) const {
  const plan::PartitionSpec& spec = layout_.partitions[partition];
  std::byte* const array = second ? arrays_[partition].v : arrays_[partition].m;
  if (array == nullptr) {
    return absl::OkStatus();
  }
  if (!reader || SHOAL_PLANTED("moments-forgotten")) {
    std::memset(array, 0, static_cast<size_t>(spec.moments.ArrayBytes(spec.count)));
    return absl::OkStatus();
  }
  const auto count = static_cast<size_t>(spec.count);
  if (!spec.moments.packed) {
    return reader(spec.unit, spec.offset, {reinterpret_cast<float*>(array), count});
  }
  std::vector<float> values(std::min(count, kPackedPiece));
  for (size_t begin = 0; begin < count; begin += values.size()) {
    const auto at = static_cast<int64_t>(begin);
    const std::span<float> piece = std::span(values).first(std::min(values.size(), count - begin));
    SHOAL_RETURN_IF_ERROR(reader(spec.unit, spec.offset + at, piece));
    PackMoments(piece.data(), array + spec.moments.ArrayBytes(at), std::ssize(piece), second);
  }
  return absl::OkStatus();
}

absl::Status HostState::Add(size_t partition, DType dtype, const std::byte* payload,
                            PayloadMemory place, bool first) {
  SHOAL_CHECK(place == PayloadMemory::kHost);
  const AccumulateKernels& kernels = GetAccumulateKernels();
  Arrays& arrays = arrays_[partition];
  const auto* f32 = reinterpret_cast<const float*>(payload);
  const auto* bf16 = reinterpret_cast<const BFloat16*>(payload);
  const bool wide = dtype == DType::kF32;
  if (arrays.exact_sum != nullptr) {
    if (first) {
      SHOAL_RETURN_IF_ERROR(Clear(partition));
    }
    arrays.refused += wide ? kernels.add_exact_f32(f32, arrays.exact_sum, arrays.count)
                           : kernels.add_exact_bf16(bf16, arrays.exact_sum, arrays.count);
  } else if (first) {
    wide ? kernels.set_f32(f32, arrays.sum, arrays.count)
         : kernels.set_bf16(bf16, arrays.sum, arrays.count);
  } else {
    wide ? kernels.add_f32(f32, arrays.sum, arrays.count)
         : kernels.add_bf16(bf16, arrays.sum, arrays.count);
  }
  return absl::OkStatus();
}

absl::Status HostState::Clear(size_t partition) {
  Arrays& arrays = arrays_[partition];
  const auto count = static_cast<size_t>(arrays.count);
  arrays.refused = 0;
  if (arrays.exact_sum != nullptr) {
    std::memset(arrays.exact_sum, 0, count * sizeof(int64_t));
  } else {
    std::memset(arrays.sum, 0, count * sizeof(float));
  }
  return absl::OkStatus();
}

const float* HostState::Gradient(const Arrays& arrays, int64_t begin, int64_t end, float* scratch) {
  if (arrays.exact_sum == nullptr) {
    return arrays.sum + begin;
  }
  GetAccumulateKernels().exact_to_float(arrays.exact_sum + begin, scratch, end - begin);
  return scratch;
}

// A float sum that is not finite is forgotten with it; an exact one has refused what was not finite
// and counted that, so such a step is refused though nothing here would change.
void HostState::ClearFrozen() {
  pool_->ParallelFor(std::ssize(frozen_chunks_), 1, [this](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Chunk& chunk = frozen_chunks_[static_cast<size_t>(i)];
      ClearSum(arrays_[chunk.partition], chunk.begin, chunk.end);
    }
  });
}

void HostState::ClearFrozen(size_t partition) {
  for (const UpdateRange& range : layout_.updates[partition]) {
    if (layout_.frozen(range)) {
      ClearSum(arrays_[partition], range.begin, range.end);
    }
  }
}

void HostState::ClearSum(const Arrays& arrays, int64_t begin, int64_t end) {
  if (arrays.exact_sum != nullptr) {
    std::fill(arrays.exact_sum + begin, arrays.exact_sum + end, 0);
  } else {
    std::fill(arrays.sum + begin, arrays.sum + end, 0.0F);
  }
}

absl::StatusOr<std::vector<GradientStatistics>> HostState::Statistics() {
  ClearFrozen();
  std::vector<GradientStatistics> chunks(reduction_chunks_.size());
  pool_->ParallelFor(static_cast<int64_t>(chunks.size()), 4, [&](int64_t begin, int64_t end) {
    alignas(64) float scratch[kReductionChunk];
    for (int64_t i = begin; i < end; ++i) {
      const Chunk& chunk = reduction_chunks_[static_cast<size_t>(i)];
      const float* gradient = Gradient(arrays_[chunk.partition], chunk.begin, chunk.end, scratch);
      chunks[static_cast<size_t>(i)] =
          GetAccumulateKernels().statistics(gradient, chunk.end - chunk.begin);
    }
  });
  std::vector<GradientStatistics> statistics(arrays_.size());
  for (size_t p = 0; p < arrays_.size(); ++p) {
    statistics[p].non_finite = arrays_[p].refused;
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    GradientStatistics& sum = statistics[reduction_chunks_[i].partition];
    sum.sum_of_squares += chunks[i].sum_of_squares;
    sum.non_finite += chunks[i].non_finite;
  }
  return statistics;
}

absl::Status HostState::ReadGradient(size_t partition, int64_t begin, std::span<float> out) const {
  const int64_t end = begin + std::ssize(out);
  const float* const gradient = Gradient(arrays_[partition], begin, end, out.data());
  if (gradient != out.data()) {
    std::ranges::copy_n(gradient, std::ssize(out), out.begin());
  }
  return absl::OkStatus();
}

absl::Status HostState::WriteGradient(size_t partition, int64_t begin,
                                      std::span<const float> elements) {
  std::ranges::copy(elements, arrays_[partition].sum + begin);
  return absl::OkStatus();
}

absl::Status HostState::LoadGradient(size_t partition, int64_t begin,
                                     const plan::UnitReader& gradient) {
  const plan::PartitionSpec& spec = layout_.partitions[partition];
  return gradient(spec.unit, spec.offset + begin,
                  {arrays_[partition].sum + begin, static_cast<size_t>(spec.count - begin)});
}

void HostState::UpdateChunk(const Chunk& chunk, const UpdateScalars& scalars,
                            std::byte* wire) const {
  const Arrays& arrays = arrays_[chunk.partition];
  const OptimizerKernels& kernels = GetOptimizerKernels(layout_.options.optimizer.kind);
  const plan::Moments& moments = layout_.partitions[chunk.partition].moments;
  // A float gradient is used in place; an exact one goes through scratch memory piece by piece, and
  // so do weights that nobody reads.
  const bool backup = wire == nullptr;
  const bool pieces = backup || arrays.exact_sum != nullptr;
  const int64_t piece = pieces ? kScratch : chunk.end - chunk.begin;
  alignas(64) float scratch[kScratch];
  alignas(64) float unread[kScratch];
  for (int64_t begin = chunk.begin; begin < chunk.end; begin += piece) {
    const int64_t end = std::min(begin + piece, chunk.end);
    const float* gradient = Gradient(arrays, begin, end, scratch);
    float* const p = arrays.master + begin;
    std::byte* const m = arrays.m + moments.ArrayBytes(begin);
    std::byte* const v = arrays.v == nullptr ? nullptr : arrays.v + moments.ArrayBytes(begin);
    if (layout_.options.wire_type == DType::kBF16) {
      auto* const out = reinterpret_cast<BFloat16*>(wire);
      kernels.bf16(scalars, gradient, p, m, v,
                   backup ? reinterpret_cast<BFloat16*>(unread) : out + begin, end - begin);
    } else {
      auto* const out = reinterpret_cast<float*>(wire);
      kernels.f32(scalars, gradient, p, m, v, backup ? unread : out + begin, end - begin);
    }
  }
}

absl::Status HostState::Update(size_t first, size_t last, std::span<const UpdateScalars> scalars,
                               std::span<const WeightsBuffers> weights) {
  const size_t from = first_update_chunk_[first];
  const size_t to = first_update_chunk_[last];
  pool_->ParallelFor(static_cast<int64_t>(to - from), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Chunk& chunk = update_chunks_[from + static_cast<size_t>(i)];
      UpdateChunk(chunk, scalars[chunk.rule], weights[chunk.partition - first].host);
    }
  });
  return absl::OkStatus();
}

void HostState::Drop(size_t partition) {
  const Arrays& arrays = arrays_[partition];
  const auto count = static_cast<size_t>(arrays.count);
  for (float* const array : {arrays.master, arrays.sum}) {
    if (array != nullptr) {
      PageBuffer::Release(std::as_writable_bytes(std::span(array, count)));
    }
  }
  const auto moment_bytes =
      static_cast<size_t>(layout_.partitions[partition].moments.ArrayBytes(arrays.count));
  for (std::byte* const array : {arrays.m, arrays.v}) {
    if (array != nullptr) {
      PageBuffer::Release({array, moment_bytes});
    }
  }
  if (arrays.exact_sum != nullptr) {
    PageBuffer::Release(std::as_writable_bytes(std::span(arrays.exact_sum, count)));
  }
  for (std::vector<Chunk>* const chunks : {&reduction_chunks_, &frozen_chunks_}) {
    std::erase_if(*chunks,
                  [partition](const Chunk& chunk) { return chunk.partition == partition; });
  }
}

absl::StatusOr<std::span<const float>> HostState::Read(size_t partition, StateArray array,
                                                       std::vector<float>& scratch) const {
  const Arrays& arrays = arrays_[partition];
  const auto count = static_cast<size_t>(arrays.count);
  if (array == StateArray::kMaster) {
    return std::span<const float>(arrays.master, count);
  }
  const bool second = array == StateArray::kSecondMoment;
  const std::byte* const moment = second ? arrays.v : arrays.m;
  if (moment == nullptr) {
    return std::span<const float>();
  }
  if (!layout_.partitions[partition].moments.packed) {
    return std::span<const float>(reinterpret_cast<const float*>(moment), count);
  }
  scratch.resize(count);
  UnpackMoments(moment, scratch.data(), arrays.count, second);
  return scratch;
}

absl::Status HostState::ReadPart(size_t partition, StateArray array, int64_t begin,
                                 std::span<float> out) const {
  const auto copy = [&](const void* elements) {
    std::memcpy(out.data(), static_cast<const float*>(elements) + begin, out.size_bytes());
    return absl::OkStatus();
  };
  const Arrays& arrays = arrays_[partition];
  if (array == StateArray::kMaster) {
    return copy(arrays.master);
  }
  const bool second = array == StateArray::kSecondMoment;
  const std::byte* const moment = second ? arrays.v : arrays.m;
  if (moment == nullptr) {
    return InvalidArgument("moments of array {} are not kept by the optimizer",
                           static_cast<int>(array));
  }
  const plan::Moments& kept = layout_.partitions[partition].moments;
  if (!kept.packed) {
    return copy(moment);
  }
  const int64_t first = begin - begin % plan::kPackedBlock;  // blocks are unpacked whole
  const int64_t last =
      RoundUp(begin + static_cast<int64_t>(out.size()), int64_t{plan::kPackedBlock});
  std::vector<float> blocks(static_cast<size_t>(last - first));
  UnpackMoments(moment + kept.ArrayBytes(first), blocks.data(), last - first, second);
  std::copy_n(blocks.begin() + (begin - first), out.size(), out.begin());
  return absl::OkStatus();
}

}  // namespace shoal::server
