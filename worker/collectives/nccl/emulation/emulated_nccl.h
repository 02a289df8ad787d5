// NCCL of tests, over the emulated CUDA runtime (core/gpu/fake_cuda): ranks are threads
// of one process, each with an emulated GPU of its own. Programs that link this library instead of
// nccl_library.cc get it from LoadNccl.
//
// What it is strict about. A call puts its work on the stream at once or, by the seed, only when
// NCCL is asked how it is getting on, as communicators whose calls do not block may; another call
// before that is refused, as is one without the rank's GPU being the thread's. The work starts when
// the stream has come to it, and is done when the other ranks' have started: all data moves at that
// moment. Ranks that make calls that do not match wait for ever, as does who waits for a rank that
// does not come. Two ranks on one GPU are refused, as NCCL does.
//
// Not there: calls that block, groups, several GPUs for a thread.
#pragma once

#include <nccl.h>

#include <cstdint>

namespace shoal::worker {

struct EmulatedNccl {
  bool there = true;  // else LoadNccl finds none
  int version = NCCL_VERSION_CODE;
};
// Forgets failures and counts. No communicator is left.
void SetEmulatedNccl(const EmulatedNccl& nccl);

// The collective of this number from now (1: the next), counted for all ranks as streams come to
// them, does not start; its communicator has that error from then on.
void FailCollective(int64_t number, ncclResult_t error);

// Since SetEmulatedNccl.
struct NcclCounters {
  int64_t communicators = 0;  // ranks', now
  int64_t aborted = 0;        // ranks'
  int64_t all_gathers = 0;    // done
  int64_t reduce_scatters = 0;
  int64_t messages = 0;
};
NcclCounters CountNccl();

}  // namespace shoal::worker
