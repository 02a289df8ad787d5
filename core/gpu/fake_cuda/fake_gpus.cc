#include "core/gpu/fake_cuda/fake_gpus.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/gpu/fake_cuda/fault.h"
#include "fmt/format.h"

namespace shoal::gpu::fake_cuda {
namespace {

// A thread that enqueues more on a stream waits, as with a driver.
constexpr size_t kMaxQueue = 1024;
constexpr uint64_t kMostWorkOfAQuery = 4;
// Pause between two looks at what other threads have enqueued.
constexpr absl::Duration kOutsideLook = absl::Microseconds(200);

}  // namespace

FakeGpus& FakeGpus::The() {
  static auto* fake = new FakeGpus;
  return *fake;
}

FakeGpus::FakeGpus() {
  absl::MutexLock lock(&mutex);
  Set({});
}

void FakeGpus::Set(const FakeGpuOptions& new_gpus) {
  gpus = new_gpus;
  counters = {};
  random_.emplace(gpus.seed);
  streams_.clear();
  null_streams_.clear();
  for (CUevent_st* event : events) {
    delete event;
  }
  events.clear();
  memory.emplace();
  sticky_.assign(static_cast<size_t>(gpus.count), cudaSuccess);
  call_failures_.clear();
  work_failure_ = {};
  outside_points_ = 0;
  for (int device = 0; device < gpus.count; ++device) {
    streams_.push_back(std::make_unique<CUstream_st>(CUstream_st{.device = device}));
    null_streams_.push_back(streams_.back().get());
  }
  CurrentDevice() = 0;
  LastError() = cudaSuccess;
}

void FakeGpus::FailCall(std::string_view function, int64_t number, cudaError_t error) {
  call_failures_.insert_or_assign(std::string(function), Failure{.left = number, .error = error});
}

void FakeGpus::FailWork(int64_t number, cudaError_t error) {
  work_failure_ = {.left = number, .error = error};
}

cudaError_t FakeGpus::Begin(std::string_view function) {
  DescribeFaults();
  if (!gpus.driver) {
    return cudaErrorInsufficientDriver;
  }
  if (gpus.count == 0) {
    return cudaErrorNoDevice;
  }
  if (const auto found = call_failures_.find(function);
      found != call_failures_.end() && --found->second.left == 0) {
    const cudaError_t error = found->second.error;
    call_failures_.erase(found);
    return error;
  }
  return sticky();
}

cudaError_t FakeGpus::sticky() {
  const auto device = static_cast<size_t>(CurrentDevice());
  return device < sticky_.size() ? sticky_[device] : cudaSuccess;
}

CUstream_st* FakeGpus::NewStream(bool with_null_stream) {
  streams_.push_back(std::make_unique<CUstream_st>(
      CUstream_st{.device = CurrentDevice(), .with_null_stream = with_null_stream}));
  ++counters.streams;
  return streams_.back().get();
}

CUstream_st* FakeGpus::Find(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    return null_streams_[static_cast<size_t>(CurrentDevice())];
  }
  for (const auto& stream : streams_) {
    if (stream.get() == handle && !stream->destroyed) {
      return handle;
    }
  }
  return nullptr;
}

void FakeGpus::Destroy(CUstream_st& stream) {
  stream.destroyed = true;
  --counters.streams;
  if (stream.queue.empty()) {
    std::erase_if(streams_, [&stream](const auto& other) { return other.get() == &stream; });
  }
}

std::shared_ptr<Point> FakeGpus::Put(CUstream_st& stream, std::function<void()> run,
                                     HostRange host) {
  while (stream.queue.size() >= kMaxQueue) {
    RunOneOrWait();
  }
  memory->Open(AddressSpace::kNone);
  Work work{.run = std::move(run), .host = host, .point = std::make_shared<Point>()};
  CUstream_st* null_stream = null_streams_[static_cast<size_t>(stream.device)];
  if (&stream == null_stream) {
    for (const auto& other : streams_) {
      if (other->device == stream.device && other->with_null_stream && !other->queue.empty()) {
        work.after.push_back(other->queue.back().point);
      }
    }
  } else if (stream.with_null_stream && !null_stream->queue.empty()) {
    work.after.push_back(null_stream->queue.back().point);
  }
  stream.queue.push_back(std::move(work));
  return stream.queue.back().point;
}

