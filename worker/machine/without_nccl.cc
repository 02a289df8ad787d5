#include "worker/machine/open_gpu.h"

namespace shoal::worker {

CollectivesOpener FindCollectives() { return nullptr; }

}  // namespace shoal::worker
