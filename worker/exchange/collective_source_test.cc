// The source that gathers weights from all workers: every worker has all of each unit, in any order
// of use; errors when a worker, the library or a server fails, and steps after that.
#include "worker/exchange/collective_source.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "core/base/bf16.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/gpu/fake_cuda/fake_cuda.h"
#include "core/plan/memory/memory_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/collectives/nccl/fake_nccl/fake_nccl.h"
#include "worker/exchange/testing/exchange.h"
#include "worker/exchange/testing/fetches.h"

namespace shoal::worker {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;

// The weights a worker's device computed with: copies of units to pinned memory, made late.
class Seen {
 public:
  // Gets the unit, copies it and releases it.
  absl::Status Use(ExchangingWorker& worker, int unit) {
    SHOAL_ASSIGN_OR_RETURN(const WeightsView view, worker.source->Get(unit));
    const int64_t bytes = view.count * SizeOf(view.dtype);
    SHOAL_ASSIGN_OR_RETURN(Buffer copy, worker.host->Allocate(bytes));
    worker.compute->Copy(copy.data(), view.data, bytes);
    worker.source->Release(unit);
    copies_.push_back({unit, view.dtype, std::move(copy)});
    return absl::OkStatus();
  }
  // Call after the stream is done. Names the first element that is not the unit's of `version`;
  // empty if none.
  std::string Wrong(int64_t version) const {
    for (size_t use = 0; use < copies_.size(); ++use) {
      const Copy& copy = copies_[use];
      const int64_t count = copy.memory.bytes() / SizeOf(copy.dtype);
      for (int64_t i = 0; i < count; ++i) {
        const std::byte* const at = copy.memory.data() + i * SizeOf(copy.dtype);
        const float seen = copy.dtype == DType::kF32
                               ? *reinterpret_cast<const float*>(at)
                               : static_cast<float>(*reinterpret_cast<const BFloat16*>(at));
        if (seen != client::FakeServer::Weight(version, copy.unit, i)) {
          return fmt::format("use {}: element {} of unit {} is {}", use, i, copy.unit, seen);
        }
      }
    }
    return "";
  }

 private:
  struct Copy {
    int unit = 0;
    DType dtype = DType::kF32;
    Buffer memory;
  };
  std::vector<Copy> copies_;
};

// Uses all units in turn and checks that each had the weights of `version`.
absl::Status UseAll(ExchangingWorker& worker, const std::vector<int>& uses, int64_t version) {
  Seen seen;
  worker.source->BeginStep(uses);
  for (const int unit : uses) {
    SHOAL_RETURN_IF_ERROR(seen.Use(worker, unit));
  }
  SHOAL_RETURN_IF_ERROR(worker.compute->Synchronize());
  SHOAL_RETURN_IF_ERROR(worker.exchange->status());  // otherwise the copies mean nothing
  const std::string wrong = seen.Wrong(version);
  return wrong.empty() ? absl::OkStatus() : Internal("worker {}: {}", worker.rank, wrong);
}

void MakeSources(TestingExchange& exchange, const CollectiveSource::Options& options) {
  ASSERT_THAT(
      exchange.Run([&](ExchangingWorker& worker) { return exchange.MakeSource(worker, options); }),
      Each(IsOk()));
}

const std::vector<int> kUses = {0, 1, 2, 3, 0, 2, 1, 3};

TEST(CollectiveSource, EveryWorkerHasAllOfEachUnitInAnyOrder) {
  Random random(3);
  uint64_t seed = 0;
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const bool keep : {false, true}) {
      for (const int prefetch : {0, 1, 8}) {
        TestingExchange exchange({.seed = ++seed, .compute_type = type});
        MakeSources(exchange, {.uses = {.keep_for_step = keep, .prefetch_units = prefetch},
                               .buffers_per_size = prefetch + 2});
        int64_t step = 0;
        for (const size_t length : {0, 1, 7, 20}) {
          SCOPED_TRACE(testing::Message()
                       << length << " uses, prefetch " << prefetch << ", keep " << keep);
          std::vector<int> uses(length);
          for (int& unit : uses) {
            unit = static_cast<int>(random.Below(4));
          }
          const int64_t before = exchange.worker(1).exchange->statistics().all_gathers;
          ++step;
          EXPECT_THAT(exchange.RunAttempt(
                          {step, 1},
                          [&](ExchangingWorker& worker) { return UseAll(worker, uses, step - 1); }),
                      Each(IsOk()));
          EXPECT_EQ(exchange.worker(1).exchange->statistics().all_gathers - before,
                    FetchesOf(uses, prefetch, keep));
        }
      }
    }
  }
}

