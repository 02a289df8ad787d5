// The memory plan repeats what servers and workers allocate; here the two are held against each
// other.
#include "gtest/gtest.h"
#include "plan/memory_plan.h"
#include "server/store/store.h"
#include "worker/model/forward.h"

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
                  worker::MicrobatchBytes(spec, compute, tokens, /*training=*/true))
            << shape << " " << tokens;
      }
    }
  }
}

}  // namespace
}  // namespace shoal
