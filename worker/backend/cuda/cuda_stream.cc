#include "worker/backend/cuda/cuda_stream.h"

#include <utility>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/gpu/cuda_status.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker::cuda {

CudaEvent::~CudaEvent() { context_.GiveMark(mark_); }

bool CudaEvent::WaitDone(absl::Duration timeout) {
  // Needed even to wait: otherwise the runtime would set up the first GPU for this thread, which
  // need not be ours.
  (void)context_.MakeCurrent();
  return context_.LookUntil(mark_, timeout) != cudaErrorNotReady;
}

absl::Status CudaEvent::Wait() {
  absl::Status status = context_.Await(mark_, "waiting for what is before an event");
  return status_.ok() ? status : status_;
}

absl::Time CudaEvent::at() const {
  return handle() == nullptr ? context_.clock().Now() : context_.TimeOf(handle());
}

CudaStream::CudaStream(CudaContext& context, StreamKind kind) : context_(context) {
  absl::StatusOr<cudaStream_t> stream = context.NewStream(kind == StreamKind::kCopy);
  if (stream.ok()) {
    stream_ = *stream;
  } else {
    error_ = std::move(stream).status();
  }
}

CudaStream::~CudaStream() {
  if (stream_ != nullptr) {
    const absl::Status left = context_.Synchronize(stream_, "what a stream that goes has to do");
    if (absl::IsDeadlineExceeded(left)) {
      LogWarning("{}", Message(left));
    }
    context_.DestroyStream(stream_);
  }
}

bool CudaStream::Ready() {
  if (error_.ok()) {
    error_ = context_.MakeCurrent();
  }
  return error_.ok();
}

void CudaStream::Note(cudaError_t error, std::string_view what) {
  if (error != cudaSuccess && error_.ok()) {
    error_ = context_.Check(error, what);
  }
}

void CudaStream::Copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0 || !Ready()) {
    return;
  }
  const cudaError_t error =
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_);
  if (error != cudaSuccess) {
    Note(error, fmt::format("copying {} B from {} to {}", bytes, from, to));
  }
}

void CudaStream::Fill(void* to, std::byte value, int64_t bytes) {
  if (bytes == 0 || !Ready()) {
    return;
  }
  const cudaError_t error =
      cudaMemsetAsync(to, static_cast<int>(value), static_cast<size_t>(bytes), stream_);
  if (error != cudaSuccess) {
    Note(error, fmt::format("filling {} B at {}", bytes, to));
  }
}

// Also on a stream that has failed: earlier work on it may be in flight.
std::unique_ptr<Event> CudaStream::Record() {
  Mark mark;
  if (stream_ != nullptr) {
    absl::Status failure;
    mark = context_.PutMark(stream_, failure);
    error_.Update(failure);
  }
  return std::make_unique<CudaEvent>(context_, mark, error_);
}

void CudaStream::WaitFor(const Event& event) {
  const auto& other = static_cast<const CudaEvent&>(event);
  if (!Ready()) {
    return;
  }
  error_ = other.status();
  if (other.handle() != nullptr) {
    Note(cudaStreamWaitEvent(stream_, other.handle(), 0), "waiting for an event of a stream");
  }
}

absl::Status CudaStream::Synchronize() {
  if (stream_ == nullptr) {
    return error_;
  }
  // Also if the stream has failed: what is on it is done then.
  error_.Update(context_.Synchronize(stream_, "waiting for all that is on a stream"));
  // The error has been returned, and a GPU that has failed reports it again at the next call.
  return std::exchange(error_, absl::OkStatus());
}

}  // namespace shoal::worker::cuda
