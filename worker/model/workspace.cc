#include "worker/model/workspace.h"

#include <utility>

#include "core/base/status.h"

namespace shoal::worker {

absl::Status Workspace::Reserve(int64_t bytes) {
  if (bytes <= buffer_.bytes()) {
    return absl::OkStatus();
  }
  if (buffer_.bytes() > 0) {
    SHOAL_RETURN_IF_ERROR(stream_.Synchronize());
    buffer_.Reset();  // before the new one, so that both are never held at once
  }
  SHOAL_ASSIGN_OR_RETURN(buffer_, device_.Allocate(bytes));
  return absl::OkStatus();
}

}  // namespace shoal::worker
