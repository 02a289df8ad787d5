// What a border between two steps costs the coordinator itself: from the last worker's report until
// all workers have the work of the next step, with servers that answer at once; 128 of them, 1,024
// workers and 66,700 partitions, those of a model of 70B. Bars: 10 ms, and 2 ms more for a wave of
// 500 partitions that move.
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "core/base/logging.h"
#include "server/coordinator/heap.h"
#include "server/coordinator/testing/many_members.h"

namespace {

using shoal::server::testing::ManyMembers;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Milliseconds of borders, by whether a wave was in them.
struct Borders {
  std::vector<double> with;
  std::vector<double> without;
};

// Until there were so many of each, or no waves are left.
Borders Measure(ManyMembers& members, size_t borders) {
  Borders times;
  while (std::min(times.with.size(), times.without.size()) < borders &&
         members.Scaling().bytes_left() > 0) {
    const int64_t moved = members.Scaling().partitions_moved();
    members.RunStep();
    const std::clock_t begin = std::clock();  // of one thread, so that others do not disturb it
    members.Barrier();
    const double ms = 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    const bool moves = members.Scaling().partitions_moved() > moved;
    (moves ? times.with : times.without).push_back(ms);
  }
  return times;
}

}  // namespace

// barrier_bench [BORDERS]
int main(int argc, char** argv) {
  constexpr double kBarMs = 10;
  constexpr double kWaveBarMs = 2;
  const int borders = std::max(1, argc > 1 ? std::atoi(argv[1]) : 15);
  shoal::server::SetUpHeap();
  shoal::InitLogging({.role = "bench", .level = "off"});
  ManyMembers members({});
  members.ScaleToAll(/*seconds=*/1.5);  // at every second border
  Measure(members, 1);                  // by the first wave servers come
  const int64_t before = members.Scaling().partitions_moved();
  const Borders times = Measure(members, static_cast<size_t>(borders));
  const int64_t moved = members.Scaling().partitions_moved() - before;
  const double without = Median(times.without);
  const double more = Median(times.with) - without;
  fmt::print("border, 128 servers, 1,024 workers: median {:.2f} ms, {:.2f} of the bar of {} ms\n",
             without, without / kBarMs, kBarMs);
  fmt::print("a wave of {} partitions of 66,700: {:.2f} ms more, {:.2f} of the bar of {} ms\n",
             moved / std::ssize(times.with), more, more / kWaveBarMs, kWaveBarMs);
  return 0;
}
