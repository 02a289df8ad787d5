// The functions of NCCL that communicators need. Nothing links the library: programs link
// nccl_library.cc, which loads it at run time, and tests link fake_nccl/fake_nccl.cc, which
// works over the fake CUDA runtime.
#pragma once

#include <nccl.h>

#include "absl/status/statusor.h"

namespace shoal::worker {

// Names and types are the library's own.
struct Nccl {
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclGetErrorString) get_error_string = nullptr;
  decltype(&::ncclGetLastError) get_last_error = nullptr;
  decltype(&::ncclCommInitRankConfig) init_rank_config = nullptr;
  decltype(&::ncclCommFinalize) finalize = nullptr;
  decltype(&::ncclCommDestroy) destroy = nullptr;
  decltype(&::ncclCommAbort) abort = nullptr;
  decltype(&::ncclCommGetAsyncError) get_async_error = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) receive = nullptr;
};

// NotFound, with what to do about it, if there is none.
absl::StatusOr<Nccl> LoadNccl();

}  // namespace shoal::worker
