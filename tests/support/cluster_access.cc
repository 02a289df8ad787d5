#include "tests/support/cluster_access.h"

#include <filesystem>
#include <fstream>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::testing {

ClusterAccess MakeClusterAccess(const std::string& folder, Random& random) {
  ClusterAccess access = {.address = fmt::format("127.0.0.1:{}", 20000 + random.Below(12000)),
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

void AwaitMembers(const ClusterAccess& access, size_t count) {
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  while (absl::Now() < deadline) {
    const auto status =
        nlohmann::json::parse(Ask(access, {"status", "--json"}).output, nullptr, false);
    if (!status.is_discarded() &&
        status.value("members", nlohmann::json::array()).size() == count) {
      return;
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  FAIL() << "there are not " << count << " members";
}

}  // namespace shoal::testing
