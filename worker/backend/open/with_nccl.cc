#include "worker/collectives/nccl/nccl_collectives.h"
#include "worker/backend/open/open_gpu.h"

namespace shoal::worker {

CollectivesOpener FindCollectives() { return OpenNccl; }

}  // namespace shoal::worker
