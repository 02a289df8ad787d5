#include "tests/support/cluster_access.h"

#include <filesystem>
#include <fstream>
#include <functional>

#include "core/base/metrics.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::testing {

ClusterAccess MakeClusterAccess(const std::string& folder, Random& random) {
  int port = 0;
  do {
    port = 20000 + static_cast<int>(random.Below(12000));
  } while (!FreeMetricsPort(port, "127.0.0.1").ok());
  ClusterAccess access = {.address = fmt::format("127.0.0.1:{}", port),
                          .token_file = folder + "/token"};
  std::ofstream(access.token_file) << SecureToken();
  namespace fs = std::filesystem;
  fs::permissions(access.token_file, fs::perms::owner_read | fs::perms::owner_write);
  return access;
}

ProgramResult Ask(const ClusterAccess& access, std::vector<std::string> command) {
  command.insert(command.end(),
                 {"--coordinator", access.address, "--token-file", access.token_file});
  return RunShoal(command);
}

namespace {

void AwaitStatus(const ClusterAccess& access,
                 const std::function<bool(const nlohmann::json&)>& is_so, const std::string& what) {
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  ProgramResult asked;
  while (absl::Now() < deadline) {
    asked = Ask(access, {"status", "--json"});
    const auto status = nlohmann::json::parse(asked.output, nullptr, false);
    if (!status.is_discarded() && is_so(status)) {
      return;
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  FAIL() << what << ": " << asked.output << asked.errors;
}

}  // namespace

void AwaitMembers(const ClusterAccess& access, size_t count) {
  AwaitStatus(
      access,
      [count](const nlohmann::json& status) {
        return status.value("members", nlohmann::json::array()).size() == count;
      },
      fmt::format("there are not {} members", count));
}

void AwaitState(const ClusterAccess& access, const std::string& state) {
  AwaitStatus(
      access, [&state](const nlohmann::json& status) { return status.value("state", "") == state; },
      "the job is not " + state);
}

}  // namespace shoal::testing
