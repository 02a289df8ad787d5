#include "server/coordinator/job/server_demand.h"

#include <string>

#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

std::vector<Member> Servers(const std::vector<std::pair<std::string, int64_t>>& hosts) {
  std::vector<Member> servers;
  for (const auto& [host, gib] : hosts) {
    servers.push_back({.role = proto::ROLE_SERVER,
                       .index = static_cast<int>(servers.size()),
                       .host = host,
                       .free_memory_bytes = gib * kGiB});
  }
  return servers;
}

// 24 GiB in all, in pieces of 1 GiB.
std::vector<int64_t> Bytes(int servers) {
  std::vector<int64_t> bytes;
  for (int server = 0; server < servers; ++server) {
    const int pieces = server < 24 ? 24 / servers + (server < 24 % servers ? 1 : 0) : 0;
    bytes.push_back(pieces * kGiB);
  }
  return bytes;
}

std::string Refusal(std::span<const Member> there, const ServerDemand& demand) {
  const auto takes = DecideServers(there, demand);
  EXPECT_FALSE(takes.ok()) << *takes;
  return std::string(Message(takes.status()));
}

TEST(DecideServers, TakesWhatTheJobSaysOrThoseThatAreThere) {
  const auto three = Servers({{"a", 0}, {"b", 0}, {"c", 0}});
  EXPECT_EQ(*DecideServers(three, {.servers = 2}), 2);
  EXPECT_EQ(*DecideServers(three, {}), 3);
  EXPECT_EQ(*DecideServers(three, {.servers = 5, .waits = true}), 5);
  EXPECT_EQ(*DecideServers({}, {.waits = true, .bytes = Bytes}), 1);
  EXPECT_THAT(Refusal(three, {.servers = 5}),
              HasSubstr("takes 5 servers (cluster.servers) and 3 are there"));
  EXPECT_THAT(Refusal({}, {}), HasSubstr("takes 1 servers (cluster.servers) and 0 are there"));
}

TEST(DecideServers, RefusesWithFiguresWhatDoesNotFit) {
  const auto two = Servers({{"a", 12}, {"b", 9}});
  EXPECT_THAT(Refusal(two, {.bytes = Bytes}),
              HasSubstr("with 2 servers the job needs 12.0 GiB of memory of the one on b, where "
                        "9.0 GiB are free: 3 servers with as much would do: start more, or let "
                        "it wait with --wait-for-servers"));
  EXPECT_THAT(Refusal(two, {.servers = 2, .waits = true, .bytes = Bytes}),
              HasSubstr("3 servers with as much would do (cluster.servers)"));
  EXPECT_EQ(*DecideServers(Servers({{"a", 12}, {"b", 12}}), {.bytes = Bytes}), 2);
}

TEST(DecideServers, WaitsForAsManyAsItFits) {
  EXPECT_EQ(*DecideServers(Servers({{"a", 12}, {"b", 9}}), {.waits = true, .bytes = Bytes}), 3);
  EXPECT_EQ(*DecideServers(Servers({{"a", 1}}), {.waits = true, .bytes = Bytes}), 24);
  const auto never = [](int servers) { return std::vector<int64_t>(servers, 2 * kGiB); };
  EXPECT_THAT(Refusal(Servers({{"a", 1}}), {.waits = true, .bytes = never}),
              HasSubstr("a smaller model"));
}

TEST(DecideServers, ServersOfAHostShareItsMemory) {
  EXPECT_EQ(*DecideServers(Servers({{"a", 24}, {"a", 24}}), {.bytes = Bytes}), 2);
  EXPECT_THAT(Refusal(Servers({{"a", 24}, {"a", 20}}), {.bytes = Bytes}),
              HasSubstr("24.0 GiB of memory of the 2 on a, where 20.0 GiB are free: 3 servers"));
  EXPECT_EQ(
      DecideServers(Servers({{"a", 8}, {"a", 0}, {"a", 8}}), {.bytes = Bytes}).status().code(),
      absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace shoal::server