// A worker gets its shard once per step, however often a unit is used, and none if it is empty.
TEST(CollectiveSource, AShardIsGotOnceAStep) {
  TestingExchange exchange({});
  MakeSources(exchange, {.uses = {.prefetch_units = 1}});
  for (int64_t step = 1; step <= 2; ++step) {
    std::map<int, int64_t> before;
    for (int rank = 0; rank < 3; ++rank) {
      before[rank] = exchange.worker(rank).client->statistics().fetches;
    }
    ASSERT_THAT(exchange.RunAttempt({step, 1},
                                    [&](ExchangingWorker& worker) {
                                      return UseAll(worker, {3, 0, 3, 1, 0, 3}, step - 1);
                                    }),
                Each(IsOk()));
    for (int rank = 0; rank < 3; ++rank) {
      const ExchangingWorker& worker = exchange.worker(rank);
      int64_t shards = 0;
      for (const int unit : {0, 1, 3}) {
        shards += worker.shards.of(unit).own.count > 0 ? 1 : 0;
      }
      EXPECT_EQ(worker.client->statistics().fetches - before[rank], shards) << rank;
    }
  }
  EXPECT_EQ(exchange.worker(2).shards.of(3).own.count, 0) << "one that is empty";
}

TEST(CollectiveSource, GoesOnWithUsesThatAreAdded) {
  TestingExchange exchange({.seed = 5});
  MakeSources(exchange, {.uses = {.prefetch_units = 2}});
  const std::vector<int> order = plan::UseOrder(*plan::NamedShape("tiny"));
  EXPECT_THAT(exchange.RunAttempt({1, 1},
                                  [&](ExchangingWorker& worker) -> absl::Status {
                                    Seen seen;
                                    worker.source->BeginStep(order);
                                    for (int microbatch = 0; microbatch < 3; ++microbatch) {
                                      for (const int unit : order) {
                                        SHOAL_RETURN_IF_ERROR(seen.Use(worker, unit));
                                      }
                                      worker.source->AddUses(order);
                                    }
                                    SHOAL_RETURN_IF_ERROR(worker.compute->Synchronize());
                                    EXPECT_EQ(seen.Wrong(0), "");
                                    return absl::OkStatus();
                                  }),
              Each(IsOk()));
}

TEST(CollectiveSource, RefusesWhatIsNotNext) {
  TestingExchange exchange({.workers = 2});
  MakeSources(exchange, {.uses = {.prefetch_units = 0}});
  exchange.RunAttempt({1, 1}, [](ExchangingWorker& worker) {
    worker.source->BeginStep(std::vector<int>{1, 2});
    EXPECT_THAT(std::string(worker.source->Get(2).status().message()),
                HasSubstr("the step's order of use has block.0 here"));
    return absl::OkStatus();
  });
}

TEST(CollectiveSource, BuffersThatDoNotSufficeAreSaid) {
  TestingExchange exchange({.workers = 2});
  MakeSources(exchange, {.uses = {.prefetch_units = 0}, .buffers_per_size = 1});
  exchange.RunAttempt({1, 1}, [](ExchangingWorker& worker) {
    worker.source->BeginStep(std::vector<int>{1, 2});  // of equal size
    EXPECT_TRUE(worker.source->Get(1).ok());
    const absl::Status status = worker.source->Get(2).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(Message(status)), HasSubstr("get block.1: all buffers of its size"));
    return worker.compute->Synchronize();
  });
  EXPECT_THAT(exchange.RunAttempt({1, 2},
                                  [](ExchangingWorker& worker) {
                                    return UseAll(worker, {1, 2, 1}, 0);
                                  }),
              Each(IsOk()));
}

// Drops an attempt at each of its points in turn, with a unit held and workers at different points.
// The next attempt is right.
TEST(CollectiveSource, ADroppedAttemptLeavesNothingInTheNext) {
  for (const bool keep : {false, true}) {
    TestingExchange exchange({.seed = 7});
    MakeSources(exchange, {.uses = {.keep_for_step = keep, .prefetch_units = 2}});
    int64_t step = 0;
    for (size_t length = 0; length < kUses.size(); ++length) {
      ++step;
      const auto statuses =
          exchange.RunAttempt({step, 1}, [&](ExchangingWorker& worker) -> absl::Status {
            Seen seen;
            worker.source->BeginStep(kUses);
            const size_t end =
                std::min(length + static_cast<size_t>(worker.rank), kUses.size() - 1);
            for (size_t use = 0; use < end; ++use) {
              SHOAL_RETURN_IF_ERROR(seen.Use(worker, kUses[use]));
            }
            SHOAL_RETURN_IF_ERROR(worker.source->Get(kUses[end]).status());
            return Aborted("the attempt was dropped");
          });
      EXPECT_THAT(statuses, Each(HasCode(absl::StatusCode::kAborted)));
      EXPECT_THAT(
          exchange.RunAttempt(
              {step, 2}, [&](ExchangingWorker& worker) { return UseAll(worker, kUses, step - 1); }),
          Each(IsOk()))
          << "after " << length << " uses";
    }
  }
}

