// The state of partitions in host memory. Load touches all of it, so that a machine with too little
// memory says so before training starts. Work is spread over a pool in fixed chunks, so results do
// not depend on the number of threads. See partition_state.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/threads/thread_pool.h"
#include "server/store/page_buffer.h"
#include "server/store/partition_state.h"

namespace shoal::server {

class HostState final : public PartitionState {
 public:
  // `pool` must outlive it.
  static absl::StatusOr<std::unique_ptr<PartitionState>> Create(const StateLayout& layout,
                                                                ThreadPool* pool);

  absl::StatusOr<std::shared_ptr<std::byte>> AllocateShared(int64_t bytes) override;
  absl::Status Load(size_t partition, const StoreSource& source,
                    const WeightsBuffers& weights) override;
  absl::Status Add(size_t partition, DType dtype, const std::byte* payload, PayloadMemory place,
                   bool first) override;
  absl::Status Clear(size_t partition) override;
  absl::StatusOr<std::vector<GradientStatistics>> Statistics() override;
  void ClearFrozen(size_t partition) override;
  absl::Status ReadGradient(size_t partition, int64_t begin, std::span<float> out) const override;
  absl::Status WriteGradient(size_t partition, int64_t begin,
                             std::span<const float> elements) override;
  absl::Status LoadGradient(size_t partition, int64_t begin,
                            const plan::UnitReader& gradient) override;
  absl::Status Update(size_t first, size_t last, std::span<const UpdateScalars> scalars,
                      std::span<const WeightsBuffers> weights) override;
  absl::Status Finish() override { return absl::OkStatus(); }
  absl::Status CopyToHost(size_t partition, const WeightsBuffers& weights) override;
  absl::Status CopyToShared(const WeightsBuffers& weights, int64_t bytes) override;
  absl::StatusOr<std::span<const float>> Read(size_t partition, StateArray array,
                                              std::vector<float>& scratch) const override;
  absl::Status ReadPart(size_t partition, StateArray array, int64_t begin,
                        std::span<float> out) const override;
  void Drop(size_t partition) override;
  std::unique_ptr<Pinned> Pin(std::span<std::byte>) override { return nullptr; }

 private:
  struct Arrays {
    int64_t count = 0;
    float* master = nullptr;
    std::byte* m = nullptr;  // both as plan::Moments says; null: not kept
    std::byte* v = nullptr;
    float* sum = nullptr;          // float mode
    int64_t* exact_sum = nullptr;  // exact mode
    int64_t refused = 0;           // counted by the exact sum since the first push
  };
  // A run of elements of one partition that are updated alike.
  struct Chunk {
    size_t partition = 0;
    int64_t begin = 0;
    int64_t end = 0;
    size_t rule = 0;
  };

  HostState(const StateLayout& layout, ThreadPool* pool) : layout_(layout), pool_(pool) {}
  absl::Status Allocate();
  void BuildChunks();
  void ClearFrozen();  // of all
  static void ClearSum(const Arrays& arrays, int64_t begin, int64_t end);
  absl::Status LoadMoment(const plan::UnitReader& reader, size_t partition, bool second) const;
  // Returns elements [begin, end) of the sum: in place, or converted into `scratch`.
  static const float* Gradient(const Arrays& arrays, int64_t begin, int64_t end, float* scratch);
  void UpdateChunk(const Chunk& chunk, const UpdateScalars& scalars, std::byte* wire) const;

  const StateLayout layout_;
  ThreadPool* const pool_;
  PageBuffer master_, moments_, gradients_;
  std::vector<Arrays> arrays_;              // by partition
  std::vector<Chunk> update_chunks_;        // by partition
  std::vector<size_t> first_update_chunk_;  // by partition, and one past the end
  std::vector<Chunk> reduction_chunks_;     // by partition; ignores `rule`
  std::vector<Chunk> frozen_chunks_;        // those of update_chunks_
};

}  // namespace shoal::server
