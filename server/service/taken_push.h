// A client's push at the server, between the connection that brings it and what judges it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "server/store/partition_state.h"

namespace shoal::server {

struct ClientIdentity {
  uint64_t incarnation = 0;
  std::string name;  // for messages: "worker-1"
};

// The payload that may follow a header in its slot.
struct PushPayload {
  std::span<const std::byte> bytes;
  PayloadMemory place = PayloadMemory::kHost;
};

struct PushVerdict {
  // kDataLoss: not the payload that was sent. kUnimplemented: the partition is frozen.
  absl::StatusCode code = absl::StatusCode::kOk;
  bool applied_before = false;
  bool complete = false;  // with this one its partition's sum is
};

}  // namespace shoal::server
