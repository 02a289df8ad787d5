#include "server/store/cuda/cuda_state.h"

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/mutex.h"
#include "core/base/status.h"
#include "core/gpu/cuda_context.h"
#include "core/gpu/shared_buffer.h"
#include "core/plan/memory/server_memory.h"
#include "server/store/cuda/accumulate.h"
#include "server/store/cuda/adamw.h"
#include "server/store/cuda/gpu_arrays.h"
#include "server/store/cuda/pinned_memory.h"
#include "server/store/cuda/staging_stream.h"
#include "server/store/cuda/staging_transfers.h"

namespace shoal::server {
namespace {

using gpu::CudaContext;
using Arrays = cuda::PartitionArrays;
using cuda::StagingStream;

gpu::Element ElementOf(DType type) {
  return type == DType::kBF16 ? gpu::Element::kBf16 : gpu::Element::kF32;
}

size_t Bytes(int64_t count, int64_t element) { return static_cast<size_t>(count * element); }

class CudaState final : public PartitionState {
 public:
  CudaState(std::shared_ptr<CudaContext> context, const StateLayout& layout)
      : context_(std::move(context)), layout_(layout) {}
  ~CudaState() override;
  // Allocates memory and streams.
  absl::Status Prepare();

  absl::StatusOr<std::shared_ptr<std::byte>> AllocateShared(int64_t bytes) override;
  absl::Status Load(size_t partition, const StoreSource& source,
                    const WeightsBuffers& weights) override;
  absl::Status Add(size_t partition, DType dtype, const std::byte* payload, PayloadMemory place,
                   bool first) override;
  absl::Status Clear(size_t partition) override;
  absl::StatusOr<std::vector<GradientStatistics>> Statistics() override;
  void ClearFrozen(size_t partition) override;
  absl::Status ReadGradient(size_t partition, int64_t begin, std::span<float> out) const override;
  absl::Status Update(size_t first, size_t last, std::span<const UpdateScalars> scalars,
                      std::span<const WeightsBuffers> weights) override;
  absl::Status Finish() override;
  absl::Status CopyToHost(size_t partition, const WeightsBuffers& weights) override;
  absl::Status CopyToShared(const WeightsBuffers& weights, int64_t bytes) override;
  absl::StatusOr<std::span<const float>> Read(size_t partition, StateArray array,
                                              std::vector<float>& scratch) const override;
  absl::Status ReadPart(size_t partition, StateArray array, int64_t begin,
                        std::span<float> out) const override;
  std::unique_ptr<Pinned> Pin(std::span<std::byte> memory) override;

 private:
  StagingStream& StreamOf(size_t partition) const { return streams_[partition % streams_.size()]; }
  // Call the following with the stream's mutex held and the GPU current.
  absl::Status PutZeros(const Arrays& arrays, cudaStream_t stream);
  absl::Status PutFrozenZeros(size_t partition, cudaStream_t stream);
  // Enqueues the addition of a payload on the GPU.
  absl::Status PutAddition(const Arrays& arrays, const StagingStream& staged, DType dtype,
                           const void* payload, bool first);
  absl::Status PutUpdate(size_t partition, const StagingStream& staged,
                         std::span<const UpdateScalars> scalars, const WeightsBuffers& weights);
  absl::Status PutCopyToHost(const Arrays& arrays, const StagingStream& staged, std::byte* host,
                             const void* from);
  // Returns the sum as floats, valid once what is on the stream is done.
  absl::StatusOr<const float*> PutGradient(const Arrays& arrays, const StagingStream& staged);

