// The memory plan repeats what servers and workers allocate; here the two are held against each
// other.
#include "gtest/gtest.h"
#include "plan/memory_plan.h"
#include "server/store/store.h"
#include "worker/model/chunk_memory.h"
#include "worker/model/runner.h"

namespace shoal {
namespace {

TEST(MemoryPlan, ServersAllocateWhatIsPlanned) {
  const auto partitions = plan::BuildPartitions(plan::BuildUnits(*plan::NamedShape("6m")), 300'000);
  for (const plan::Accumulate accumulate : {plan::Accumulate::kFloat, plan::Accumulate::kExact}) {
    for (const DType wire : {DType::kF32, DType::kBF16}) {
      plan::ServiceOptions service;
      service.accumulate = accumulate;
      service.wire_type = wire;
      const plan::ServerMemory planned = plan::PlanServerMemory(partitions, service, 2);
      const server::StoreBytes counted =
          server::CountStoreBytes(partitions, {.wire_type = wire, .accumulate = accumulate});
      EXPECT_EQ(planned.weights, counted.weights);
      EXPECT_EQ(planned.master, counted.master);
      EXPECT_EQ(planned.moments, counted.moments);
      EXPECT_EQ(planned.gradients, counted.gradients);
    }
  }
}

TEST(MemoryPlan, WorkersAllocateWhatIsPlanned) {
  for (const char* shape : {"tiny", "6m", "25m", "7b"}) {
    const plan::ModelSpec spec = *plan::NamedShape(shape);
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      for (const int64_t tokens : {1, 63, 64, 1000, 4096}) {
        const plan::ActivationBytes planned = plan::PlanActivations(spec, compute, tokens);
        EXPECT_EQ(planned.blocks + planned.other + planned.logits,
                  worker::MicrobatchBytes(spec, compute, tokens))
            << shape << " " << tokens;
      }
    }
  }
}

TEST(MemoryPlan, ChunksTakeWhatIsPlanned) {
  for (const char* shape : {"tiny", "25m", "7b"}) {
    const plan::ModelSpec spec = *plan::NamedShape(shape);
    const int head = static_cast<int>(spec.layers) + 1;
    const plan::UnitRange ranges[] = {{0, 1},    {0, 2},        {1, 1},       {1, head - 1},
                                      {head, 1}, {head - 1, 2}, {0, head + 1}};
    for (const plan::UnitRange& units : ranges) {
      for (const plan::Recompute recompute :
           {plan::Recompute::kNone, plan::Recompute::kLight, plan::Recompute::kFull}) {
        for (const DType compute : {DType::kF32, DType::kBF16}) {
          for (const int64_t tokens : {1, 63, 64, 1000, 4096}) {
            const worker::ChunkMemory chunk(spec, compute, units, recompute,
                                            plan::MicrobatchRows(tokens));
            EXPECT_EQ(chunk.bytes(), plan::PlanChunkBytes(spec, compute, units, recompute, tokens))
                << shape << " units from " << units.first << ", " << units.count << " of them, "
                << plan::Name(recompute) << ", " << tokens << " tokens";
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace shoal
