#include "server/copy/state_copy.h"

#include <cmath>
#include <set>

#include "absl/synchronization/mutex.h"
#include "core/base/random.h"
#include "core/model/model_spec.h"
#include "gtest/gtest.h"
#include "server/store/page_buffer.h"
#include "xxhash.h"

namespace shoal::server {
namespace {

absl::Status ReadInitial(int unit, int64_t offset, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(
        Random(static_cast<uint64_t>(unit), static_cast<uint64_t>(offset) + i).Normal());
  }
  return absl::OkStatus();
}

// A server's stores, and the memory that clients read.
class Server {
 public:
  explicit Server(const std::vector<plan::PartitionSpec>& held) {
    auto first = Make(held);
    EXPECT_TRUE(first->Load(0, {.master = ReadInitial, .base = ReadInitial}).ok());
    store = std::make_unique<JobStore>(std::move(first));
  }
  std::unique_ptr<Store> Make(const std::vector<plan::PartitionSpec>& held) {
    weights_.push_back(*PageBuffer::Allocate(CountStoreBytes(held, options_).weights));
    return *Store::Create(units, held, options_, weights_.back().bytes(), &pool_);
  }
  // All of a step in which each partition is pushed its id.
  void Step(int64_t step) {
    store->Clear();
    for (const JobStore::Held& held : store->held()) {
      const plan::PartitionSpec& spec = held.partition->spec();
      const std::vector<float> gradient(static_cast<size_t>(spec.count),
                                        static_cast<float>(spec.id + step) * 0.01F);
      held.partition->ApplyPush(1, DType::kF32,
                                reinterpret_cast<const std::byte*>(gradient.data()));
    }
    ASSERT_TRUE(store->Seal().ok());
    ASSERT_TRUE(store->Commit(step, 1e-2, 1).ok());
  }

  const std::vector<plan::UnitSpec> units = plan::BuildUnits(*plan::NamedShape("tiny"));
  std::unique_ptr<JobStore> store;

 private:
  const StoreOptions options_ = {.accumulate = plan::Accumulate::kExact};
  ThreadPool pool_{2};
  std::vector<PageBuffer> weights_;
};

class StateCopyTest : public testing::Test {
 protected:
  static std::vector<plan::PartitionSpec> All() {
    return plan::BuildPartitions(plan::BuildUnits(*plan::NamedShape("tiny")), 1 << 14);
  }
  static std::vector<plan::PartitionSpec> Some(int first, int last) {
    const std::vector<plan::PartitionSpec> all = All();
    return {all.begin() + first, all.begin() + last};
  }
  static std::set<int> Ids(int first, int last) {
    std::set<int> ids;
    for (int id = first; id < last; ++id) {
      ids.insert(id);
    }
    return ids;
  }
  static proto::ReadStateRequest Wanted(int64_t version) {
    proto::ReadStateRequest wanted;
    wanted.set_version(version);
    return wanted;
  }
  static std::map<int, StateGiver> From(const JobStore& giver, const std::set<int>& ids) {
    std::map<int, StateGiver> givers;
    for (const int id : ids) {
      givers[id] = {"server-0", [&giver](const auto& request, std::span<float> out) {
                      return TakeElements(ReadState(giver, request), out);
                    }};
    }
    return givers;
  }

