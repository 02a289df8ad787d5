// How long it takes to plan who holds what of a large model: steps wait for that. Bar: 1 s.
#include "benchmark/benchmark.h"
#include "core/plan/placement/placement.h"

namespace shoal::plan {
namespace {

// Arguments: partitions, servers before and after. 66,700 are those of a model of 70B in 4 MiB.
void BenchPlanTarget(benchmark::State& state) {
  std::vector<PartitionSpec> partitions;
  for (int id = 0; id < state.range(0); ++id) {
    partitions.push_back({.id = id, .unit = id / 800, .count = int64_t{1} << 20});
  }
  const ShardMap now = PlaceShards(partitions, static_cast<int>(state.range(1)), 1);
  const std::vector<int> servers = FirstServers(state.range(2));
  for (auto _ : state) {
    benchmark::DoNotOptimize(PlanTarget(partitions, now, servers));
  }
}
BENCHMARK(BenchPlanTarget)
    ->Args({66'700, 64, 128})
    ->Args({66'700, 128, 64})
    ->Unit(benchmark::kSecond);

}  // namespace
}  // namespace shoal::plan

BENCHMARK_MAIN();
