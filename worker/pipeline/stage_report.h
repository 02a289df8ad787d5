// What a stage tells of a step that it ran: results, memory, and where its time went.
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
  kTransfer,   // of an offload before its memory is given back, of a reload before its backward
  kNeighbour,  // a message, or room for one
  kWeights,    // of a unit, from the servers
};
inline constexpr int kStalls = 3;
inline constexpr std::array<std::string_view, kStalls> kStallNames = {"transfer", "neighbour",
                                                                      "weights"};

struct StallTime {
  double seconds = 0;
  // Of transfers and neighbours: the longest wait, and for what ("the reload of chunk 0 microbatch
  // 3").
  double longest_seconds = 0;
  std::string longest;
};

// A stretch of time for a timeline.
struct StageSpan {
  enum class Kind : uint8_t { kCompute, kOffload, kReload, kTransferWait, kNeighbourWait };
  Kind kind = Kind::kCompute;
  plan::Action action;  // what ran, or what the wait was ahead of
  absl::Time begin;
  absl::Duration length;
};

struct StageReport {
  std::vector<MicrobatchResult> microbatches;  // as StageModel::result
  // Forward and backward; without waits for weights, but on a device that computes asynchronously.
  double compute_seconds = 0;
  std::vector<double> microbatch_seconds;  // of them, by microbatch
  std::array<StallTime, kStalls> stalls;
  std::vector<double> neighbour_seconds;  // of waiting for messages, by stage that they are from
  // The most in use at once, to the byte.
  int64_t peak_device_bytes = 0;
  int64_t peak_host_bytes = 0;
  int64_t peak_message_bytes = 0;  // between chunks of the stage
  // Of messages, by the stage that they went to or came from.
  struct Traffic {
    int64_t sent_bytes = 0;
    int64_t received_bytes = 0;

    bool operator==(const Traffic&) const = default;
  };
  std::map<int, Traffic> traffic;
  // Compute and waits in the order of the list, then the copies; where the step asked for them.
  std::vector<StageSpan> spans;

  const StallTime& Of(Stall stall) const { return stalls[static_cast<size_t>(stall)]; }
};

}  // namespace shoal::worker
