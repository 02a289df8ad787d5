// What GPUs of several workers exchange among themselves, with no server in between: the seam
// between the trainer and the library that does it (NCCL, worker/collectives/nccl).
//
// Workers become ranks of a communicator by an id that one of them makes and the others are told.
// Each call puts work on a stream of the rank's device and returns; it is done on the device when
// the other ranks have put theirs. All ranks make the same calls in the same order.
//
// Threads: one at a time for the calls, Abort and status from any. Ownership: device and streams
// must outlive the communicator, and memory must stay until an event behind the call is done.
// Failure: a rank that does not come, dies or makes another call would hold all others on their
// devices for ever. So a thread of each communicator watches what is under way; where the library
// tells of an error, the time is up, or `check` says that the others have given up, the
// communicator fails: what is under way ends (what it was to write is undefined), and all calls
// return why. There is no way back but a new communicator.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/dtype.h"
#include "worker/backend/backend.h"

namespace shoal::worker {

struct CommunicatorOptions {
  std::string name;  // for messages: "layers of step 3"
  std::string id;    // of Collectives::NewId, by one of the ranks
  int rank = 0;
  int ranks = 1;
  absl::Duration connect_timeout = absl::Minutes(1);  // for all ranks to come
  absl::Duration timeout = absl::Minutes(10);         // of a call, once those before it are done
  // Of the device that a call may take at most, in thread blocks; 0: as the library likes. For
  // ranks with several communicators, whose calls must all have room beside each other.
  int most_blocks = 0;
  // Asked every few milliseconds while something is under way; not OK: the communicator fails with
  // that. Any thread; must not call the communicator. May be empty.
  std::function<absl::Status()> check;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // `to` gets ranks x count elements: rank r's `count` elements of `from` at r x count. `what` is
  // for messages.
  virtual absl::Status AllGather(const void* from, void* to, int64_t count, DType dtype,
                                 Stream& stream, std::string_view what) = 0;
  // `to` gets the `count` elements at rank x count of the sum of all ranks' `from`, of ranks x
  // count elements.
  virtual absl::Status ReduceScatter(const void* from, void* to, int64_t count, DType dtype,
                                     Stream& stream, std::string_view what) = 0;
  // To and from another rank, whose calls of the same number of bytes pair up in order.
  virtual absl::Status Send(const void* from, int64_t bytes, int peer, Stream& stream,
                            std::string_view what) = 0;
  virtual absl::Status Receive(void* to, int64_t bytes, int peer, Stream& stream,
                               std::string_view what) = 0;

  // Fails with `why` (not OK), unless it has failed already.
  virtual void Abort(const absl::Status& why) = 0;
  virtual absl::Status status() const = 0;
};

class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual std::string_view name() const = 0;  // "NCCL 2.28.9"
  virtual int version() const = 0;            // of the library; all ranks should have the same
  // Names the device's GPU among those of all machines: two ranks must not share one.
  virtual const std::string& gpu() const = 0;

  virtual absl::StatusOr<std::string> NewId() = 0;
  // Blocks until all ranks have come. Errors name the communicator.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Join(
      const CommunicatorOptions& options) = 0;
};

// A GPU's name among those of all machines, from its address on this one.
std::string NameGpu(std::string_view pci_address);

}  // namespace shoal::worker
