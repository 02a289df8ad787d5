#include "core/plan/placement/map_history.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/base/random.h"
#include "core/job/shard_map_message.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

// With the partitions that have other holders than before.
void Add(MapHistory& history, const ShardMap& before, const ShardMap& now,
         const std::vector<int>& places) {
  const auto place_of = [&](int holder) {
    return places.empty() ? holder : places[static_cast<size_t>(holder)];
  };
  std::vector<int> changed;
  for (size_t id = 0; id < now.servers.size(); ++id) {
    if (!std::ranges::equal(before.servers[id], now.servers[id], {}, place_of)) {
      changed.push_back(static_cast<int>(id));
    }
  }
  history.Add(before.generation, now, places, changed);
}

// A job's servers, each on a host, and who holds what, as waves, losses and joiners change them.
class Job {
 public:
  Job(uint64_t seed, int servers, int partitions, int replicas)
      : random_(seed, 1), replicas_(static_cast<size_t>(replicas)) {
    for (int server = 0; server < servers; ++server) {
      AddServer();
    }
    map_.generation = 1;
    for (int id = 0; id < partitions; ++id) {
      map_.servers.push_back(HoldersOf());
    }
  }

  const ShardMap& map() const { return map_; }
  // As a client of one of the hosts gets the whole of it.
  ShardMap MapFor(int client) const {
    return FromMessage(ToMessage(WithReaders(map_, Hosts(), HostOf(client), client)));
  }
  // As it is told what has changed.
  std::optional<proto::MapChange> ChangeFor(int client, int64_t generation) const {
    std::optional<MapChange> change = history_.Since(generation, map_);
    if (!change.has_value()) {
      return std::nullopt;
    }
    for (MapChange::Partition& partition : change->partitions) {
      partition.reader = ReaderOf(partition.id, partition.servers, Hosts(), HostOf(client), client);
    }
    return ToMessage(*change);
  }

  void Change() {
    const ShardMap before = map_;
    const std::vector<std::pair<int, std::string>> servers_before = servers_;
    map_.generation += static_cast<int64_t>(1 + random_.Below(2));
    std::vector<int> places;
    const uint64_t what = random_.Below(4);
    if (what == 0) {
      AddServer();
    }
    if (what == 1 && servers_.size() > replicas_ + 1) {
      LoseServer(static_cast<int>(random_.Below(servers_.size())));
    }
    for (uint64_t moves = random_.Below(4); moves > 0; --moves) {
      map_.servers[random_.Below(map_.servers.size())] = HoldersOf();
    }
    if (servers_ != servers_before) {
      for (const auto& server : servers_before) {
        const auto found = std::ranges::find(servers_, server);
        places.push_back(found == servers_.end() ? MapChange::kGone
                                                 : static_cast<int>(found - servers_.begin()));
      }
    }
    Add(history_, before, map_, places);
  }

 private:
  void AddServer() { servers_.emplace_back(next_++, HostOf(static_cast<int>(random_.Below(3)))); }
  static std::string HostOf(int client) {
    return std::string(1, static_cast<char>('a' + client % 3));
  }
  std::vector<std::string> Hosts() const {
    std::vector<std::string> hosts;
    for (const auto& [server, host] : servers_) {
      hosts.push_back(host);
    }
    return hosts;
  }
  // As many as there are to be, that are not in the list yet, after those that are.
  Holders HoldersOf(Holders holders = {}) {
    while (holders.size() < replicas_) {
      const int server = static_cast<int>(random_.Below(servers_.size()));
      if (std::ranges::find(holders, server) == holders.end()) {
        holders.push_back(server);
      }
    }
    return holders;
  }
  void LoseServer(int lost) {
    servers_.erase(servers_.begin() + lost);
    for (Holders& holders : map_.servers) {
      holders.erase(std::remove(holders.begin(), holders.end(), lost), holders.end());
      for (int& holder : holders) {
        holder -= holder > lost ? 1 : 0;
      }
      holders = HoldersOf(holders);
    }
  }

  Random random_;
  const size_t replicas_;
  int next_ = 0;
  std::vector<std::pair<int, std::string>> servers_;  // number, that none has twice, and host
  ShardMap map_;
  MapHistory history_;
};

TEST(MapHistory, WhoeverKnowsAnOlderMapComesToTheNewestByWhatHasChanged) {
  int by_change = 0;
  int whole = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const int replicas = 1 + static_cast<int>(seed % 3);
    Job job(seed, /*servers=*/replicas + 2, /*partitions=*/40, replicas);
    std::map<int64_t, std::vector<ShardMap>> known;  // by generation: of three clients
    for (int wave = 0; wave < 12; ++wave) {
      known[job.map().generation] = {job.MapFor(0), job.MapFor(1), job.MapFor(2)};
      job.Change();
      for (const auto& [generation, maps] : known) {
        for (int client = 0; client < 3; ++client) {
          const auto message = job.ChangeFor(client, generation);
          if (!message.has_value()) {
            ++whole;
            continue;
          }
          ++by_change;
          const auto change = FromMessage(*message);
          ASSERT_TRUE(change.ok()) << change.status();
          const auto map = Apply(maps[static_cast<size_t>(client)], *change);
          ASSERT_TRUE(map.ok()) << map.status();
          ASSERT_EQ(*map, job.MapFor(client)) << "seed " << seed << " from " << generation;
        }
      }
    }
  }
  EXPECT_GT(by_change, 1000);
  EXPECT_GT(whole, 1000);
}

