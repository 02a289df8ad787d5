#include <arpa/inet.h>

#include <cstdlib>
#include <set>

#include "core/base/random.h"
#include "core/transport/verbs/topology/device_choice.h"
#include "core/transport/verbs/topology/gid_kind.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::transport {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Gid GidOf(const std::string& text) {
  Gid gid{};
  const bool ipv4 = text.find(':') == std::string::npos;
  EXPECT_EQ(inet_pton(AF_INET6, (ipv4 ? "::ffff:" + text : text).c_str(), gid.data()), 1) << text;
  return gid;
}

Rail EthernetRail(const std::vector<std::string>& addresses) {
  Rail rail;
  for (const std::string& address : addresses) {
    rail.gids.push_back({static_cast<int>(rail.gids.size()), GidOf(address), GidType::kRoceV2});
  }
  return rail;
}

Rail InfiniBandRail(uint16_t lid, const std::string& gid) {
  Rail rail = EthernetRail({gid});
  rail.port.link_layer = LinkLayer::kInfiniBand;
  rail.port.lid = lid;
  return rail;
}

RemoteRail AsRemote(const Rail& rail) {
  RemoteRail remote{rail.port.link_layer, rail.port.lid, 4096, {}};
  for (const GidDescription& gid : rail.gids) {
    remote.gids.push_back(gid.gid);
  }
  return remote;
}

std::vector<RemoteRail> AsRemote(const std::vector<Rail>& rails) {
  std::vector<RemoteRail> remote;
  for (const Rail& rail : rails) {
    remote.push_back(AsRemote(rail));
  }
  return remote;
}

// "0-1 10.0.0.1>10.0.0.2" for each pair.
std::vector<std::string> Paired(const std::vector<Rail>& local, const std::vector<Rail>& remote) {
  std::vector<std::string> pairs;
  for (const RailPair& pair : PairRails(local, AsRemote(remote))) {
    const Rail& a = local[static_cast<size_t>(pair.local)];
    const Rail& b = remote[static_cast<size_t>(pair.remote)];
    pairs.push_back(fmt::format("{}-{} {}>{}", pair.local, pair.remote,
                                FormatGid(a.gids[static_cast<size_t>(pair.local_gid)].gid),
                                FormatGid(b.gids[static_cast<size_t>(pair.remote_gid)].gid)));
  }
  return pairs;
}

TEST(PairRails, RailsOfTheSameSubnetTalkToEachOther) {
  EXPECT_THAT(Paired({EthernetRail({"10.1.0.1"}), EthernetRail({"10.2.0.1"})},
                     {EthernetRail({"10.2.0.9"}), EthernetRail({"10.1.0.9"})}),
              ElementsAre("0-1 10.1.0.1>10.1.0.9", "1-0 10.2.0.1>10.2.0.9"));
}

TEST(PairRails, WhatIsLeftOverStaysUnpaired) {
  EXPECT_THAT(Paired({EthernetRail({"10.1.0.1"}), EthernetRail({"10.2.0.1"})},
                     {EthernetRail({"10.2.0.9"})}),
              ElementsAre("1-0 10.2.0.1>10.2.0.9"));
  EXPECT_THAT(Paired({}, {EthernetRail({"10.2.0.9"})}), IsEmpty());
  EXPECT_THAT(Paired({EthernetRail({"10.2.0.9"})}, {}), IsEmpty());
  EXPECT_THAT(Paired({Rail{}}, {Rail{}}), IsEmpty());
}

TEST(PairRails, FamiliesDoNotMix) {
  EXPECT_THAT(Paired({EthernetRail({"10.1.0.1"})}, {EthernetRail({"fd00::1"})}), IsEmpty());
  EXPECT_THAT(Paired({EthernetRail({"10.1.0.1", "fd00::1"})}, {EthernetRail({"fd00::2"})}),
              ElementsAre("0-0 fd00::1>fd00::2"));
}

TEST(PairRails, LoopbackReachesOnlyItself) {
  const Rail lo = EthernetRail({"127.0.0.1", "::1"});
  const Rail dummy = EthernetRail({"10.77.0.1"});
  EXPECT_THAT(Paired({lo}, {dummy}), IsEmpty());
  EXPECT_THAT(Paired({lo}, {lo}), ElementsAre("0-0 127.0.0.1>127.0.0.1"));
  // One host with both, seen twice: crosswise they do not reach each other.
  EXPECT_THAT(Paired({lo, dummy}, {dummy, lo}),
              ElementsAre("1-0 10.77.0.1>10.77.0.1", "0-1 127.0.0.1>127.0.0.1"));
  EXPECT_THAT(Paired({lo}, {lo, dummy}), ElementsAre("0-0 127.0.0.1>127.0.0.1"));
}

TEST(PairRails, LoopbackIsNotTakenBetweenTwoHosts) {
  const Rail lo = EthernetRail({"127.0.0.1"});
  EXPECT_THAT(Paired({lo, EthernetRail({"10.0.0.1"})}, {lo, EthernetRail({"10.0.0.2"})}),
              ElementsAre("1-1 10.0.0.1>10.0.0.2"));
  EXPECT_THAT(
      Paired({EthernetRail({"10.0.0.1", "127.0.0.1"})}, {EthernetRail({"10.0.0.2", "127.0.0.1"})}),
      ElementsAre("0-0 10.0.0.1>10.0.0.2"));
}

