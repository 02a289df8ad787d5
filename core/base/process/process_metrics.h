// What Prometheus clients say of their own process, by the names that all of them use: CPU time,
// resident memory, open files, start; and beside them how much memory there is for it. Read from
// /proc when asked for.
#pragma once

#include <memory>

#include "prometheus/collectable.h"

namespace shoal {

std::shared_ptr<prometheus::Collectable> MakeProcessMetrics();

}  // namespace shoal