  ThreadPool readers_{kReadsAtOnce};
};

TEST_F(StateCopyTest, StepsGoOnWithTheSameBitsAtTheOtherServer) {
  const int count = static_cast<int>(All().size());
  ASSERT_GE(count, 6);
  Server alone(All());
  Server from(All());
  Server to({});
  for (Server* server : {&alone, &from}) {
    server->Step(1);
    server->Step(2);
  }
  // Partitions 1 to 3 go, and come back two steps later.
  ASSERT_EQ(to.store->held().size(), 0u);
  to.store->Arrive(to.Make(Some(1, 4)));
  EXPECT_FALSE(to.store->Has(Ids(1, 4))) << "before they are loaded";
  ASSERT_TRUE(to.store->arriving() != nullptr);
  ASSERT_TRUE(
      to.store->arriving()
          ->store
          ->Load(2, FetchedFrom(Some(1, 4), From(*from.store, Ids(1, 4)), Wanted(2), &readers_))
          .ok());
  EXPECT_EQ(to.store->Find(1), nullptr) << "before they are kept";
  to.store->Keep(Ids(1, 4), 2);
  std::set<int> rest = Ids(0, count);
  for (const int gone : Ids(1, 4)) {
    rest.erase(gone);
  }
  from.store->Keep(rest, 2);
  for (int64_t step = 3; step <= 4; ++step) {
    for (Server* server : {&alone, &from, &to}) {
      server->Step(step);
    }
  }
  from.store->Arrive(from.Make(Some(1, 4)));
  ASSERT_TRUE(
      from.store->arriving()
          ->store
          ->Load(4, FetchedFrom(Some(1, 4), From(*to.store, Ids(1, 4)), Wanted(4), &readers_))
          .ok());
  from.store->Keep(Ids(0, count), 4);
  EXPECT_EQ(from.store->extents().size(), 2u);
  to.store->Keep({}, 4);
  EXPECT_EQ(to.store->extents().size(), 0u);
  for (Server* server : {&alone, &from, &to}) {
    server->Step(5);
  }
  EXPECT_EQ(to.store->version(), 5);
  const auto expected = *alone.store->Checksums();
  const auto moved = *from.store->Checksums();
  ASSERT_EQ(expected.size(), moved.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(expected[i].partition, moved[i].partition);
    EXPECT_EQ(expected[i].hash, moved[i].hash) << "partition " << expected[i].partition;
  }
  std::vector<float> scratch;
  for (size_t index = 0; index < alone.store->held().size(); ++index) {
    for (const StateArray array : {StateArray::kFirstMoment, StateArray::kSecondMoment}) {
      const auto a = *alone.store->Read(index, array, scratch);
      const auto b = *from.store->Read(index, array, scratch);
      EXPECT_TRUE(std::ranges::equal(a, b)) << "partition " << index;
    }
  }
}

// Else clients would be told of two, and read where it never comes.
TEST_F(StateCopyTest, APartitionThatIsReservedAgainHasOnePlace) {
  Server to(Some(0, 1));
  const StoreOptions options;
  const auto reserve = [&](int first, int last) {
    return to.store->Reserve(PlacesOf(Some(first, last), options));
  };
  const int region = reserve(1, 3);
  to.store->Arrive(to.Make(Some(1, 2)));
  ASSERT_TRUE(to.store->arriving()->store->Load(0, {.master = ReadInitial}).ok());
  to.store->Keep(Ids(0, 2), 0);
  EXPECT_EQ(reserve(2, 3), region);
  const int other = reserve(2, 4);
  EXPECT_NE(other, region);
  EXPECT_TRUE(to.store->places(other).contains(2));
  EXPECT_FALSE(to.store->places(region).contains(2));
  EXPECT_TRUE(to.store->places(region).contains(1));
  to.store->DropArriving();
  EXPECT_FALSE(to.store->HasRegion(other));
  to.store->Keep(Ids(0, 1), 0);
  EXPECT_FALSE(to.store->HasRegion(region));
}

TEST_F(StateCopyTest, WhatIsToComeCanBeGivenUp) {
  Server from(All());
  Server to({});
  to.store->Arrive(to.Make(Some(0, 2)));
  to.store->DropArriving();
  EXPECT_FALSE(to.store->Has(Ids(0, 2)));
  EXPECT_EQ(to.store->held().size(), 0u);
}

TEST_F(StateCopyTest, RefusesWhatItDoesNotHaveByName) {
  Server from(Some(0, 2));
  const auto code = [&](auto change) {
    proto::ReadStateRequest request = Wanted(0);
    request.set_count(16);
    change(request);
    return ReadState(*from.store, request).status().code();
  };
  EXPECT_EQ(code([](auto&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(code([](auto& r) { r.set_partition(2); }), absl::StatusCode::kNotFound);
  EXPECT_EQ(code([](auto& r) { r.set_version(1); }), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code([](auto& r) { r.set_count(0); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& r) { r.set_count(kMostStateElements + 1); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& r) { r.set_offset(-1); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& r) { r.set_offset(int64_t{1} << 62); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& r) { r.set_array(static_cast<proto::ReadStateRequest::Array>(7)); }),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(StateCopyTest, WhatIsFrozenHasNoState) {
  std::vector<plan::PartitionSpec> some = Some(0, 2);
  some[1].frozen = true;
  Server from(some);
  for (const auto array :
       {proto::ReadStateRequest::ARRAY_MASTER, proto::ReadStateRequest::ARRAY_FIRST_MOMENT,
        proto::ReadStateRequest::ARRAY_SECOND_MOMENT, proto::ReadStateRequest::ARRAY_GRADIENT}) {
    proto::ReadStateRequest request = Wanted(0);
    request.set_array(array);
    request.set_count(16);
    EXPECT_TRUE(ReadState(*from.store, request).ok());
    request.set_partition(1);
    EXPECT_EQ(ReadState(*from.store, request).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(StateCopyTest, ADamagedOrShortAnswerIsNamed) {
  Server from(All());
  for (const bool damaged : {true, false}) {
    Server to({});
    std::map<int, StateGiver> givers = From(*from.store, Ids(0, 2));
    givers[1].read = [&](const proto::ReadStateRequest& request, std::span<float> out) {
      auto reply = ReadState(*from.store, request);
      if (damaged) {
        reply->mutable_elements()->at(5) ^= 1;
      } else {
        reply->mutable_elements()->pop_back();
      }
      return TakeElements(reply, out);
    };
    to.store->Arrive(to.Make(Some(0, 2)));
    const absl::Status loaded =
        to.store->arriving()->store->Load(0, FetchedFrom(Some(0, 2), givers, Wanted(0), &readers_));
    EXPECT_EQ(loaded.message(), "server-0 answered with other state of partition 1 than it read");
    EXPECT_FALSE(to.store->Has(Ids(0, 2)));
  }
}

// Each read waits for another one to be under way.
TEST_F(StateCopyTest, PiecesOfAPartitionAreReadAtOnce) {
  const plan::PartitionSpec large = {.count = 4 * kMostStateElements};
  absl::Mutex mutex;
  int under_way = 0;
  int alone = 0;
  const auto read = [&](const proto::ReadStateRequest& request,
                        std::span<float> out) -> absl::Status {
    std::ranges::fill(out, static_cast<float>(request.offset()));
    {
      absl::MutexLock lock(&mutex);
      ++under_way;
      const auto two = [&under_way] { return under_way >= 2; };
      alone += mutex.AwaitWithTimeout(absl::Condition(&two), absl::Seconds(20)) ? 0 : 1;
    }
    return absl::OkStatus();
  };
  const StoreSource source = FetchedFrom({large}, {{0, {"server-0", read}}}, Wanted(0), &readers_);
  std::vector<float> master(static_cast<size_t>(large.count));
  ASSERT_TRUE(source.master(0, 0, master).ok());
  EXPECT_EQ(alone, 0);
  for (int64_t i = 0; i < large.count; i += kMostStateElements / 2) {
    EXPECT_EQ(master[static_cast<size_t>(i)],
              static_cast<float>(i / kMostStateElements * kMostStateElements));
  }
}

}  // namespace
}  // namespace shoal::server
