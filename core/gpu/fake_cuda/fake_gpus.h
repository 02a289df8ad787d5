// The fake GPUs, what is on their streams, and what has gone wrong. The C
// functions of runtime*.cc are thin wrappers. Only the fake includes it. One lock guards
// everything, and is held while work runs.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/random.h"
#include "core/gpu/fake_cuda/address_space.h"
#include "core/gpu/fake_cuda/fake_cuda.h"

namespace shoal::gpu::fake_cuda {

struct HostRange {
  const std::byte* begin = nullptr;
  int64_t bytes = 0;
};

// A place in a stream's order.
struct Point {
  bool done = false;
  std::chrono::steady_clock::time_point at;
};

struct Work {
  std::function<void()> run;  // none: it only marks or waits
  HostRange host;             // host memory that it uses
  std::vector<std::shared_ptr<Point>> after;
  std::shared_ptr<Point> point;
};

}  // namespace shoal::gpu::fake_cuda

// The runtime's header leaves these types to the runtime.
struct CUstream_st {
  int device = 0;
  bool with_null_stream = false;  // ordered with the null stream both ways
  bool destroyed = false;         // removed once it is empty
  std::deque<shoal::gpu::fake_cuda::Work> queue;
};
struct CUevent_st {
  int device = 0;
  bool timed = false;
  std::shared_ptr<shoal::gpu::fake_cuda::Point> point;  // null: never recorded
};

namespace shoal::gpu::fake_cuda {

class FakeGpus {
 public:
  static FakeGpus& The();

  absl::Mutex mutex;

  void Set(const FakeGpuOptions& gpus) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void FailCall(std::string_view function, int64_t number, cudaError_t error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void FailWork(int64_t number, cudaError_t error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Call it first in each function; returns the error with which the function must fail.
  cudaError_t Begin(std::string_view function) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // The sticky error of the calling thread's GPU.
  cudaError_t sticky() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  CUstream_st* NewStream(bool with_null_stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Returns the stream of a handle; null if there is none.
  CUstream_st* Find(cudaStream_t handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Destroy(CUstream_st& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  std::shared_ptr<Point> Put(CUstream_st& stream, std::function<void()> run, HostRange host = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Ends the process if unfinished work uses host memory that is being freed.
  void CheckUnused(HostRange host) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void PutWait(CUstream_st& stream, std::shared_ptr<Point> point)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Runs work of any stream until the point is done. (On a GPU that has failed nothing runs any
  // more, and everything is done at once.) Returns the error of the calling thread's GPU.
  cudaError_t RunUntil(const Point& point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  cudaError_t RunUntilEmpty(const CUstream_st& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  cudaError_t RunDevice(int device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Runs some work, as if time had passed.
  void RunSome() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Executes `action`, the launch, copy or fill of work that is being run, unless it is meant to
  // fail.
  void Act(int device, const std::function<void()>& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  uint64_t RandomNumber() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return random_->Next(); }

  // Makes a point for work that waits for what other threads have yet to enqueue (a collective's
  // other ranks). While such points exist, a thread that finds nothing to run waits.
  std::shared_ptr<Point> NewOutsidePoint() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void FinishOutsidePoint(Point& point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  FakeGpuOptions gpus ABSL_GUARDED_BY(mutex);
  FakeGpuCounters counters ABSL_GUARDED_BY(mutex);
  std::optional<AddressSpace> memory ABSL_GUARDED_BY(mutex);
  std::set<CUevent_st*> events ABSL_GUARDED_BY(mutex);
  // Dynamic shared memory that a kernel was allowed on a GPU: for the life of the process, as for a
  // loaded kernel.
  std::map<std::pair<int, const void*>, int64_t> allowed_shared ABSL_GUARDED_BY(mutex);

 private:
  struct Failure {
    int64_t left = 0;
    cudaError_t error = cudaSuccess;
  };

  FakeGpus();

  bool RunOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void RunOneOrWait() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool IsReady(const CUstream_st& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  template <typename Done>
  cudaError_t RunWhileNot(Done done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  std::optional<Random> random_ ABSL_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<CUstream_st>> streams_ ABSL_GUARDED_BY(mutex);
  std::vector<CUstream_st*> null_streams_ ABSL_GUARDED_BY(mutex);  // one per GPU
  std::vector<cudaError_t> sticky_ ABSL_GUARDED_BY(mutex);
  std::map<std::string, Failure, std::less<>> call_failures_ ABSL_GUARDED_BY(mutex);
  Failure work_failure_ ABSL_GUARDED_BY(mutex);
  int outside_points_ ABSL_GUARDED_BY(mutex) = 0;  // not done
};

// The calling thread's.
int& CurrentDevice();
cudaError_t& LastError();
// Records an error as the calling thread's last, and returns it.
cudaError_t Noted(cudaError_t error);

}  // namespace shoal::gpu::fake_cuda
