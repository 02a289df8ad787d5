// What a border between two steps costs the coordinator itself: from the last worker's report until
// all workers have the work of the next step, with servers that answer at once; 128 of them, 1,024
// workers and 66,700 partitions, those of a model of 70B. Bars: 10 ms, and 2 ms more for a wave of
// 500 partitions that move.
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "core/base/logging.h"
#include "server/coordinator/testing/many_members.h"

namespace {

using shoal::server::testing::ManyMembers;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Milliseconds of each border.
std::vector<double> Measure(ManyMembers& members, int borders) {
  std::vector<double> times;
  for (int border = 0; border < borders; ++border) {
    members.RunStep();
    const std::clock_t begin = std::clock();  // of one thread, so that others do not disturb it
    members.Barrier();
    times.push_back(1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  return times;
}

}  // namespace

// barrier_bench [BORDERS]
int main(int argc, char** argv) {
  constexpr double kBarMs = 10;
  constexpr double kWaveBarMs = 2;
  const int borders = argc > 1 ? std::atoi(argv[1]) : 20;
  shoal::InitLogging({.role = "bench", .level = "off"});
  ManyMembers members({});
  members.ScaleToAll();
  Measure(members, 1);  // by the first wave servers come
  const double with = Median(Measure(members, borders));
  const int64_t moved = members.Scaling().partitions_moved() / (borders + 1);
  while (members.Scaling().bytes_left() > 0) {
    Measure(members, 1);
  }
  const double without = Median(Measure(members, borders));
  fmt::print("border, 128 servers, 1,024 workers: median {:.2f} ms, {:.2f} of the bar of {} ms\n",
             without, without / kBarMs, kBarMs);
  fmt::print("a wave of {} partitions of 66,700: {:.2f} ms more, {:.2f} of the bar of {} ms\n",
             moved, with - without, (with - without) / kWaveBarMs, kWaveBarMs);
  return 0;
}
