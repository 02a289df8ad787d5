// Streams and events of a CUDA device. Included by worker/backend/cuda alone.
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
  // `mark` is the context's and goes back to it. `status`: the stream's, when it was put there; not
  // OK where no event of the runtime could be had, whose place all of the stream then takes.
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
  // Once all that is on the stream is done.
  ~CudaStream() override;

  void Copy(void* to, const void* from, int64_t bytes) override;
  void Fill(void* to, std::byte value, int64_t bytes) override;
  std::unique_ptr<Event> Record() override;
  void WaitFor(const Event& event) override;
  absl::Status Synchronize() override;

  cudaStream_t handle() const { return stream_; }
  // What Synchronize is to tell of what is known by now.
  const absl::Status& error() const { return error_; }

 private:
  // Nothing but events is put on a stream that has failed until Synchronize has told of it.
  bool Ready();
  void Note(cudaError_t error, std::string_view what);

  CudaContext& context_;
  cudaStream_t stream_ = nullptr;
  absl::Status error_;
};

}  // namespace shoal::worker::cuda
