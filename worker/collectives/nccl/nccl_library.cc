// Loads NCCL at run time: from where the loader finds it, from the folders of the environment
// variable SHOAL_CUDA_LIBRARIES, or from ../lib next to the program. It stays loaded.
#include "core/base/process/dynamic_library.h"
#include "core/base/status.h"
#include "worker/collectives/nccl/nccl_api.h"

namespace shoal::worker {

absl::StatusOr<Nccl> LoadNccl() {
  const absl::StatusOr<void*> library =
      OpenLibrary({"libnccl.so.2"}, LibraryFolders("SHOAL_CUDA_LIBRARIES"));
  if (!library.ok()) {
    return NotFound("no NCCL: {}: install it, or name its folder in SHOAL_CUDA_LIBRARIES",
                    Message(library.status()));
  }
  Nccl nccl;
  const bool whole = FindFunction(*library, "ncclGetVersion", nccl.get_version) &&
                     FindFunction(*library, "ncclGetUniqueId", nccl.get_unique_id) &&
                     FindFunction(*library, "ncclGetErrorString", nccl.get_error_string) &&
                     FindFunction(*library, "ncclGetLastError", nccl.get_last_error) &&
                     FindFunction(*library, "ncclCommInitRankConfig", nccl.init_rank_config) &&
                     FindFunction(*library, "ncclCommFinalize", nccl.finalize) &&
                     FindFunction(*library, "ncclCommDestroy", nccl.destroy) &&
                     FindFunction(*library, "ncclCommAbort", nccl.abort) &&
                     FindFunction(*library, "ncclCommGetAsyncError", nccl.get_async_error) &&
                     FindFunction(*library, "ncclAllGather", nccl.all_gather) &&
                     FindFunction(*library, "ncclReduceScatter", nccl.reduce_scatter) &&
                     FindFunction(*library, "ncclSend", nccl.send) &&
                     FindFunction(*library, "ncclRecv", nccl.receive);
  if (!whole) {
    return NotFound(
        "no NCCL: {} lacks functions of it: install 2.14 or newer, or name its folder in "
        "SHOAL_CUDA_LIBRARIES",
        PathOf(*library));
  }
  return nccl;
}

}  // namespace shoal::worker
