#include "core/plan/schedule/schedule_costs.h"

namespace shoal::plan {

ScheduleCosts::ScheduleCosts(const ScheduleShape& shape, const ChunkCost& cost)
    : shape_(shape),
      costs_(static_cast<size_t>(shape.VirtualStages()) * shape.microbatches, cost) {}

}  // namespace shoal::plan