  const std::shared_ptr<CudaContext> context_;
  const StateLayout layout_;
  cuda::GpuArrays arrays_;
  mutable std::array<StagingStream, plan::kServerGpuStreams> streams_;
};

CudaState::~CudaState() {
  for (StagingStream& staged : streams_) {
    staged.Close(*context_);
  }
}

absl::Status CudaState::Prepare() {
  SHOAL_RETURN_IF_ERROR(arrays_.Allocate(*context_, layout_));
  for (StagingStream& staged : streams_) {
    SHOAL_RETURN_IF_ERROR(staged.Open(*context_, layout_));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<std::byte>> CudaState::AllocateShared(int64_t bytes) {
  StagingStream& staged = streams_[0];
  absl::MutexLock lock(&staged.mutex);
  return gpu::AllocateShared(context_, staged.stream, bytes);
}

std::unique_ptr<PartitionState::Pinned> CudaState::Pin(std::span<std::byte> memory) {
  return cuda::Pin(context_, memory);
}

absl::Status CudaState::Load(size_t partition, const StoreSource& source,
                             const WeightsBuffers& weights) {
  StagingStream& staged = StreamOf(partition);
  // A source may call another server, which takes locks of its own. Nothing else is asked of this
  // state meanwhile, so that says nothing about the order of locks later.
  const absl::Cleanup forget = [&staged] { staged.mutex.ForgetDeadlockInfo(); };
  absl::MutexLock lock(&staged.mutex);
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  return cuda::LoadPartition(*context_, staged, layout_.partitions[partition], arrays_[partition],
                             source, layout_.options.wire_type, weights);
}

absl::StatusOr<std::span<const float>> CudaState::Read(size_t partition, StateArray array,
                                                       std::vector<float>& scratch) const {
  scratch.resize(static_cast<size_t>(arrays_[partition].count));
  SHOAL_RETURN_IF_ERROR(ReadPart(partition, array, /*begin=*/0, scratch));
  return std::span<const float>(scratch);
}

absl::Status CudaState::ReadPart(size_t partition, StateArray array, int64_t begin,
                                 std::span<float> out) const {
  StagingStream& staged = StreamOf(partition);
  absl::MutexLock lock(&staged.mutex);
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  const float* const whole = arrays_[partition].state[static_cast<size_t>(array)];
  return cuda::ReadArray(*context_, staged, whole + begin, out);
}

void CudaState::ClearFrozen(size_t partition) {
  StagingStream& staged = StreamOf(partition);
  absl::MutexLock lock(&staged.mutex);
  if (context_->MakeCurrent().ok()) {  // a GPU that fails says so in Statistics
    PutFrozenZeros(partition, staged.stream).IgnoreError();
  }
}

absl::Status CudaState::ReadGradient(size_t partition, int64_t begin, std::span<float> out) const {
  const Arrays& arrays = arrays_[partition];
  StagingStream& staged = StreamOf(partition);
  absl::MutexLock lock(&staged.mutex);
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  if (arrays.exact_sum == nullptr) {
    return cuda::ReadArray(*context_, staged, arrays.sum + begin, out);
  }
  auto* const gradient = staged.gradient.as<float>();
  SHOAL_RETURN_IF_ERROR(
      context_->Check(cuda::ExactToFloat(staged.stream, arrays.exact_sum + begin, gradient,
                                         static_cast<int64_t>(out.size())),
                      "rounding a sum"));
  return cuda::ReadArray(*context_, staged, gradient, out);
}

absl::Status CudaState::PutZeros(const Arrays& arrays, cudaStream_t stream) {
  constexpr const char* kWhat = "clearing a sum of gradients";
  if (arrays.exact_sum == nullptr) {
    return context_->Check(cudaMemsetAsync(arrays.sum, 0, Bytes(arrays.count, 4), stream), kWhat);
  }
  SHOAL_RETURN_IF_ERROR(context_->Check(
      cudaMemsetAsync(arrays.refused, 0, Bytes(cuda::ExactBlocks(arrays.count), 8), stream),
      kWhat));
  return context_->Check(cudaMemsetAsync(arrays.exact_sum, 0, Bytes(arrays.count, 8), stream),
                         kWhat);
}

absl::Status CudaState::PutFrozenZeros(size_t partition, cudaStream_t stream) {
  const Arrays& arrays = arrays_[partition];
  for (const UpdateRange& range : layout_.updates[partition]) {
    if (!layout_.frozen(range)) {
      continue;
    }
    const int64_t count = range.end - range.begin;
    const cudaError_t put =
        arrays.exact_sum != nullptr
            ? cudaMemsetAsync(arrays.exact_sum + range.begin, 0, Bytes(count, 8), stream)
            : cudaMemsetAsync(arrays.sum + range.begin, 0, Bytes(count, 4), stream);
    SHOAL_RETURN_IF_ERROR(context_->Check(put, "clearing what is frozen"));
  }
  return absl::OkStatus();
}

absl::Status CudaState::PutAddition(const Arrays& arrays, const StagingStream& staged, DType dtype,
                                    const void* payload, bool first) {
  const gpu::Element element = ElementOf(dtype);
  if (arrays.exact_sum != nullptr) {
    if (first) {
      SHOAL_RETURN_IF_ERROR(PutZeros(arrays, staged.stream));
    }
    return context_->Check(cuda::AddExactGradient(staged.stream, payload, element, arrays.exact_sum,
                                                  arrays.refused, arrays.count),
                           "adding a push");
  }
  const auto add = first ? cuda::SetGradient : cuda::AddGradient;
  return context_->Check(add(staged.stream, payload, element, arrays.sum, arrays.count),
                         "adding a push");
}

absl::Status CudaState::Add(size_t partition, DType dtype, const std::byte* payload,
                            PayloadMemory place, bool first) {
  const bool on_host = place == PayloadMemory::kHost;
  const char* const what = on_host ? "copying a push" : "adding a push";
  const Arrays& arrays = arrays_[partition];
  StagingStream& staged = StreamOf(partition);
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  SHOAL_ASSIGN_OR_RETURN(cudaEvent_t const taken, context_->TakeEvent());
  bool to_wait_for = false;
  const absl::Status put = [&]() -> absl::Status {
    absl::MutexLock lock(&staged.mutex);
    // The work that reads the payload: a copy from the host, or else the addition itself.
    if (on_host) {
      SHOAL_RETURN_IF_ERROR(context_->Check(
          cudaMemcpyAsync(staged.elements.as<void>(), payload, Bytes(arrays.count, SizeOf(dtype)),
                          cudaMemcpyHostToDevice, staged.stream),
          what));
    } else {
      SHOAL_RETURN_IF_ERROR(PutAddition(arrays, staged, dtype, payload, first));
    }
    const absl::Status recorded = context_->Check(cudaEventRecord(taken, staged.stream), what);
    if (!recorded.ok()) {
      context_->Synchronize(staged.stream, what).IgnoreError();  // as it may read the payload
      return recorded;
    }
    to_wait_for = true;
    return on_host ? PutAddition(arrays, staged, dtype, staged.elements.as<void>(), first)
                   : absl::OkStatus();
  }();
  const absl::Status done =
      to_wait_for ? context_->Await({.event = taken}, what) : absl::OkStatus();
  context_->GiveEvent(taken);
  return put.ok() ? done : put;
}

absl::Status CudaState::Clear(size_t partition) {
  StagingStream& staged = StreamOf(partition);
  absl::MutexLock lock(&staged.mutex);
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  return PutZeros(arrays_[partition], staged.stream);
}

absl::StatusOr<const float*> CudaState::PutGradient(const Arrays& arrays,
                                                    const StagingStream& staged) {
  if (arrays.exact_sum == nullptr) {
    return arrays.sum;
  }
  auto* const gradient = staged.gradient.as<float>();
  SHOAL_RETURN_IF_ERROR(
      context_->Check(cuda::ExactToFloat(staged.stream, arrays.exact_sum, gradient, arrays.count),
                      "rounding a sum"));
  return gradient;
}

absl::StatusOr<std::vector<GradientStatistics>> CudaState::Statistics() {
  constexpr const char* kWhat = "measuring gradients";
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  for (size_t p = 0; p < arrays_.size(); ++p) {
    if (arrays_[p].count == 0) {
      continue;
    }
    StagingStream& staged = StreamOf(p);
    absl::MutexLock lock(&staged.mutex);
    SHOAL_RETURN_IF_ERROR(PutFrozenZeros(p, staged.stream));
    SHOAL_ASSIGN_OR_RETURN(const float* gradient, PutGradient(arrays_[p], staged));
    SHOAL_RETURN_IF_ERROR(context_->Check(
        cuda::GradientStatistics(staged.stream, gradient, arrays_[p].chunks, arrays_[p].count),
        kWhat));
  }
  SHOAL_RETURN_IF_ERROR(Finish());
  std::vector<cuda::ChunkStatistics> chunks(arrays_.chunks().size());
  std::vector<int64_t> refused(arrays_.refused().size());
  SHOAL_RETURN_IF_ERROR(context_->Check(
      cudaMemcpyAsync(chunks.data(), arrays_.chunks().data(), chunks.size() * sizeof(chunks[0]),
                      cudaMemcpyDeviceToHost, streams_[0].stream),
      kWhat));
  SHOAL_RETURN_IF_ERROR(context_->Check(
      cudaMemcpyAsync(refused.data(), arrays_.refused().data(), refused.size() * sizeof(refused[0]),
                      cudaMemcpyDeviceToHost, streams_[0].stream),
      kWhat));
  SHOAL_RETURN_IF_ERROR(context_->Synchronize(streams_[0].stream, kWhat));
  // In the host's order, which decides the last bits.
  std::vector<GradientStatistics> statistics(arrays_.size());
  auto chunk = chunks.begin();
  auto block = refused.begin();
  for (size_t p = 0; p < arrays_.size(); ++p) {
    if (arrays_[p].exact_sum != nullptr) {
      for (int64_t i = cuda::ExactBlocks(arrays_[p].count); i > 0; --i) {
        statistics[p].non_finite += *block++;
      }
    }
    for (int64_t i = cuda::StatisticsChunks(arrays_[p].count); i > 0; --i, ++chunk) {
      statistics[p].sum_of_squares += chunk->sum_of_squares;
      statistics[p].non_finite += chunk->non_finite;
    }
  }
  return statistics;
}

absl::Status CudaState::PutCopyToHost(const Arrays& arrays, const StagingStream& staged,
                                      std::byte* host, const void* from) {
  return context_->Check(
      cudaMemcpyAsync(host, from, Bytes(arrays.count, SizeOf(layout_.options.wire_type)),
                      cudaMemcpyDeviceToHost, staged.stream),
      "copying new weights");
}

absl::Status CudaState::PutUpdate(size_t partition, const StagingStream& staged,
                                  std::span<const UpdateScalars> scalars,
                                  const WeightsBuffers& weights) {
  constexpr const char* kWhat = "updating weights";
  const Arrays& arrays = arrays_[partition];
  const int64_t wire_element = SizeOf(layout_.options.wire_type);
  std::byte* const wire =
      weights.shared != nullptr ? weights.shared : staged.elements.as<std::byte>();
  SHOAL_ASSIGN_OR_RETURN(const float* gradient, PutGradient(arrays, staged));
  for (const UpdateRange& range : layout_.updates[partition]) {
    SHOAL_RETURN_IF_ERROR(context_->Check(
        cuda::AdamW(staged.stream, {.scalars = scalars[range.rule],
                                    .gradient = gradient + range.begin,
                                    .master = arrays.state[0] + range.begin,
                                    .m = arrays.state[1] + range.begin,
                                    .v = arrays.state[2] + range.begin,
                                    .wire = wire + range.begin * wire_element,
                                    .wire_element = ElementOf(layout_.options.wire_type),
                                    .count = range.end - range.begin}),
        kWhat));
  }
  return weights.host == nullptr ? absl::OkStatus()
                                 : PutCopyToHost(arrays, staged, weights.host, wire);
}

absl::Status CudaState::Update(size_t first, size_t last, std::span<const UpdateScalars> scalars,
                               std::span<const WeightsBuffers> weights) {
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  for (size_t p = first; p < last; ++p) {
    if (arrays_[p].count == 0) {
      continue;
    }
    StagingStream& staged = StreamOf(p);
    absl::MutexLock lock(&staged.mutex);
    SHOAL_RETURN_IF_ERROR(PutUpdate(p, staged, scalars, weights[p - first]));
  }
  return absl::OkStatus();
}

absl::Status CudaState::Finish() {
  for (const StagingStream& staged : streams_) {
    SHOAL_RETURN_IF_ERROR(context_->Synchronize(staged.stream, "work on partitions"));
  }
  return absl::OkStatus();
}

absl::Status CudaState::CopyToHost(size_t partition, const WeightsBuffers& weights) {
  StagingStream& staged = StreamOf(partition);
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  {
    absl::MutexLock lock(&staged.mutex);
    SHOAL_RETURN_IF_ERROR(PutCopyToHost(arrays_[partition], staged, weights.host, weights.shared));
  }
  return context_->Synchronize(staged.stream, "copying weights to the host");
}

absl::Status CudaState::CopyToShared(const WeightsBuffers& weights, int64_t bytes) {
  constexpr const char* kWhat = "copying weights from the host";
  StagingStream& staged = streams_[0];
  absl::MutexLock lock(&staged.mutex);
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  SHOAL_RETURN_IF_ERROR(
      context_->Check(cudaMemcpyAsync(weights.shared, weights.host, static_cast<size_t>(bytes),
                                      cudaMemcpyHostToDevice, staged.stream),
                      kWhat));
  return context_->Synchronize(staged.stream, kWhat);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PartitionState>> MakeCudaState(int gpu, const StateLayout& layout,
                                                              Clock& clock) {
  SHOAL_ASSIGN_OR_RETURN(std::shared_ptr<CudaContext> context, CudaContext::Create(gpu, clock));
  auto state = std::make_unique<CudaState>(std::move(context), layout);
  SHOAL_RETURN_IF_ERROR(state->Prepare());
  return state;
}

}  // namespace shoal::server
