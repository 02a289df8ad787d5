// NCCL for tests, over the fake CUDA runtime (core/gpu/fake_cuda): ranks are threads of one
// process, each with its own fake GPU. Programs that link this library instead of
// nccl_library.cc get it from LoadNccl.
//
// What it is strict about:
// - A call puts its work on the stream at once or, depending on the seed, only when NCCL is asked
//   about its progress, as nonblocking communicators may. Another call before that is refused, as
//   is one in a thread where the rank's GPU is not current.
// - The work starts when the stream has reached it, and is done when the other ranks' work has
//   started: all data moves at that moment.
// - Ranks whose calls do not match wait forever, and so does a rank that waits for one that does
//   not come.
// - Two ranks on one GPU are refused, as NCCL does.
//
// Not fake: calls that block, groups, several GPUs per thread.
#pragma once

#include <nccl.h>

#include <cstdint>

namespace shoal::worker {

struct FakeNccl {
  bool there = true;  // if false, LoadNccl finds none
  int version = NCCL_VERSION_CODE;
};
// Resets failures and counts. No communicator may exist.
void SetFakeNccl(const FakeNccl& nccl);

// Makes the `number`-th collective from now (1: the next), counted over all ranks as streams reach
// them, not start; its communicator has that error from then on.
void FailCollective(int64_t number, ncclResult_t error);

// Counted since SetFakeNccl.
struct NcclCounters {
  int64_t communicators = 0;  // of ranks, current
  int64_t aborted = 0;        // of ranks
  int64_t all_gathers = 0;    // done
  int64_t reduce_scatters = 0;
  int64_t messages = 0;
};
NcclCounters CountNccl();

}  // namespace shoal::worker
