#include "server/store/cuda/cuda_state.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "common/bf16.h"
#include "common/logging.h"
#include "common/status.h"
#include "gpu/cuda_context.h"
#include "gpu/gpu_buffer.h"
#include "plan/memory_plan.h"
#include "server/store/cuda/accumulate.h"
#include "server/store/cuda/adamw.h"

namespace shoal::server {
namespace {

using gpu::CudaContext;
using gpu::GpuBuffer;

constexpr int64_t kStagingElements = plan::kServerStagingElements;

gpu::Element ElementOf(DType type) {
  return type == DType::kBF16 ? gpu::Element::kBf16 : gpu::Element::kF32;
}

size_t Bytes(int64_t count, int64_t element) { return static_cast<size_t>(count * element); }

int64_t StatisticsChunks(int64_t count) {
  return (count + cuda::kStatisticsChunk - 1) / cuda::kStatisticsChunk;
}

cuda::AdamWScalars KernelScalars(const AdamWScalars& scalars) {
  return {.clip = scalars.clip,
          .one_minus_beta1 = scalars.one_minus_beta1,
          .beta2 = scalars.beta2,
          .one_minus_beta2 = scalars.one_minus_beta2,
          .bias_correction2_sqrt = scalars.bias_correction2_sqrt,
          .epsilon = scalars.epsilon,
          .step_size = scalars.step_size,
          .decay_factor = scalars.decay_factor};
}

// A connection may keep its slots longer than the server keeps its state.
class PinnedMemory final : public PartitionState::Pinned {
 public:
  PinnedMemory(std::shared_ptr<CudaContext> context, gpu::PinnedRange range)
      : context_(std::move(context)), range_(std::move(range)) {}

 private:
  const std::shared_ptr<CudaContext> context_;
  gpu::PinnedRange range_;  // goes first
};

// Of AllocateShared: the context stays for as long as somebody has it.
struct SharedMemory {
  std::shared_ptr<CudaContext> context;
  GpuBuffer buffer;
};

class CudaState final : public PartitionState {
 public:
  CudaState(std::shared_ptr<CudaContext> context, const StateLayout& layout)
      : context_(std::move(context)), layout_(layout) {}
  ~CudaState() override;
  // Memory and streams.
  absl::Status Prepare();

  absl::StatusOr<std::shared_ptr<std::byte>> AllocateShared(int64_t bytes) override;
  absl::Status Load(size_t partition, const StoreSource& source,
                    const WeightsBuffers& weights) override;
  absl::Status Add(size_t partition, DType dtype, const std::byte* payload, PayloadPlace place,
                   bool first) override;
  absl::Status Clear(size_t partition) override;
  absl::StatusOr<std::vector<GradientStatistics>> Statistics() override;
  absl::Status Update(size_t first, size_t last, const AdamWScalars& scalars,
                      std::span<const WeightsBuffers> weights) override;
  absl::Status Finish() override;
  absl::Status CopyToHost(size_t partition, const WeightsBuffers& weights) override;
  absl::StatusOr<std::span<const float>> Read(size_t partition, StateArray array,
                                              std::vector<float>& scratch) const override;
  std::unique_ptr<Pinned> Pin(std::span<std::byte> memory) override;

 private:
  struct Arrays {
    int64_t count = 0;
    std::array<float*, 3> state = {};  // by StateArray
    float* sum = nullptr;              // float mode
    int64_t* exact_sum = nullptr;      // exact mode
    int64_t* refused = nullptr;        // exact mode: cuda::ExactBlocks(count) of them
    cuda::ChunkStatistics* chunks = nullptr;
  };
  struct Lane {
    absl::Mutex mutex;  // what is put on the stream in one go, and the staging memory
    cudaStream_t stream = nullptr;
    GpuBuffer elements;  // a partition's: a payload, or new weights in the wire type
    GpuBuffer gradient;  // exact mode: a partition's sum as floats
    GpuBuffer staging;   // staging_elements_ floats; with shared weights as much again
  };

