#include "worker/backend/open/open_gpu.h"

namespace shoal::worker {

CollectivesOpener FindCollectives() { return nullptr; }

}  // namespace shoal::worker