void FakeGpus::CheckUnused(HostRange host) {
  for (const auto& stream : streams_) {
    if (sticky_[static_cast<size_t>(stream->device)] != cudaSuccess) {
      continue;  // nothing of it runs any more
    }
    for (const Work& work : stream->queue) {
      if (work.host.begin < host.begin + host.bytes &&
          host.begin < work.host.begin + work.host.bytes) {
        internal::CheckFailed(
            __FILE__, __LINE__,
            fmt::format("pinned memory at {} is given back, and a copy of {} B is still to use it",
                        fmt::ptr(host.begin), work.host.bytes)
                .c_str());
      }
    }
  }
}

void FakeGpus::PutWait(CUstream_st& stream, std::shared_ptr<Point> point) {
  Put(stream, nullptr);
  stream.queue.back().after.push_back(std::move(point));
}

std::shared_ptr<Point> FakeGpus::NewOutsidePoint() {
  ++outside_points_;
  return std::make_shared<Point>();
}

void FakeGpus::FinishOutsidePoint(Point& point) {
  if (!point.done) {
    point.done = true;
    point.at = std::chrono::steady_clock::now();
    --outside_points_;
  }
}

// On a GPU that has failed nothing waits any more.
bool FakeGpus::IsReady(const CUstream_st& stream) {
  return !stream.queue.empty() &&
         (sticky_[static_cast<size_t>(stream.device)] != cudaSuccess ||
          std::ranges::all_of(stream.queue.front().after,
                              [](const auto& point) { return point->done; }));
}

void FakeGpus::RunOneOrWait() {
  if (RunOne()) {
    return;
  }
  // An event can be waited for only once it is recorded, so without those something can always run.
  SHOAL_CHECK(outside_points_ > 0);
  bool never = false;
  mutex.AwaitWithTimeout(absl::Condition(&never), kOutsideLook);
}

bool FakeGpus::RunOne() {
  std::vector<CUstream_st*> ready;
  for (const auto& stream : streams_) {
    if (IsReady(*stream)) {
      ready.push_back(stream.get());
    }
  }
  if (ready.empty()) {
    return false;
  }
  CUstream_st* stream = ready[random_->Below(ready.size())];
  Work& work = stream->queue.front();
  if (work.run != nullptr) {
    work.run();
  }
  work.point->done = true;
  work.point->at = std::chrono::steady_clock::now();
  stream->queue.pop_front();
  if (stream->destroyed && stream->queue.empty()) {
    std::erase_if(streams_, [stream](const auto& other) { return other.get() == stream; });
  }
  return true;
}

template <typename Done>
cudaError_t FakeGpus::RunWhileNot(Done done) {
  while (!done()) {
    RunOneOrWait();
  }
  memory->Open(AddressSpace::kNone);
  return sticky();
}

cudaError_t FakeGpus::RunUntil(const Point& point) {
  return RunWhileNot([&point] { return point.done; });
}

cudaError_t FakeGpus::RunUntilEmpty(const CUstream_st& stream) {
  if (stream.queue.empty()) {
    return sticky();
  }
  const std::shared_ptr<Point> last = stream.queue.back().point;
  return RunUntil(*last);
}

cudaError_t FakeGpus::RunDevice(int device) {
  return RunWhileNot([this, device]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return std::ranges::none_of(streams_, [device](const auto& stream) {
      return stream->device == device && !stream->queue.empty();
    });
  });
}

void FakeGpus::RunSome() {
  for (uint64_t i = random_->Below(kMostWorkOfAQuery); i > 0 && RunOne(); --i) {
  }
  memory->Open(AddressSpace::kNone);
}

void FakeGpus::Act(int device, const std::function<void()>& action) {
  cudaError_t& error = sticky_[static_cast<size_t>(device)];
  if (error != cudaSuccess) {
    return;
  }
  if (work_failure_.left > 0 && --work_failure_.left == 0) {
    error = work_failure_.error;
    return;
  }
  if (gpus.runs != Runs::kNone) {
    action();
  }
}

int& CurrentDevice() {
  static thread_local int device = 0;
  return device;
}

cudaError_t& LastError() {
  static thread_local cudaError_t error = cudaSuccess;
  return error;
}

cudaError_t Noted(cudaError_t error) {
  if (error != cudaSuccess) {
    LastError() = error;
  }
  return error;
}

}  // namespace shoal::gpu::fake_cuda