  Lane& LaneOf(size_t partition) const { return lanes_[partition % lanes_.size()]; }
  absl::Status CheckFree(const plan::ServerGpuMemory& needed) const;
  // The rest is called with the lane's mutex held and the GPU current.
  absl::Status PutZeros(const Arrays& arrays, cudaStream_t stream);
  // Of a payload on the GPU.
  absl::Status PutAddition(const Arrays& arrays, const Lane& lane, DType dtype, const void* payload,
                           bool first);
  absl::Status PutUpdate(size_t partition, const Lane& lane, const AdamWScalars& scalars,
                         const WeightsBuffers& weights);
  absl::Status PutCopyToHost(const Arrays& arrays, const Lane& lane, std::byte* host,
                             const void* from);
  // The sum as floats, once what is put on the stream is done.
  absl::StatusOr<const float*> PutGradient(const Arrays& arrays, const Lane& lane);
  absl::Status LoadArray(const plan::PartitionSpec& spec, const RangeReader& reader, float* array,
                         const Lane& lane, const WeightsBuffers& weights);
  // Elements [begin, begin + piece.size()) in the wire type, which is float on the host.
  absl::Status PutPublished(std::span<const float> piece, int64_t begin, const Lane& lane,
                            const WeightsBuffers& weights);

  const std::shared_ptr<CudaContext> context_;
  const StateLayout layout_;
  GpuBuffer master_, moments_, gradients_, refused_, chunks_;
  int64_t refused_count_ = 0;
  int64_t chunk_count_ = 0;
  int64_t staging_elements_ = 0;
  std::vector<Arrays> arrays_;  // by partition
  mutable std::array<Lane, plan::kServerGpuStreams> lanes_;
};

CudaState::~CudaState() {
  for (Lane& lane : lanes_) {
    if (lane.stream != nullptr) {
      (void)context_->MakeCurrent();
      (void)cudaStreamSynchronize(lane.stream);
      context_->DestroyStream(lane.stream);
    }
  }
}

absl::Status CudaState::CheckFree(const plan::ServerGpuMemory& needed) const {
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  size_t free = 0;
  size_t total = 0;
  SHOAL_RETURN_IF_ERROR(
      context_->Check(cudaMemGetInfo(&free, &total), "asking for what memory is free"));
  if (needed.total() > static_cast<int64_t>(free)) {
    return ResourceExhausted(
        "cuda:{}: this server needs {} of its memory (weights {}, master {}, moments {}, gradients "
        "{}, workspace {}), and {} of {} are free; use more servers on other GPUs, a smaller "
        "model, or service.memory: host",
        context_->gpu().index, FormatBytes(needed.total()), FormatBytes(needed.weights),
        FormatBytes(needed.master), FormatBytes(needed.moments), FormatBytes(needed.gradients),
        FormatBytes(needed.workspace), FormatBytes(static_cast<int64_t>(free)),
        FormatBytes(static_cast<int64_t>(total)));
  }
  return absl::OkStatus();
}

absl::Status CudaState::Prepare() {
  constexpr auto kDevice = GpuBuffer::Kind::kDevice;
  const bool exact = layout_.options.exact();
  const plan::ServerGpuMemory needed = plan::PlanServerGpuMemory(
      layout_.partitions, layout_.options.accumulate,
      layout_.options.shared_weights ? layout_.options.wire_type : std::optional<DType>());
  SHOAL_RETURN_IF_ERROR(CheckFree(needed));
  SHOAL_ASSIGN_OR_RETURN(master_, GpuBuffer::Allocate(*context_, kDevice, needed.master));
  SHOAL_ASSIGN_OR_RETURN(moments_, GpuBuffer::Allocate(*context_, kDevice, needed.moments));
  SHOAL_ASSIGN_OR_RETURN(gradients_, GpuBuffer::Allocate(*context_, kDevice, needed.gradients));
  int64_t largest = 0;
  for (const plan::PartitionSpec& spec : layout_.partitions) {
    largest = std::max(largest, spec.count);
    refused_count_ += exact ? cuda::ExactBlocks(spec.count) : 0;
    chunk_count_ += StatisticsChunks(spec.count);
  }
  SHOAL_ASSIGN_OR_RETURN(refused_, GpuBuffer::Allocate(*context_, kDevice, refused_count_ * 8));
  SHOAL_ASSIGN_OR_RETURN(
      chunks_, GpuBuffer::Allocate(*context_, kDevice,
                                   chunk_count_ * int64_t{sizeof(cuda::ChunkStatistics)}));
  staging_elements_ = std::min(largest, kStagingElements);
  int64_t state = 0;
  int64_t sum = 0;
  int64_t refused = 0;
  int64_t chunk = 0;
  for (const plan::PartitionSpec& spec : layout_.partitions) {
    const int64_t bytes = StateArrayBytes(spec.count, sizeof(float));
    arrays_.push_back({.count = spec.count,
                       .state = {master_.as<float>(state), moments_.as<float>(2 * state),
                                 moments_.as<float>(2 * state + bytes)},
                       .sum = exact ? nullptr : gradients_.as<float>(sum),
                       .exact_sum = exact ? gradients_.as<int64_t>(sum) : nullptr,
                       .refused = exact ? refused_.as<int64_t>() + refused : nullptr,
                       .chunks = chunks_.as<cuda::ChunkStatistics>() + chunk});
    state += bytes;
    sum += StateArrayBytes(spec.count, layout_.options.sum_element());
    refused += exact ? cuda::ExactBlocks(spec.count) : 0;
    chunk += StatisticsChunks(spec.count);
  }
  for (Lane& lane : lanes_) {
    // Of high priority: pushes wait for the copies, a step for the rest.
    SHOAL_ASSIGN_OR_RETURN(lane.stream, context_->NewStream(/*copies=*/true));
    SHOAL_ASSIGN_OR_RETURN(lane.elements, GpuBuffer::Allocate(*context_, kDevice, 4 * largest));
    SHOAL_ASSIGN_OR_RETURN(lane.gradient,
                           GpuBuffer::Allocate(*context_, kDevice, exact ? 4 * largest : 0));
    SHOAL_ASSIGN_OR_RETURN(
        lane.staging,
        GpuBuffer::Allocate(*context_, GpuBuffer::Kind::kPinnedHost,
                            (layout_.options.shared_weights ? 8 : 4) * staging_elements_));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<std::byte>> CudaState::AllocateShared(int64_t bytes) {
  constexpr const char* kWhat = "clearing shared memory";
  const int64_t whole = plan::SharedGpuBytes(bytes);  // all of it can be read by who opens it
  SHOAL_ASSIGN_OR_RETURN(GpuBuffer buffer,
                         GpuBuffer::Allocate(*context_, GpuBuffer::Kind::kDevice, whole));
  auto memory = std::make_shared<SharedMemory>();
  memory->context = context_;
  memory->buffer = std::move(buffer);
  auto* const data = memory->buffer.as<std::byte>();
  Lane& lane = lanes_[0];
  absl::MutexLock lock(&lane.mutex);
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  SHOAL_RETURN_IF_ERROR(
      context_->Check(cudaMemsetAsync(data, 0, static_cast<size_t>(whole), lane.stream), kWhat));
  SHOAL_RETURN_IF_ERROR(context_->Synchronize(lane.stream, kWhat));
  return std::shared_ptr<std::byte>(std::move(memory), data);
}

absl::Status CudaState::PutPublished(std::span<const float> piece, int64_t begin, const Lane& lane,
                                     const WeightsBuffers& weights) {
  const bool bf16 = layout_.options.wire_type == DType::kBF16;
  const int64_t element = SizeOf(layout_.options.wire_type);
  std::byte* const wire = weights.host != nullptr
                              ? weights.host + begin * element
                              : lane.staging.as<std::byte>(4 * staging_elements_);
  if (bf16) {
    Convert(piece, reinterpret_cast<BFloat16*>(wire));
  } else {
    std::memcpy(wire, piece.data(), piece.size_bytes());
  }
  if (weights.shared == nullptr) {
    return absl::OkStatus();
  }
  return context_->Check(
      cudaMemcpyAsync(weights.shared + begin * element, wire, piece.size() * Bytes(1, element),
                      cudaMemcpyHostToDevice, lane.stream),
      "publishing a partition");
}

absl::Status CudaState::LoadArray(const plan::PartitionSpec& spec, const RangeReader& reader,
                                  float* array, const Lane& lane, const WeightsBuffers& weights) {
  if (!reader) {
    return context_->Check(cudaMemsetAsync(array, 0, Bytes(spec.count, 4), lane.stream),
                           "filling moments");
  }
  float* const staging = lane.staging.as<float>();
  for (int64_t begin = 0; begin < spec.count; begin += kStagingElements) {
    const int64_t count = std::min(kStagingElements, spec.count - begin);
    const std::span<float> piece(staging, static_cast<size_t>(count));
    SHOAL_RETURN_IF_ERROR(reader(spec.unit, spec.offset + begin, piece));
    if (weights.host != nullptr || weights.shared != nullptr) {
      SHOAL_RETURN_IF_ERROR(PutPublished(piece, begin, lane, weights));
    }
    SHOAL_RETURN_IF_ERROR(
        context_->Check(cudaMemcpyAsync(array + begin, staging, piece.size_bytes(),
                                        cudaMemcpyHostToDevice, lane.stream),
                        "loading a partition"));
    SHOAL_RETURN_IF_ERROR(context_->Synchronize(lane.stream, "loading a partition"));
  }
  return absl::OkStatus();
}

absl::Status CudaState::Load(size_t partition, const StoreSource& source,
                             const WeightsBuffers& weights) {
  const plan::PartitionSpec& spec = layout_.partitions[partition];
  const Arrays& arrays = arrays_[partition];
  Lane& lane = LaneOf(partition);
  absl::MutexLock lock(&lane.mutex);
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  SHOAL_RETURN_IF_ERROR(LoadArray(spec, source.master, arrays.state[0], lane, weights));
  SHOAL_RETURN_IF_ERROR(LoadArray(spec, source.m, arrays.state[1], lane, {}));
  return LoadArray(spec, source.v, arrays.state[2], lane, {});
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

absl::Status CudaState::PutAddition(const Arrays& arrays, const Lane& lane, DType dtype,
                                    const void* payload, bool first) {
  const gpu::Element element = ElementOf(dtype);
  if (arrays.exact_sum != nullptr) {
    if (first) {
      SHOAL_RETURN_IF_ERROR(PutZeros(arrays, lane.stream));
    }
    return context_->Check(cuda::AddExactGradient(lane.stream, payload, element, arrays.exact_sum,
                                                  arrays.refused, arrays.count),
                           "adding a push");
  }
  const auto add = first ? cuda::SetGradient : cuda::AddGradient;
  return context_->Check(add(lane.stream, payload, element, arrays.sum, arrays.count),
                         "adding a push");
}

absl::Status CudaState::Add(size_t partition, DType dtype, const std::byte* payload,
                            PayloadPlace place, bool first) {
  const bool on_host = place == PayloadPlace::kHost;
  const char* const what = on_host ? "copying a push" : "adding a push";
  const Arrays& arrays = arrays_[partition];
  Lane& lane = LaneOf(partition);
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  SHOAL_ASSIGN_OR_RETURN(cudaEvent_t const taken, context_->TakeEvent());
  const absl::Status put = [&]() -> absl::Status {
    absl::MutexLock lock(&lane.mutex);
    // What reads the payload: a copy from the host, or else the addition itself.
    if (on_host) {
      SHOAL_RETURN_IF_ERROR(context_->Check(
          cudaMemcpyAsync(lane.elements.as<void>(), payload, Bytes(arrays.count, SizeOf(dtype)),
                          cudaMemcpyHostToDevice, lane.stream),
          what));
    } else {
      SHOAL_RETURN_IF_ERROR(PutAddition(arrays, lane, dtype, payload, first));
    }
    const absl::Status recorded = context_->Check(cudaEventRecord(taken, lane.stream), what);
    if (!recorded.ok()) {
      (void)cudaStreamSynchronize(lane.stream);  // which may read the payload until then
      return recorded;
    }
    return on_host ? PutAddition(arrays, lane, dtype, lane.elements.as<void>(), first)
                   : absl::OkStatus();
  }();
  // Where nothing was recorded there is nothing to wait for.
  const absl::Status done = context_->Await(taken, what);
  context_->GiveEvent(taken);
  return put.ok() ? done : put;
}

absl::Status CudaState::Clear(size_t partition) {
  Lane& lane = LaneOf(partition);
  absl::MutexLock lock(&lane.mutex);
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  return PutZeros(arrays_[partition], lane.stream);
}

absl::StatusOr<const float*> CudaState::PutGradient(const Arrays& arrays, const Lane& lane) {
  if (arrays.exact_sum == nullptr) {
    return arrays.sum;
  }
  auto* const gradient = lane.gradient.as<float>();
  SHOAL_RETURN_IF_ERROR(context_->Check(
      cuda::ExactToFloat(lane.stream, arrays.exact_sum, gradient, arrays.count), "rounding a sum"));
  return gradient;
}

absl::StatusOr<std::vector<GradientStatistics>> CudaState::Statistics() {
  constexpr const char* kWhat = "measuring gradients";
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  for (size_t p = 0; p < arrays_.size(); ++p) {
    Lane& lane = LaneOf(p);
    absl::MutexLock lock(&lane.mutex);
    SHOAL_ASSIGN_OR_RETURN(const float* gradient, PutGradient(arrays_[p], lane));
    SHOAL_RETURN_IF_ERROR(context_->Check(
        cuda::GradientStatistics(lane.stream, gradient, arrays_[p].chunks, arrays_[p].count),
        kWhat));
  }
  SHOAL_RETURN_IF_ERROR(Finish());
  std::vector<cuda::ChunkStatistics> chunks(static_cast<size_t>(chunk_count_));
  std::vector<int64_t> refused(static_cast<size_t>(refused_count_));
  SHOAL_RETURN_IF_ERROR(context_->Check(
      cudaMemcpyAsync(chunks.data(), chunks_.as<void>(), chunks.size() * sizeof(chunks[0]),
                      cudaMemcpyDeviceToHost, lanes_[0].stream),
      kWhat));
  SHOAL_RETURN_IF_ERROR(context_->Check(
      cudaMemcpyAsync(refused.data(), refused_.as<void>(), refused.size() * sizeof(refused[0]),
                      cudaMemcpyDeviceToHost, lanes_[0].stream),
      kWhat));
  SHOAL_RETURN_IF_ERROR(context_->Synchronize(lanes_[0].stream, kWhat));
  // In the order of the host, which decides the last bits.
  std::vector<GradientStatistics> statistics(arrays_.size());
  auto chunk = chunks.begin();
  auto block = refused.begin();
  for (size_t p = 0; p < arrays_.size(); ++p) {
    if (arrays_[p].exact_sum != nullptr) {
      for (int64_t i = cuda::ExactBlocks(arrays_[p].count); i > 0; --i) {
        statistics[p].non_finite += *block++;
      }
    }
    for (int64_t i = StatisticsChunks(arrays_[p].count); i > 0; --i, ++chunk) {
      statistics[p].sum_of_squares += chunk->sum_of_squares;
      statistics[p].non_finite += chunk->non_finite;
    }
  }
  return statistics;
}

absl::Status CudaState::PutCopyToHost(const Arrays& arrays, const Lane& lane, std::byte* host,
                                      const void* from) {
  return context_->Check(
      cudaMemcpyAsync(host, from, Bytes(arrays.count, SizeOf(layout_.options.wire_type)),
                      cudaMemcpyDeviceToHost, lane.stream),
      "copying new weights");
}

absl::Status CudaState::PutUpdate(size_t partition, const Lane& lane, const AdamWScalars& scalars,
                                  const WeightsBuffers& weights) {
  constexpr const char* kWhat = "updating weights";
  const Arrays& arrays = arrays_[partition];
  const int64_t wire_element = SizeOf(layout_.options.wire_type);
  std::byte* const wire =
      weights.shared != nullptr ? weights.shared : lane.elements.as<std::byte>();
  SHOAL_ASSIGN_OR_RETURN(const float* gradient, PutGradient(arrays, lane));
  const auto update = [&](int64_t begin, int64_t end, const AdamWScalars& with) {
    return begin == end
               ? cudaSuccess
               : cuda::AdamW(lane.stream, {.scalars = KernelScalars(with),
                                           .gradient = gradient + begin,
                                           .master = arrays.state[0] + begin,
                                           .m = arrays.state[1] + begin,
                                           .v = arrays.state[2] + begin,
                                           .wire = wire + begin * wire_element,
                                           .wire_element = ElementOf(layout_.options.wire_type),
                                           .count = end - begin});
  };
  const AdamWScalars without_decay = WithoutDecay(scalars);
  int64_t done = 0;
  for (const plan::DecayRange& range : layout_.decay[partition]) {
    SHOAL_RETURN_IF_ERROR(context_->Check(update(done, range.begin, without_decay), kWhat));
    SHOAL_RETURN_IF_ERROR(context_->Check(update(range.begin, range.end, scalars), kWhat));
    done = range.end;
  }
  SHOAL_RETURN_IF_ERROR(context_->Check(update(done, arrays.count, without_decay), kWhat));
  return weights.host == nullptr ? absl::OkStatus()
                                 : PutCopyToHost(arrays, lane, weights.host, wire);
}

absl::Status CudaState::Update(size_t first, size_t last, const AdamWScalars& scalars,
                               std::span<const WeightsBuffers> weights) {
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  for (size_t p = first; p < last; ++p) {
    Lane& lane = LaneOf(p);
    absl::MutexLock lock(&lane.mutex);
    SHOAL_RETURN_IF_ERROR(PutUpdate(p, lane, scalars, weights[p - first]));
  }
  return absl::OkStatus();
}

absl::Status CudaState::Finish() {
  for (const Lane& lane : lanes_) {
    SHOAL_RETURN_IF_ERROR(context_->Synchronize(lane.stream, "work on partitions"));
  }
  return absl::OkStatus();
}

absl::Status CudaState::CopyToHost(size_t partition, const WeightsBuffers& weights) {
  Lane& lane = LaneOf(partition);
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  {
    absl::MutexLock lock(&lane.mutex);
    SHOAL_RETURN_IF_ERROR(PutCopyToHost(arrays_[partition], lane, weights.host, weights.shared));
  }
  return context_->Synchronize(lane.stream, "copying weights to the host");
}

absl::StatusOr<std::span<const float>> CudaState::Read(size_t partition, StateArray array,
                                                       std::vector<float>& scratch) const {
  constexpr const char* kWhat = "reading a partition";
  const Arrays& arrays = arrays_[partition];
  const float* const from = arrays.state[static_cast<size_t>(array)];
  scratch.resize(static_cast<size_t>(arrays.count));
  Lane& lane = LaneOf(partition);
  absl::MutexLock lock(&lane.mutex);
  SHOAL_RETURN_IF_ERROR(context_->MakeCurrent());
  for (int64_t begin = 0; begin < arrays.count; begin += kStagingElements) {
    const size_t bytes = Bytes(std::min(kStagingElements, arrays.count - begin), 4);
    SHOAL_RETURN_IF_ERROR(
        context_->Check(cudaMemcpyAsync(lane.staging.as<void>(), from + begin, bytes,
                                        cudaMemcpyDeviceToHost, lane.stream),
                        kWhat));
    SHOAL_RETURN_IF_ERROR(context_->Synchronize(lane.stream, kWhat));
    std::memcpy(scratch.data() + begin, lane.staging.as<void>(), bytes);
  }
  return std::span<const float>(scratch);
}

std::unique_ptr<PartitionState::Pinned> CudaState::Pin(std::span<std::byte> memory) {
  absl::StatusOr<gpu::PinnedRange> pinned = gpu::PinnedRange::Pin(*context_, memory);
  if (!pinned.ok()) {
    LogWarning("copies from and to the host are slower than they could be: {}",
               Message(pinned.status()));
    return nullptr;
  }
  return std::make_unique<PinnedMemory>(context_, *std::move(pinned));
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