// Each moves one of 1,000 partitions.
TEST(MapHistory, RemembersTheLastChangesAndNoMoreThanHalfAMap) {
  MapHistory history;
  ShardMap map = {.generation = 1, .servers = std::vector(1000, Holders{0})};
  const auto move = [&](int first, int count) {
    const ShardMap before = map;
    ++map.generation;
    for (int id = first; id < first + count; ++id) {
      map.servers[static_cast<size_t>(id)][0] += 1;
    }
    Add(history, before, map, {});
  };
  for (int wave = 0; wave < 80; ++wave) {
    move(wave, 1);
  }
  EXPECT_FALSE(history.Since(16, map).has_value());
  ASSERT_TRUE(history.Since(17, map).has_value());
  EXPECT_EQ(history.Since(17, map)->partitions.size(), MapHistory::kMostChanges);
  EXPECT_TRUE(history.Since(81, map)->partitions.empty()) << "it is the newest";
  EXPECT_FALSE(history.Since(82, map).has_value()) << "there is none";
  move(100, 490);
  EXPECT_FALSE(history.Since(70, map).has_value());
  EXPECT_EQ(history.Since(71, map)->partitions.size(), 500u);
  move(0, 501);
  EXPECT_FALSE(history.Since(82, map).has_value()) << "the whole map is not much larger";
  EXPECT_TRUE(history.Since(83, map).has_value());
}

TEST(MapChange, IsRefusedWhereItDoesNotFit) {
  const ShardMap map = {.generation = 3, .servers = {{0, 1}, {1, 0}, {2, 1}}};
  const MapChange fits = {.from = 3,
                          .to = 5,
                          .places = {0, MapChange::kGone, 1},
                          .partitions = {{.id = 0, .servers = {0, 1}, .reader = 1},
                                         {.id = 1, .servers = {0}, .reader = 0},
                                         {.id = 2, .servers = {1}, .reader = 1}}};
  EXPECT_EQ(*Apply(map, fits),
            (ShardMap{.generation = 5, .servers = {{0, 1}, {0}, {1}}, .readers = {1, 0, 1}}));
  const auto why_not = [&](auto change_it) {
    MapChange change = fits;
    change_it(change);
    const auto applied = Apply(map, change);
    return applied.ok() ? "" : std::string(applied.status().message());
  };
  EXPECT_EQ(why_not([](MapChange& change) { change.from = 2; }),
            "it leads from generation 2 to 5, the map known is of 3");
  EXPECT_EQ(why_not([](MapChange& change) { change.to = 3; }),
            "it leads from generation 3 to 3, the map known is of 3");
  EXPECT_EQ(why_not([](MapChange& change) { change.places[1] = 1; }), "two servers have place 1");
  EXPECT_EQ(why_not([](MapChange& change) { change.places[1] = -2; }), "a server has place -2");
  EXPECT_EQ(why_not([](MapChange& change) { change.partitions.pop_back(); }),
            "it leaves partition 2 on a server that is gone");
  EXPECT_EQ(why_not([](MapChange& change) { change.partitions[2].id = 3; }),
            "it changes partition 3 of 3");
  EXPECT_EQ(why_not([](MapChange& change) { change.partitions[0].id = -1; }),
            "it changes partition -1 of 3");
  EXPECT_EQ(why_not([](MapChange& change) { change.partitions[1].id = 0; }),
            "it changes partition 0 after 0");
  EXPECT_EQ(why_not([](MapChange& change) { change.partitions[1].servers = {}; }),
            "it puts partition 1 on no server");
  EXPECT_EQ(why_not([](MapChange& change) {
              change.partitions[1].servers = {0, -1};
            }),
            "it puts partition 1 on no server");
  EXPECT_EQ(why_not([](MapChange& change) { change.partitions[1].reader = 1; }),
            "partition 1 is to be read from server 1, which does not hold it");
  for (const ShardMap& known :
       {ShardMap{.generation = 3, .servers = {{0, 1}, {}, {2, 1}}},
        ShardMap{.generation = 3, .servers = {{0, 1}, {1, 0}, {2, 1}}, .readers = {0, 1}}}) {
    EXPECT_EQ(Apply(known, fits).status().message(),
              "the map known does not name a server of each partition");
  }
}

TEST(MapChange, ListsThatDoNotFitTogetherAreRefused) {
  const proto::MapChange fits =
      ToMessage(MapChange{.from = 1,
                          .to = 2,
                          .partitions = {{.id = 4, .servers = {0, 1}, .reader = 1},
                                         {.id = 7, .servers = {2}, .reader = 2}}});
  EXPECT_TRUE(FromMessage(fits).ok());
  const auto is_refused = [&](auto change_it) {
    proto::MapChange message = fits;
    change_it(message);
    return absl::IsInvalidArgument(FromMessage(message).status());
  };
  EXPECT_TRUE(is_refused([](auto& message) { message.add_partitions(8); }));
  EXPECT_TRUE(is_refused([](auto& message) { message.add_readers(0); }));
  EXPECT_TRUE(is_refused([](auto& message) { message.add_servers(0); }));
  EXPECT_TRUE(is_refused([](auto& message) { message.set_holders(1, 2); }));
  EXPECT_TRUE(is_refused([](auto& message) { message.set_holders(1, 0); }));
  EXPECT_TRUE(is_refused([](auto& message) { message.set_holders(0, 1 << 30); }));
  EXPECT_TRUE(is_refused([](auto& message) { message.set_holders(0, -1); }));
}

}  // namespace
}  // namespace shoal::plan