// One worker's collective fails: it ends for all, and the next attempt, over a new communicator, is
// right.
TEST(CollectiveSource, ACommunicatorThatFailsEndsTheAttemptOfAll) {
  TestingExchange exchange({.seed = 11});
  MakeSources(exchange, {.uses = {.prefetch_units = 1}});
  int64_t step = 0;
  for (const int64_t collective : {1, 2, 8, 15}) {
    ++step;
    FailCollective(collective, ncclRemoteError);
    const auto use_all = [&](ExchangingWorker& worker) { return UseAll(worker, kUses, step - 1); };
    const auto statuses = exchange.RunAttempt({step, 1}, use_all);
    EXPECT_THAT(statuses, Each(AnyOf(HasCode(absl::StatusCode::kUnavailable),
                                     HasCode(absl::StatusCode::kAborted))));
    EXPECT_EQ(std::ranges::count_if(statuses, absl::IsUnavailable), 1)
        << "collective " << collective;
    EXPECT_THAT(exchange.RunAttempt({step, 2}, use_all), Each(IsOk()));
  }
}

// A refusal may be temporary: the attempt after a failed one has every weight. (In the failed one,
// others may see what the failed worker did not copy.)
TEST(CollectiveSource, StartsAnewAfterAnEventThatWasRefused) {
  int64_t failed = 0;
  for (int64_t number = 1; number <= 60; number += 3) {
    SCOPED_TRACE(testing::Message() << "event " << number);
    TestingExchange exchange({.seed = static_cast<uint64_t>(100 + number)});
    MakeSources(exchange, {.uses = {.prefetch_units = 1}, .buffers_per_size = 3});
    gpu::FailCall("cudaEventRecord", number, cudaErrorMemoryAllocation);
    int64_t failures = 0;
    for (int64_t attempt = 1; attempt <= 4; ++attempt) {
      const std::vector<absl::Status> statuses = exchange.RunAttempt(
          {1, attempt}, [&](ExchangingWorker& worker) { return UseAll(worker, kUses, 0); });
      failures += std::ranges::all_of(statuses, &absl::Status::ok) ? 0 : 1;
    }
    EXPECT_LE(failures, 1);
    failed += failures;
  }
  EXPECT_GT(failed, 10);
}

TEST(CollectiveSource, TellsOfAServerThatIsLost) {
  TestingExchange exchange({.seed = 13});
  MakeSources(exchange, {.uses = {.prefetch_units = 1}});
  client::FakeServer& server = exchange.rig().server(0);
  std::atomic<int> told = 0;
  const auto lose = [&](ExchangingWorker& worker) -> absl::Status {
    server.RefuseConnections(absl::UnavailableError("gone fishing"));
    server.BreakConnections();
    const absl::Status status = UseAll(worker, kUses, 0);
    told += absl::StrContains(status.message(), "gone fishing") ? 1 : 0;
    return status;
  };
  for (const absl::Status& status : exchange.RunAttempt({1, 1}, lose)) {
    EXPECT_FALSE(status.ok());
  }
  EXPECT_GT(told, 0);
  server.RefuseConnections(absl::OkStatus());
  EXPECT_THAT(exchange.RunAttempt(
                  {1, 2}, [](ExchangingWorker& worker) { return UseAll(worker, kUses, 0); }),
              Each(IsOk()));
}

TEST(CollectiveSource, NothingGoesOnOnceCancelled) {
  TestingExchange exchange({.workers = 2});
  MakeSources(exchange, {.uses = {.prefetch_units = 1}});
  const absl::Status leaving = absl::CancelledError("leaving");
  const auto ended = exchange.RunAttempt({1, 1}, [&](ExchangingWorker& worker) {
    worker.source->BeginStep(std::vector<int>{0, 1});
    worker.source->Cancel(leaving);
    EXPECT_EQ(worker.source->Get(0).status(), leaving);
    return absl::OkStatus();
  });
  EXPECT_THAT(ended, Each(leaving));
}

TEST(CollectiveSource, MemoryThatDoesNotSufficeIsSaid) {
  TestingExchange exchange({.workers = 1});
  ExchangingWorker& worker = exchange.worker(0);
  const std::unique_ptr<Device> small = *MakeCudaDevice({.budget_bytes = 1000});
  StepEnvironment environment = exchange.environment(worker);
  environment.device = small.get();
  const auto source = CollectiveSource::Create({.uses = {.units = 4}}, environment, worker.shards,
                                               worker.exchange.get());
  EXPECT_EQ(source.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace shoal::worker
