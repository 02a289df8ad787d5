// What a stage reports about a step that it ran: results, memory, and where its time went.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "core/plan/schedule/schedule.h"
#include "worker/model/batch/batch.h"

namespace shoal::worker {

// What a stage waits for while it could compute.
enum class Stall : uint8_t {
  kTransfer,   // for an offload before its memory is freed, or for a reload before its backward
  kNeighbour,  // a message, or room for one
  kWeights,    // weights of a unit, from the servers
};
inline constexpr int kStalls = 3;
inline constexpr std::array<std::string_view, kStalls> kStallNames = {"transfer", "neighbour",
                                                                      "weights"};

struct StallTime {
  double seconds = 0;
  // For transfers and neighbours: the longest wait, and for what ("the reload of chunk 0 microbatch
  // 3").
  double longest_seconds = 0;
  std::string longest;
};

// A stretch of time for a timeline.
struct StageSpan {
  enum class Kind : uint8_t { kCompute, kOffload, kReload, kTransferWait, kNeighbourWait };
  Kind kind = Kind::kCompute;
  plan::Action action;  // what ran, or what came after the wait
  absl::Time begin;
  absl::Duration length;
};

struct StageReport {
  std::vector<MicrobatchResult> microbatches;  // as in StageModel::result
  // Forward and backward; excludes waits for weights, except on a device that computes
  // asynchronously.
  double compute_seconds = 0;
  std::vector<double> microbatch_seconds;  // of them, by microbatch
  std::array<StallTime, kStalls> stalls;
  std::vector<double> neighbour_seconds;  // waits for messages, by the stage that sends them
  // The most in use at once, to the byte.
  int64_t peak_device_bytes = 0;
  int64_t peak_host_bytes = 0;
  int64_t peak_message_bytes = 0;  // between chunks of the stage
  // Of messages, by the stage to or from which they went.
  struct Traffic {
    int64_t sent_bytes = 0;
    int64_t received_bytes = 0;

    bool operator==(const Traffic&) const = default;
  };
  std::map<int, Traffic> traffic;
  // Compute and waits in the order of the list, then the copies; only if the step asked for them.
  std::vector<StageSpan> spans;

  const StallTime& Of(Stall stall) const { return stalls[static_cast<size_t>(stall)]; }
};

}  // namespace shoal::worker
