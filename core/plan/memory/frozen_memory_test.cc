// What a model beside adapters takes: in NF4, and from files.
#include "core/base/bytes.h"
#include "core/job/job_units.h"
#include "core/model/adapters.h"
#include "core/model/partition.h"
#include "core/plan/memory/memory_plan.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

// Weights and gradients stay for the step.
Job KeepingJob() {
  Job job;
  job.train.compute = ComputeType::kBf16;
  Resolve(job, "/", {});
  job.train.residency = Residency::kStep;
  job.train.push = PushPolicy::kStep;
  return job;
}

// All of them as they are read, and a few as they are computed with.
TEST(PlanFrozenMemory, AWorkerKeepsBlocksInNf4) {
  Job job = KeepingJob();
  ModelSpec spec = *WithAdapters(*NamedShape("25m"), {"all-linear"}, 8, 1);
  const MemoryPlan plain = *PlanMemory(spec, job, 2, 1, {});
  spec.quantize = Quantize::kNf4;
  const MemoryPlan nf4 = *PlanMemory(spec, job, 2, 1, {});
  const std::vector<UnitSpec> units = JobUnits(spec, job.train);
  const int64_t wire = WireBytes(units, BuildPartitions(units, job.service.partition_bytes),
                                 job.service.wire_type)[1];
  EXPECT_NEAR(static_cast<double>(wire), 0.5625 * static_cast<double>(units[1].count),
              0.01 * static_cast<double>(wire));
  const int64_t few = BuffersPerSize(job.train);
  ASSERT_GT(spec.layers, few);
  EXPECT_EQ(plain.stages[0].weights - nf4.stages[0].weights,
            (spec.layers - few) * RoundUp(2 * units[1].count, 4096));
  EXPECT_EQ(plain.stages[0].wire, 0);
  EXPECT_EQ(nf4.stages[0].wire, spec.layers * RoundUp(wire, 4096));
  EXPECT_LT(nf4.servers[0].weights + nf4.servers[1].weights,
            plain.servers[0].weights + plain.servers[1].weights -
                spec.layers * (2 * units[1].count - wire) * 9 / 10);
  job.train.residency = Residency::kLayer;
  const WorkerMemory layer = PlanMemory(spec, job, 2, 1, {})->stages[0];
  EXPECT_EQ(layer.wire, few * RoundUp(wire, 4096));
  job.train.device = DeviceKind::kCuda;
  EXPECT_EQ(PlanMemory(spec, job, 2, 1, {})->stages[0].wire, layer.wire);
}

// Servers then hold adapters alone, and a worker needs nowhere to read the rest to but where it
// computes with it.
TEST(PlanFrozenMemory, AModelFromFilesTakesNothingOfServers) {
  Job job = KeepingJob();
  ModelSpec spec = *WithAdapters(*NamedShape("25m"), {"all-linear"}, 8, 1);
  const MemoryPlan served = *PlanMemory(spec, job, 2, 1, {});
  spec.from_files = true;
  const MemoryPlan filed = *PlanMemory(spec, job, 2, 1, {});
  int64_t adapters = 0;
  for (const UnitSpec& unit : JobUnits(spec, job.train)) {
    adapters += unit.from_files ? 0 : unit.count;
  }
  const auto both = [](const MemoryPlan& plan, int64_t ServerMemory::*part) {
    return plan.servers[0].*part + plan.servers[1].*part;
  };
  EXPECT_NEAR(static_cast<double>(both(filed, &ServerMemory::weights)),
              4.0 * static_cast<double>(adapters), 0.05 * static_cast<double>(4 * adapters));
  EXPECT_GT(both(served, &ServerMemory::weights), 5 * both(filed, &ServerMemory::weights));
  EXPECT_EQ(both(filed, &ServerMemory::master), both(served, &ServerMemory::master));
  EXPECT_EQ(filed.stages[0].weights, served.stages[0].weights);
  job.service.wire_type = DType::kF32;
  const auto wire = [&](bool from_files) {
    spec.from_files = from_files;
    return PlanMemory(spec, job, 2, 1, {})->stages[0].wire;
  };
  EXPECT_LT(wire(true), wire(false) / 5);

  job.train.residency = Residency::kLayer;
  spec.from_files = true;
  const WorkerPolicy policy = {.residency = Residency::kLayer, .push = PushPolicy::kStep};
  EXPECT_LT(PlanTraffic(spec, job, policy, 2).get_bytes, 3 * 4 * 4 * adapters);
}

}  // namespace
}  // namespace shoal::plan
