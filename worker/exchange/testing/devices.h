// The devices on which tests of source and sink run: each test program links one list of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/transport/gpu_memory.h"
#include "worker/backend/backend.h"

namespace shoal::worker {

struct DeviceCase {
  std::string name;
  bool fails = true;  // whether tests can make it fail
  // Makes a device whose streams run late, by the seed; copy number `fail_at_copy` (from 1) of a
  // stream (or of all) fails, 0: none.
  std::function<std::unique_ptr<Device>(uint64_t seed, int64_t fail_at_copy, int64_t budget_bytes)>
      make;
  // Makes it refuse to record one event, that of this number from now (1: the next); null: cannot
  // refuse.
  std::function<void(int64_t number)> refuse_event;
  bool reached = true;  // by transports
  // Access for transports; null: its memory is the host's.
  std::shared_ptr<transport::GpuMemory> reach;
};

std::vector<DeviceCase> DeviceCases();

}  // namespace shoal::worker
