#include "worker/backend/open/open_gpu.h"
#include "worker/collectives/nccl/nccl_collectives.h"

namespace shoal::worker {

CollectivesOpener FindCollectives() { return OpenNccl; }

}  // namespace shoal::worker
