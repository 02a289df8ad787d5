#include "core/gpu/fake_cuda/hung_work.h"

#include "core/base/check.h"
#include "core/gpu/fake_cuda/machine.h"

namespace shoal::gpu {
namespace {

using emulation::Machine;

std::shared_ptr<emulation::Point> PutOn(cudaStream_t stream) {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  CUstream_st* const found = machine.Find(stream);
  SHOAL_CHECK(found != nullptr);
  std::shared_ptr<emulation::Point> end = machine.NewOutsidePoint();
  machine.PutWait(*found, end);
  return end;
}

}  // namespace

HungWork::HungWork(cudaStream_t stream) : end_(PutOn(stream)) {}

HungWork::~HungWork() {
  Machine& machine = Machine::The();
  absl::MutexLock lock(&machine.mutex);
  machine.FinishOutsidePoint(*end_);
}

}  // namespace shoal::gpu