TEST(PairRails, LinkLayersDoNotMix) {
  EXPECT_THAT(Paired({InfiniBandRail(4, "fe80::1")}, {EthernetRail({"fe80::2"})}), IsEmpty());
}

TEST(PairRails, InfiniBandWithinItsSubnet) {
  EXPECT_THAT(Paired({InfiniBandRail(1, "fe80::1"), InfiniBandRail(2, "fec0:0:0:5::1")},
                     {InfiniBandRail(3, "fec0:0:0:5::2"), InfiniBandRail(4, "fe80::2")}),
              ElementsAre("0-1 fe80::1>fe80::2", "1-0 fec0:0:0:5::1>fec0:0:0:5::2"));
  EXPECT_THAT(Paired({InfiniBandRail(1, "fe80::1")}, {InfiniBandRail(3, "fec0:0:0:5::2")}),
              IsEmpty());
  // In one subnet the ports' numbers mean nothing: the first with the first.
  EXPECT_THAT(Paired({InfiniBandRail(1, "fe80::8"), InfiniBandRail(2, "fe80::7")},
                     {InfiniBandRail(3, "fe80::6"), InfiniBandRail(4, "fe80::9")}),
              ElementsAre("0-0 fe80::8>fe80::6", "1-1 fe80::7>fe80::9"));
}

class Drawing {
 public:
  explicit Drawing(uint64_t seed) : random_(seed) {}

  std::vector<Rail> Host() {
    std::vector<Rail> rails(random_.Below(6));
    for (Rail& rail : rails) {
      rail = random_.Below(4) == 0
                 ? InfiniBandRail(static_cast<uint16_t>(random_.Below(5)), Ipv6("fe80"))
                 : EthernetRail(DistinctAddresses());
    }
    return rails;
  }

 private:
  // Few networks and few hosts, so that much is alike.
  std::string Ipv6(const std::string& first) {
    return fmt::format("{}::{}:0:0:{}", first, random_.Below(2), 1 + random_.Below(3));
  }
  std::vector<std::string> DistinctAddresses() {
    std::set<std::string> addresses;
    for (uint64_t i = random_.Below(4); i > 0; --i) {
      switch (random_.Below(4)) {
        case 0:
          addresses.insert(Ipv6("fd00"));
          break;
        case 1:
          addresses.insert("127.0.0.1");
          break;
        default:
          addresses.insert(fmt::format("10.{}.0.{}", random_.Below(3), 1 + random_.Below(4)));
      }
    }
    std::vector<std::string> shuffled(addresses.begin(), addresses.end());
    random_.Shuffle(shuffled);
    return shuffled;
  }
  Random random_;
};

std::set<std::array<int, 4>> AsSet(const std::vector<RailPair>& pairs, bool mirrored) {
  std::set<std::array<int, 4>> set;
  for (const RailPair& pair : pairs) {
    set.insert(mirrored ? std::array{pair.remote, pair.local, pair.remote_gid, pair.local_gid}
                        : std::array{pair.local, pair.remote, pair.local_gid, pair.remote_gid});
  }
  return set;
}

// Whether one more pair would have been possible.
bool Maximal(const std::vector<Rail>& a, const std::vector<Rail>& b,
             const std::vector<RailPair>& pairs) {
  std::set<int> locals, remotes;
  for (const RailPair& pair : pairs) {
    locals.insert(pair.local);
    remotes.insert(pair.remote);
  }
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) {
      // Loopback depends on what else there is, so those are left out here.
      const bool loopback = std::any_of(a[i].gids.begin(), a[i].gids.end(), [](const auto& gid) {
        return KindOf(gid.gid) == GidKind::kLoopback;
      });
      if (!locals.contains(static_cast<int>(i)) && !remotes.contains(static_cast<int>(j)) &&
          !loopback && !PairRails({&a[i], 1}, AsRemote(std::vector<Rail>{b[j]})).empty()) {
        return false;
      }
    }
  }
  return true;
}

TEST(PairRails, PairsAreOneToOneAndTheSameSeenFromEitherSide) {
  const char* given = std::getenv("SHOAL_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  size_t total = 0;
  for (uint64_t round = 0; round < 3000; ++round) {
    Drawing drawing(seed * 1'000'000 + round);
    const std::vector<Rail> a = drawing.Host();
    const std::vector<Rail> b = drawing.Host();
    const std::vector<RailPair> pairs = PairRails(a, AsRemote(b));
    const std::vector<RailPair> mirrored = PairRails(b, AsRemote(a));
    total += pairs.size();
    SCOPED_TRACE(fmt::format("seed {} round {}", seed, round));
    ASSERT_EQ(AsSet(pairs, false), AsSet(mirrored, true));
    std::set<int> locals, remotes;
    for (const RailPair& pair : pairs) {
      ASSERT_TRUE(locals.insert(pair.local).second);
      ASSERT_TRUE(remotes.insert(pair.remote).second);
      ASSERT_EQ(a[static_cast<size_t>(pair.local)].port.link_layer,
                b[static_cast<size_t>(pair.remote)].port.link_layer);
    }
    ASSERT_EQ(AsSet(pairs, false), AsSet(PairRails(a, AsRemote(b)), false));
    ASSERT_TRUE(Maximal(a, b, pairs));
  }
  EXPECT_GT(total, 1000u);
}

}  // namespace
}  // namespace shoal::transport
