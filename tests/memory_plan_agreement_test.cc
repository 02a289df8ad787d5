// The memory plan repeats what servers and workers allocate; here the two are held against each
// other.
#include <map>
#include <string>
#include <vector>

#include "core/job/job_units.h"
#include "core/plan/memory/memory_plan.h"
#include "core/plan/memory/stage_scratch.h"
#include "gtest/gtest.h"
#include "server/store/store.h"
#include "worker/model/chunk_memory.h"
#include "worker/model/runner.h"
#include "worker/model/testing/small_model.h"
#include "worker/model/transformer_stage.h"

namespace shoal {
namespace {

TEST(MemoryPlan, ServersAllocateWhatIsPlanned) {
  const plan::ModelSpec model = *plan::NamedShape("6m");
  const std::vector<plan::ParameterGroup> blocks = {{.match = "*.layers.[0-2].*", .freeze = true}};
  plan::ModelSpec in_nf4 = worker::testing_model::WithAdapters(model);
  in_nf4.quantize = plan::Quantize::kNf4;
  plan::ModelSpec in_files = worker::testing_model::WithAdapters(model);
  in_files.from_files = true;
  for (const std::vector<plan::UnitSpec>& units :
       {plan::JobUnits(model, {}), plan::JobUnits(model, {.groups = blocks}),
        plan::JobUnits(model, {.optimizer = plan::Optimizer::kLion}),
        plan::JobUnits(model, {.optimizer = plan::Optimizer::kAdamW8, .groups = blocks}),
        plan::JobUnits(worker::testing_model::WithAdapters(model), {}), plan::JobUnits(in_nf4, {}),
        plan::JobUnits(in_files, {})}) {
    const auto partitions = plan::BuildPartitions(units, 300'000);
    for (const plan::Accumulate accumulate : {plan::Accumulate::kFloat, plan::Accumulate::kExact}) {
      for (const DType wire : {DType::kF32, DType::kBF16}) {
        plan::ServiceOptions service;
        service.accumulate = accumulate;
        service.wire_type = wire;
        const plan::ServerMemory planned =
            plan::PlanServerMemory(partitions, /*slot_bytes=*/0, service, 2);
        const server::StoreBytes counted =
            server::CountStoreBytes(partitions, {.wire_type = wire, .accumulate = accumulate});
        EXPECT_EQ(planned.weights, counted.weights);
        EXPECT_EQ(planned.master, counted.master);
        EXPECT_EQ(planned.moments, counted.moments);
        EXPECT_EQ(planned.gradients, counted.gradients);
      }
    }
  }
}

// By name, with norms of outputs, and with adapters everywhere or here and there.
std::map<std::string, plan::ModelSpec> Shapes() {
  std::map<std::string, plan::ModelSpec> shapes = {
      {"post-norm", worker::testing_model::PostNormSpec()},
      {"sandwich", worker::testing_model::SandwichSpec()}};
  for (const char* shape : {"tiny", "25m", "7b"}) {
    shapes[shape] = *plan::NamedShape(shape);
  }
  for (const std::string shape : {"tiny", "sandwich", "7b"}) {
    for (const bool all : {true, false}) {
      shapes[shape + (all ? " adapted" : " adapted in part")] =
          worker::testing_model::WithAdapters(shapes.at(shape), all);
    }
  }
  return shapes;
}

TEST(MemoryPlan, WorkersAllocateWhatIsPlanned) {
  for (const auto& [shape, spec] : Shapes()) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      for (const int64_t tokens : {1, 63, 64, 1000, 4096}) {
        const plan::ActivationBytes planned = plan::PlanActivations(spec, compute, tokens);
        EXPECT_EQ(planned.blocks + planned.other + planned.logits,
                  worker::MicrobatchBytes(spec, compute, tokens))
            << shape << " " << tokens;
        const plan::ActivationBytes on_gpu =
            plan::PlanActivations(spec, compute, tokens, plan::kGpuLossChunk);
        EXPECT_EQ(on_gpu.blocks + on_gpu.other + on_gpu.logits,
                  worker::MicrobatchBytes(spec, compute, tokens, plan::kGpuLossChunk))
            << shape << " " << tokens << " on a GPU";
      }
    }
  }
}

TEST(MemoryPlan, ChunksTakeWhatIsPlanned) {
  for (const auto& [shape, spec] : Shapes()) {
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

// What is taken is what is planned, and less where fewer tokens are targets.
class StageMemory : public testing::TestWithParam<const char*> {};

TEST_P(StageMemory, IsWhatIsPlanned) {
  const plan::ModelSpec spec = Shapes().at(GetParam());
  const int head = static_cast<int>(spec.layers) + 1;
  class Nothing final : public worker::UnitSource, public worker::GradientSink {
    absl::StatusOr<worker::WeightsView> Get(int) override { return absl::InternalError(""); }
    void Release(int) override {}
    absl::StatusOr<std::span<float>> Accumulator(int) override { return absl::InternalError(""); }
    absl::Status Done(int) override { return absl::OkStatus(); }
  } nothing;
  const std::vector<int64_t> tokens = {100, 600, 1, 64};
  std::vector<worker::PackedBatch> batches;
  for (const int64_t count : tokens) {
    const std::vector<int32_t> ids(static_cast<size_t>(count), 3);
    batches.emplace_back().Append(ids, ids);
  }
  for (const plan::UnitRange& units : {plan::UnitRange{0, head}, plan::UnitRange{1, head}}) {
    for (const plan::Recompute recompute :
         {plan::Recompute::kNone, plan::Recompute::kLight, plan::Recompute::kFull}) {
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        worker::TransformerStage stage(*worker::Transformer::Create(spec, {.compute = compute}),
                                       {&units, 1}, recompute);
        ASSERT_TRUE(stage.BeginStep(batches, 1.0, nothing, nothing).ok());
        const int64_t planned =
            plan::StageOwnBytes(spec, compute, recompute, units.contains(head), tokens);
        EXPECT_EQ(stage.own_bytes(), planned);
      }
    }
  }
  worker::TransformerStage stage(*worker::Transformer::Create(spec, {}),
                                 std::vector<plan::UnitRange>{{head, 1}}, plan::Recompute::kNone);
  for (worker::PackedBatch& batch : batches) {
    std::fill(batch.labels.begin() + 1, batch.labels.end(), formats::kIgnoredLabel);
  }
  ASSERT_TRUE(stage.BeginStep(batches, 1.0, nothing, nothing).ok());
  EXPECT_LT(stage.own_bytes(),
            plan::StageOwnBytes(spec, DType::kF32, plan::Recompute::kNone, true, tokens));
}

INSTANTIATE_TEST_SUITE_P(Shapes, StageMemory, testing::Values("tiny", "post-norm", "tiny adapted"));

}  // namespace
}  // namespace shoal
