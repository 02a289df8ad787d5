// One collective or message of the fake NCCL: what the ranks contribute, and what it does when
// all have come. Only the fake includes it; everything runs under the fake GPUs's lock.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/gpu/fake_cuda/fake_gpus.h"

namespace shoal::worker::fake_nccl {

enum class Kind : uint8_t { kAllGather, kReduceScatter, kMessage };

struct Part {
  bool started = false;
  const void* from = nullptr;
  void* to = nullptr;
  std::shared_ptr<gpu::fake_cuda::Point> done;  // null: this rank has not called yet
};

struct Operation {
  Kind kind = Kind::kAllGather;
  ncclDataType_t type = ncclFloat32;
  size_t count = 0;
  bool matches = true;      // if false, it never happens
  std::vector<Part> parts;  // by rank; of a message: sender, receiver

  bool complete() const;
  // Moves the data. The GPUs' memory must be accessible.
  void Run() const;
};

}  // namespace shoal::worker::fake_nccl
