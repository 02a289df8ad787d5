// What GPUs of several workers exchange among themselves, without a server: the seam between the
// trainer and the library that does it (NCCL, worker/collectives/nccl).
//
// Workers become ranks of a communicator through an id that one of them makes and the others
// receive. Each call puts work on a stream of the rank's device and returns; the work completes on
// the device when the other ranks have put theirs. All ranks must make the same calls in the same
// order.
//
// Threads: one at a time for the calls; Abort and status from any.
//
// Ownership: device and streams must outlive the communicator, and memory must stay valid until an
// event after the call is done.
//
// Failure: a rank that does not come, dies or makes another call would block all others on their
// devices forever. So a thread of each communicator watches the calls in flight. If the library
// reports an error, the time is up, or `check` says that the others have given up, the communicator
// fails: calls in flight end (what they would have written is undefined), and all later calls
// return why. Only a new communicator recovers.
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
  std::string id;    // from Collectives::NewId, of one of the ranks
  int rank = 0;
  int ranks = 1;
  absl::Duration connect_timeout = absl::Minutes(1);  // for all ranks to come
  absl::Duration timeout = absl::Minutes(10);         // of a call, once earlier ones are done
  // The most thread blocks that a call may take of the device; 0: the library decides. For ranks
  // with several communicators, whose calls must all fit at once.
  int most_blocks = 0;
  // Asked every few milliseconds while a call is in flight; if not OK, the communicator fails with
  // that. Called from any thread; must not call the communicator. May be empty.
  std::function<absl::Status()> check;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // Writes ranks x count elements to `to`: rank r's `count` elements of `from` at r x count. `what`
  // is for messages.
  virtual absl::Status AllGather(const void* from, void* to, int64_t count, DType dtype,
                                 Stream& stream, std::string_view what) = 0;
  // Sums all ranks' `from`, of ranks x count elements, and writes the `count` elements at rank x
  // count of the sum to `to`.
  virtual absl::Status ReduceScatter(const void* from, void* to, int64_t count, DType dtype,
                                     Stream& stream, std::string_view what) = 0;
  // Exchange with another rank, whose calls of the same number of bytes pair up in order.
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
  virtual int version() const = 0;            // of the library; should be the same on all ranks
  // Identifies the device's GPU among those of all machines: two ranks must not share one.
  virtual const std::string& gpu() const = 0;

  virtual absl::StatusOr<std::string> NewId() = 0;
  // Blocks until all ranks have come. Errors name the communicator.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Join(
      const CommunicatorOptions& options) = 0;
};

// Returns a GPU's name among those of all machines, from its address on this one.
std::string NameGpu(std::string_view pci_address);

}  // namespace shoal::worker
