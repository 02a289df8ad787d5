// Streams and events of a CUDA device. Only worker/backend/cuda includes it.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/gpu/cuda_context.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker::cuda {

class CudaEvent final : public Event {
 public:
  // `mark` belongs to the context and is returned to it. `status`: the stream's, when the mark was
  // put there; not OK if the runtime had no event, in which case everything on the stream takes its
  // place.
  CudaEvent(CudaContext& context, const Mark& mark, absl::Status status)
      : context_(context), mark_(mark), status_(std::move(status)) {}
  ~CudaEvent() override;

  bool WaitDone(absl::Duration timeout) override;
  absl::Status Wait() override;
  absl::Time at() const override;

  cudaEvent_t handle() const { return mark_.event; }
  const absl::Status& status() const { return status_; }

 private:
  CudaContext& context_;
  const Mark mark_;
  const absl::Status status_;
};

class CudaStream final : public Stream {
 public:
  CudaStream(CudaContext& context, StreamKind kind);
  // Waits until everything on the stream is done.
  ~CudaStream() override;

  void Copy(void* to, const void* from, int64_t bytes) override;
  void Fill(void* to, std::byte value, int64_t bytes) override;
  std::unique_ptr<Event> Record() override;
  void WaitFor(const Event& event) override;
  absl::Status Synchronize() override;

  cudaStream_t handle() const { return stream_; }
  // What Synchronize would return from what is known by now.
  const absl::Status& error() const { return error_; }

 private:
  // A stream that has failed takes only events until Synchronize has returned the error.
  bool Ready();
  void Note(cudaError_t error, std::string_view what);

  CudaContext& context_;
  cudaStream_t stream_ = nullptr;
  absl::Status error_;
};

}  // namespace shoal::worker::cuda
