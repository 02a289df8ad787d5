// What all parts of one simulation share: time, network, faults, and what was seen of the run.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "fmt/format.h"
#include "tests/simulation/event_loop.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/sim_network.h"

namespace shoal::simulation {

// Points at which a test can act: "configure", "begin", "prepare", "commit", "committed", "pin",
// "write", "admit", "fence", "release" (on arrival at a server), "work" (a worker got some),
// "plan".
using Hook = std::function<void(const char* point, int index)>;

class SimContext {
 public:
  SimContext(uint64_t seed, Faults what_goes_wrong, bool print)
      : faults(std::move(what_goes_wrong)), network(loop, faults), random(seed), print_(print) {}

  // Runs at once.
  void Violation(const std::string& what) {
    Note("violation", 0, [&] { return what; });
    if (violations.size() < kMaxViolations) {
      violations.push_back(what);
    }
  }

  // Takes something that happened into the trace. `text` is made where the trace is printed.
  template <typename Text>
  void Note(const char* what, uint64_t number, const Text& text) {
    trace_ = (trace_ ^ (static_cast<uint64_t>(loop.now()) * 31 + number)) * 0x9e3779b97f4a7c15;
    trace_ = (trace_ ^ (trace_ >> 29) ^ static_cast<unsigned char>(what[0])) * 0xbf58476d1ce4e5b9;
    if (print_) {
      fmt::print("{:14.6f}  {:<12} {}\n", static_cast<double>(loop.now()) * 1e-9, what, text());
    }
  }
  uint64_t trace() const { return trace_; }

  absl::Duration ShortDelay() { return absl::Microseconds(random.Between(100, 3000)); }
  bool Chance(double probability) { return random.Uniform() < probability; }

  EventLoop loop;
  Faults faults;
  SimNetwork network;
  Random random;
  std::vector<std::string> violations;
  // The coordinator's disk has lost transactions: what servers say wins over what is left.
  bool tail_lost = false;
  bool has_successor = false;  // the first coordinator
  bool cancelled = false;      // a wish was, maybe between waves
  Hook hook = [](const char*, int) {};

 private:
  static constexpr size_t kMaxViolations = 20;
  const bool print_;
  uint64_t trace_ = 0;
};

}  // namespace shoal::simulation
