#include "core/gpu/fake_cuda/hung_work.h"

#include "core/base/check.h"
#include "core/gpu/fake_cuda/fake_gpus.h"

namespace shoal::gpu {
namespace {

using fake_cuda::FakeGpus;

std::shared_ptr<fake_cuda::Point> PutOn(cudaStream_t stream) {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  CUstream_st* const found = fake.Find(stream);
  SHOAL_CHECK(found != nullptr);
  std::shared_ptr<fake_cuda::Point> end = fake.NewOutsidePoint();
  fake.PutWait(*found, end);
  return end;
}

}  // namespace

HungWork::HungWork(cudaStream_t stream) : end_(PutOn(stream)) {}

HungWork::~HungWork() {
  FakeGpus& fake = FakeGpus::The();
  absl::MutexLock lock(&fake.mutex);
  fake.FinishOutsidePoint(*end_);
}

}  // namespace shoal::gpu
